# SPDX-License-Identifier: Apache-2.0
"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro


def _groups() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Seven rows in three groups, the second of which is empty."""
    return torch.randn(7, 8), torch.randn(3, 8, 16), torch.tensor([4, 4, 7], dtype=torch.int32)


def _grouped_product() -> Callable[..., torch.Tensor]:
    """The fault, for the reproducer: Transformers' own operation for the CPU."""
    from transformers.integrations import moe

    assert moe is not None, "the import registers the operation"

    def multiply(states: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.transformers.grouped_mm_fallback(states, weights, offsets)
        return product

    return multiply


@translates(
    torch.ops.aten._grouped_mm.default,
    "transformers::grouped_mm_fallback",
    why="there is no translation of a product of groups of rows, each with a matrix of its own",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_grouped_product, _groups, builds=True),
)
def _aten_grouped_mm(states: Any, weights: Any, offsets: Any, *_: Any, **__: Any) -> Any:
    """Each row of ``states`` (rows, k) times the matrix of its group in ``weights`` (groups, k, n).

    ``offsets`` (groups,) says where each group of rows ends. Every group multiplies all rows, with the others' set to
    zero: the work grows with the number of groups, the memory does not.
    """
    rows = op.Range(
        op.Constant(value_int=0),
        op.Squeeze(op.Shape(states, start=0, end=1)),
        op.Constant(value_int=1),
    )
    rows = op.Unsqueeze(rows, op.Constant(value_ints=[1]))
    offsets = op.Cast(offsets, to=7)
    zero = op.CastLike(op.Constant(value_float=0.0), states)
    total = None
    for group in range(weights.shape[0]):
        end = op.Gather(offsets, op.Constant(value_int=group))
        inside = op.Less(rows, end)
        if group:
            start = op.Gather(offsets, op.Constant(value_int=group - 1))
            inside = op.And(inside, op.GreaterOrEqual(rows, start))
        matrix = op.Gather(weights, op.Constant(value_int=group), axis=0)
        part = op.MatMul(op.Where(inside, states, zero), matrix)
        total = part if total is None else op.Add(total, part)
    return total
