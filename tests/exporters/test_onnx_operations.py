# SPDX-License-Identifier: Apache-2.0
"""Every operation of the table, exported with symbolic sizes, is right in ONNX Runtime at other sizes and values.

What is drawn differs from run to run, and what ONNX cannot express is refused by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from onnx_operations import CASES
from reproduce import export, fault

from transporters.artifacts.exported import ExportedModel
from transporters.errors import ExportError
from transporters.exporters.registry import Repro

for family in sorted(path.stem for path in Path(__file__).parent.glob("onnx_operations_*.py")):
    importlib.import_module(family)


@pytest.mark.parametrize("name", CASES)
def test_the_operation_is_right_in_onnx_runtime(name: str, tmp_path: Path) -> None:
    found, _ = fault(CASES[name], "onnx", tmp_path / "program")
    assert found == ""


def exported(function: Callable[..., torch.Tensor], x: torch.Tensor) -> ExportedModel:
    repro = Repro(function, lambda: (x,), dynamic=True)
    return export(repro, repro.module(), {"x": x}, "onnx")


#: Name to an operation on (rows, columns) with values from 0 to 1, and the mean of what it gives for ones.
DRAWN: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "rand": (lambda x: x * 0 + torch.rand(x.shape), 0.5),
    "rand_like": (lambda x: torch.rand_like(x), 0.5),
    "randn": (lambda x: x * 0 + torch.randn(x.shape), 0.0),
    "randn_like": (lambda x: torch.randn_like(x), 0.0),
    "randint": (lambda x: torch.randint(2, 5, x.shape).float(), 3.0),
    "normal": (lambda x: torch.normal(x, x), 1.0),
    "uniform": (lambda x: x.clone().uniform_(2, 4), 3.0),
    "exponential": (lambda x: x.clone().exponential_(2.0), 0.5),
    "dropout": (lambda x: F.dropout(x, 0.2, training=True), 1.0),
    "bernoulli": (lambda x: torch.bernoulli(x * 0.1), 0.1),
    "bernoulli_in_place": (lambda x: x.clone().bernoulli_(0.8), 0.8),
    "multinomial": (lambda x: torch.multinomial(x, 9).float(), 49.5),
    "multinomial_with_replacement": (lambda x: torch.multinomial(x, 9, replacement=True).float(), 49.5),
    "randperm": (lambda x: torch.randperm(x.shape[0]).float(), 199.5),
    "attention_dropout": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5), 1.0),
}


class Draws(torch.nn.Module):
    """All of `DRAWN`, by name."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: function(x) for name, (function, _) in DRAWN.items()}


def test_drawn_values_are_no_constants() -> None:
    module, x = Draws().eval(), torch.ones(400, 100)
    program = export(Repro(module, dict, dynamic=True), module, {"x": x}, "onnx")
    eager, one, other = module(x), program(x=x), program(x=x)
    for name, (_, mean) in DRAWN.items():
        assert one[name].shape == eager[name].shape, name
        assert not torch.equal(one[name], other[name]), f"two runs of {name} draw the same"
        assert abs(one[name].mean().item() - mean) < max(0.02, mean * 0.05), name


def test_no_place_is_drawn_twice_without_putting_it_back() -> None:
    x = torch.rand(50, 8)
    drawn = exported(lambda x: torch.multinomial(x, 5), x)(x=x)
    assert all(len(set(row)) == 5 for row in drawn.tolist())


REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "poisson": lambda x: torch.poisson(x),
    "index_reduce": lambda x: x.index_reduce(0, x[:, 0].long(), x, "amax"),
    "rrelu_with_noise": lambda x: F.rrelu(x, training=True),
}


class Layer(torch.nn.Module):
    """A model around one operation."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) + 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnx_cannot_do_is_refused_by_name(name: str) -> None:
    layer = Layer(REFUSED[name]).eval()
    with pytest.raises(ExportError, match=f"ONNX has no translation of aten.{name}") as caught:
        export(Repro(layer, dict, dynamic=True), layer, {"x": torch.rand(3, 8)}, "onnx")
    assert "_ONNX_TRANSLATION_TABLE" in str(caught.value)
    assert Path(__file__).name in str(caught.value), "the line of the model's code"
