# SPDX-License-Identifier: Apache-2.0
"""Sorting, searching, counting and running extremes."""

from __future__ import annotations

from typing import Any

import torch
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro
from .building import BOOL, INT32, INT64, count_up, ints, is_integer, length, one, operand, running


def _sort(x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """Values and places. TopK puts the earlier of two equals first, whichever way it sorts."""
    if not x.shape:
        return op.Identity(x), op.Constant(value_int=0)
    flag = x.dtype is not None and int(x.dtype) == BOOL
    values, places = op.TopK(
        op.Cast(x, to=INT32) if flag else x, length(x, dim % len(x.shape)), axis=dim, largest=descending, sorted=True
    )
    return (op.Cast(values, to=BOOL) if flag else values), places


def _sorted_both_ways(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The fault, for the reproducer."""
    return *x.sort(dim=1, stable=True), *x.sort(dim=1, stable=True, descending=True)


@translates(
    torch.ops.aten.sort.stable,
    why="there is no translation of the stable sort",
    issue="https://github.com/pytorch/pytorch/issues/95613",
    needed="onnxscript>=0.7",
    repro=Repro(_sorted_both_ways, lambda: (torch.randint(0, 3, (3, 8)),), dynamic=True),
)
def _aten_sort_stable(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Sort so that equals keep their order."""
    return _sort(x, dim, descending)


@translates(
    torch.ops.aten.kthvalue.default,
    why="there is no translation of the k-th smallest value",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: x.kthvalue(2, 1).values, lambda: (torch.randn(3, 7),), dynamic=True),
)
def _aten_kthvalue(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest value and its place, counted from 1."""
    return _pick(x, op.Sub(one(k), ints(1)), dim, keepdim)


@translates(
    torch.ops.aten.median.dim,
    torch.ops.aten.median.default,
    why="there is no translation of the median",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: (x.median(1).values, x.median()), lambda: (torch.randn(3, 7),), dynamic=True),
)
def _aten_median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower one of the middle values, and its place when an axis is given."""
    if dim is None:
        x = op.Reshape(x, ints(-1))
        middle = op.Div(op.Sub(length(x, 0), ints(1)), ints(2))
        values, _ = op.TopK(x, length(x, 0), axis=0, largest=False)
        return op.Squeeze(op.Gather(values, middle))
    middle = op.Div(op.Sub(length(x, dim % len(x.shape)), ints(1)), ints(2))
    return _pick(x, middle, dim, keepdim)


def _pick(x: Any, place: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Value and place of one rank along an axis."""
    picked = tuple(op.Gather(part, place, axis=dim) for part in _sort(x, dim, descending=False))
    return picked if keepdim else tuple(op.Squeeze(part, ints(dim)) for part in picked)


def _in_rows() -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 9, (3, 6)).float(), torch.randint(0, 9, (3, 4)).float()


@translates(
    torch.ops.aten.searchsorted.Tensor,
    torch.ops.aten.searchsorted.Scalar,
    why="there is no translation of the search in a sorted sequence",
    issue="https://github.com/pytorch/pytorch/issues/151793",
    needed="onnxscript>=0.7",
    repro=Repro(lambda rows, x: torch.searchsorted(rows.sort(1).values, x, right=True), _in_rows, dynamic=True),
)
def _aten_searchsorted(
    sequence: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """How many of the sequence lie before each value; equals count when ``right``. Every value meets every element."""
    rows = len(sequence.shape) > 1
    x = operand(x, sequence)
    if sorter is not None:
        sequence = op.GatherElements(sequence, op.Cast(sorter, to=INT64), axis=-1)
    if rows:
        sequence = op.Unsqueeze(sequence, ints(-2))
    return _count_before(x, sequence, right or side == "right", out_int32)


def _edges() -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 12, (4, 5)).float() / 2, torch.arange(5.0)


@translates(
    torch.ops.aten.bucketize.Tensor,
    torch.ops.aten.bucketize.Scalar,
    why="the default decomposes into an operation that has no translation",
    issue="https://github.com/pytorch/pytorch/issues/151793",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x, edges: torch.bucketize(x, edges.sort().values), _edges, dynamic=True),
)
def _aten_bucketize(x: Any, edges: Any, out_int32: bool = False, right: bool = False) -> Any:
    """How many edges lie before each value; equals count when ``right``."""
    return _count_before(operand(x, edges), edges, right, out_int32)


def _count_before(x: Any, sequence: Any, right: bool, out_int32: bool) -> Any:
    compare = op.LessOrEqual if right else op.Less
    before = op.Cast(compare(sequence, op.Unsqueeze(x, ints(-1))), to=INT32)
    counts = op.ReduceSum(before, ints(-1), keepdims=False)
    return counts if out_int32 else op.Cast(counts, to=INT64)


@translates(
    torch.ops.aten.histc.default,
    why="the default cannot take the range from the data",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.histc(x, 5), lambda: (torch.rand(30),), dynamic=True),
)
def _aten_histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:  # noqa: A002  torch's names
    """How many values fall between equally spaced edges; without a range, the one of the data."""
    low, high, unit = operand(min, x), operand(max, x), operand(1, x)
    x = op.Reshape(x, ints(-1))
    if min == max:
        low, high = op.ReduceMin(x, keepdims=False), op.ReduceMax(x, keepdims=False)
        flat = op.Equal(low, high)
        low, high = op.Where(flat, op.Sub(low, unit), low), op.Where(flat, op.Add(high, unit), high)
    inside = op.And(op.GreaterOrEqual(x, low), op.LessOrEqual(x, high))
    place = op.Div(op.Mul(op.Sub(x, low), operand(bins, x)), op.Sub(high, low))
    place = op.Min(op.Cast(op.Where(inside, place, operand(0, x)), to=INT64), op.Constant(value_int=bins - 1))
    here = op.And(op.Equal(op.Unsqueeze(place, ints(1)), count_up(ints(bins))), op.Unsqueeze(inside, ints(1)))
    return op.ReduceSum(op.CastLike(here, x), ints(0), keepdims=False)


def _running_extreme(x: Any, dim: int, larger: bool) -> tuple[Any, ...]:
    """Running extreme and the last place that has it."""
    compare = op.GreaterOrEqual if larger else op.LessOrEqual
    if not x.shape:
        return op.Identity(x), op.Constant(value_int=0)
    rank = len(x.shape)
    along = [-1 if axis == dim % rank else 1 for axis in range(rank)]
    spots = op.Reshape(count_up(length(x, dim % rank)), ints(*along))

    def combine(value: Any, place: Any, later: Any, later_place: Any) -> tuple[Any, ...]:
        takes = compare(later, value)
        if not is_integer(x):
            takes = op.Or(takes, op.IsNaN(later))
        return op.Where(takes, later, value), op.Where(takes, later_place, place)

    return running((x, op.Expand(spots, op.Shape(x))), dim % rank, combine)


@translates(
    torch.ops.aten.cummax.default,
    why="there is no translation of the running maximum",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: tuple(x.cummax(1)), lambda: (torch.randint(0, 5, (3, 8)),), dynamic=True),
)
def _aten_cummax(x: Any, dim: int) -> Any:
    """Running maximum and the last place that has it."""
    return _running_extreme(x, dim, larger=True)


@translates(
    torch.ops.aten.cummin.default,
    why="there is no translation of the running minimum",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: tuple(x.cummin(1)), lambda: (torch.randint(0, 5, (3, 8)),), dynamic=True),
)
def _aten_cummin(x: Any, dim: int) -> Any:
    """Running minimum and the last place that has it."""
    return _running_extreme(x, dim, larger=False)
