# SPDX-License-Identifier: Apache-2.0
"""Operations on complex numbers, which an ExecuTorch program computes with pairs of real ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from transporters import ExecutorchExporter
from transporters.errors import ExportError

Numbers = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: What is done with two tensors of 3 x 4 complex numbers.
OPERATIONS: dict[str, Numbers] = {
    "sum": lambda z, w: z + w,
    "difference": lambda z, w: z - w,
    "product": lambda z, w: z * w,
    "square": lambda z, w: z * z,
    "times a number": lambda z, w: z * 2.5,
    "times real numbers": lambda z, w: torch.view_as_real(w)[..., 0] * z,
    "rows of one by columns of one": lambda z, w: z[:, None, :] * w[:1].unsqueeze(-1),
    "an axis added at the end": lambda z, w: z.unsqueeze(-1) * w.unsqueeze(-1),
    "the last column": lambda z, w: z.select(-1, -1) + w.select(1, 0),
    "some columns": lambda z, w: z[:, 1:3] * w[:, -2:],
    "another shape": lambda z, w: z.reshape(2, 6) + w.reshape(2, 6),
    "spread": lambda z, w: z[:1].expand(3, 4) - w,
    "nothing": lambda z, w: z,
}


class Program(torch.nn.Module):
    """The operation on numbers that are given as pairs (3, 4, 2)."""

    def __init__(self, operation: Numbers) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, z: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
        z, w = (torch.view_as_complex(pairs * 1.5) for pairs in (z, w))
        return {"pairs": torch.view_as_real(self.operation(z, w))}


def inputs() -> dict[str, torch.Tensor]:
    return {"z": torch.randn(3, 4, 2), "w": torch.randn(3, 4, 2)}


@pytest.mark.parametrize("name", OPERATIONS)
def test_equal_to_eager(name: str) -> None:
    model = Program(OPERATIONS[name]).eval()
    exported = ExecutorchExporter().export(model, inputs(), {"dynamic": False})
    assert "executorch:_fix_complex_numbers" in exported.run.fired
    others = inputs()
    torch.testing.assert_close(exported(**others)["pairs"], model(**others)["pairs"])


@pytest.mark.parametrize("operation", [lambda z, w: z * 1j, lambda z, w: z.exp()], ids=["a complex factor", "exp"])
def test_what_has_no_rule_is_refused(operation: Numbers) -> None:
    with pytest.raises(ExportError, match=r"no kernel|cannot lower"):
        ExecutorchExporter().export(Program(operation).eval(), inputs(), {"dynamic": False})
