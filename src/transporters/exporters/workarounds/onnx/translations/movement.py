# SPDX-License-Identifier: Apache-2.0
"""Values that change their places."""

from __future__ import annotations

from typing import Any

import torch
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro
from .building import ints, one


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


@translates(
    torch.ops.aten.repeat_interleave.self_int,
    why="the default takes a number of repeats that is a constant, not a size",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: x.repeat_interleave(x.shape[1], dim=0), lambda: (torch.randn(3, 4),), dynamic=True),
)
def _aten_repeat_interleave(states: Any, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    """Every entry of an axis, or of the flat tensor, several times in a row; how often may be a size of the graph."""
    if dim is None:
        states, rank, axis = op.Reshape(states, ints(-1)), 1, 0
    else:
        rank = len(states.shape)
        axis = dim % rank
    times = one(repeats)
    wide = op.Unsqueeze(states, ints(axis + 1))
    before, after = op.Shape(states, start=0, end=axis + 1), op.Shape(states, start=axis + 1, end=rank)
    wide = op.Expand(wide, op.Concat(before, times, after, axis=0))
    size = op.Mul(op.Shape(states, start=axis, end=axis + 1), times)
    return op.Reshape(wide, op.Concat(op.Shape(states, start=0, end=axis), size, after, axis=0), allowzero=1)


@translates(
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.squeeze.dims,
    why="the default drops an axis that is longer than one, which torch leaves alone and ONNX Runtime refuses",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: x.abs().squeeze(1), lambda: (torch.randn(4, 5),), dynamic=True),
)
def _aten_squeeze(states: Any, dim: Any) -> Any:
    """Drop axes of size 1 and leave others; where only the run knows a size, the number of axes is its matter too."""
    rank = len(states.shape)
    axes = sorted({axis % rank for axis in ((dim,) if isinstance(dim, int) else dim)}) if rank else []
    sizes = {axis: states.shape[axis] for axis in axes}
    single = [axis for axis in axes if sizes[axis] == 1]
    unknown = [axis for axis in axes if not isinstance(sizes[axis], int)]
    if not unknown:
        return op.Squeeze(states, ints(*single)) if single else op.Identity(states)
    shape = op.Shape(states)
    may_go = op.Constant(value_ints=[int(axis in axes) for axis in range(rank)])
    stays = op.Or(op.Equal(may_go, ints(0)), op.Not(op.Equal(shape, ints(1))))
    return op.Reshape(states, op.Compress(shape, stays, axis=0), allowzero=1)


def _roll_axis(states: Any, shift: Any, axis: int) -> Any:
    if isinstance(shift, int):
        shift = op.Constant(value_int=shift)
    shift = op.Reshape(op.Cast(shift, to=7), op.Constant(value_ints=[1]))
    length = op.Shape(states, start=axis, end=axis + 1)
    start = op.Mod(op.Neg(shift), length)  # in [0, length): Mod takes the sign of the divisor
    axes, zero = op.Constant(value_ints=[axis]), op.Constant(value_ints=[0])
    return op.Concat(op.Slice(states, start, length, axes), op.Slice(states, zero, start, axes), axis=axis)
