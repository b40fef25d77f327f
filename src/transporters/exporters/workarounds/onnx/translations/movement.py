# SPDX-License-Identifier: Apache-2.0
"""Values that change their places."""

from __future__ import annotations

from typing import Any

import torch
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro


def _roll_by_size(states: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer."""
    return torch.roll(states, (states.shape[0] - 1, -2), dims=(0, 1))


@translates(
    torch.ops.aten.roll.default,
    why="the default takes shifts that are constants, not sizes",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_roll_by_size, lambda: (torch.randn(4, 5),), dynamic=True),
)
def _aten_roll(states: Any, shifts: Any, dims: Any = ()) -> Any:
    """Roll along the given axes by shifts that may be sizes of the graph; the default takes constants only."""
    if not dims:
        flat = op.Reshape(states, op.Constant(value_ints=[-1]))
        return op.Reshape(_roll_axis(flat, shifts[0], 0), op.Shape(states))
    rank = len(states.shape)
    for shift, axis in zip(shifts, dims):
        states = _roll_axis(states, shift, axis % rank)
    return states


def _roll_axis(states: Any, shift: Any, axis: int) -> Any:
    if isinstance(shift, int):
        shift = op.Constant(value_int=shift)
    shift = op.Reshape(op.Cast(shift, to=7), op.Constant(value_ints=[1]))
    length = op.Shape(states, start=axis, end=axis + 1)
    start = op.Mod(op.Neg(shift), length)  # in [0, length): Mod takes the sign of the divisor
    axes, zero = op.Constant(value_ints=[axis]), op.Constant(value_ints=[0])
    return op.Concat(op.Slice(states, start, length, axes), op.Slice(states, zero, start, axes), axis=axis)
