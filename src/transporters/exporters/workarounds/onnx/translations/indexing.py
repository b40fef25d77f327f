# SPDX-License-Identifier: Apache-2.0
"""Reading and writing by index and by mask."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro
from .building import BOOL, DOUBLE, INT32, INT64, ints, is_integer, operand, typed


def _write_by_inner_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer."""
    y = x.clone()
    y[:, mask] = 0.0
    return y


def _inner_mask() -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 4, 5), torch.tensor([True, False, True, False])


@translates(
    torch.ops.aten.index_put.default,
    torch.ops.aten._unsafe_index_put.default,
    why="the default cannot write by a mask that does not begin at the first axis",
    issue="https://github.com/microsoft/onnxscript/issues/1749",
    needed="onnxscript>=0.7",
    repro=Repro(_write_by_inner_mask, _inner_mask, dynamic=True),
)
def _aten_index_put(x: Any, indices: Any, values: Any, accumulate: bool = False, *_: Any) -> Any:
    """Write ``values`` where the indices of the leading axes point; a mask counts as the places where it is true."""
    rank = len(x.shape)
    given = [(axis, index) for axis, index in _by_axis(indices) if index is not None]
    masks = [index for _, index in given if _is_flag(index)]
    single = values.shape is not None and all(size == 1 for size in values.shape)
    if len(given) == 1 and masks and single and not accumulate:
        axis, mask = given[0]
        after = rank - axis - len(mask.shape)
        wide = op.Unsqueeze(mask, ints(*range(len(mask.shape), len(mask.shape) + after))) if after else mask
        return op.Where(wide, op.CastLike(op.Reshape(values, ints(1)), x), x)
    axes, lists = _as_integers(given)
    spread = lists[0]
    for other in lists[1:]:
        spread = op.Add(spread, other)
    grid = op.Shape(spread)
    depth = max(len(index.shape) if index.shape is not None else 1 for index in lists)
    places = op.Concat(*(op.Unsqueeze(op.Expand(index, grid), ints(-1)) for index in lists), axis=-1)
    rest = [axis for axis in range(rank) if axis not in axes]
    front = [*axes, *rest]
    turned = op.Transpose(x, perm=front) if front != list(range(rank)) else x
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    before = [axis for axis in rest if axis < axes[0]] if adjacent else []
    sizes = [op.Shape(x, start=axis, end=axis + 1) for axis in rest]
    shape = op.Concat(*sizes[: len(before)], grid, *sizes[len(before) :], axis=0)
    updates = op.Expand(op.CastLike(values, x), shape)
    if before:
        ahead = len(before)
        perm = [*range(ahead, ahead + depth), *range(ahead), *range(ahead + depth, depth + len(rest))]
        updates = op.Transpose(updates, perm=perm)
    written = op.ScatterND(turned, places, updates, reduction="add" if accumulate else "none")
    back = [front.index(axis) for axis in range(rank)]
    return op.Transpose(written, perm=back) if front != list(range(rank)) else written


def _is_flag(index: Any) -> bool:
    return index.dtype is not None and int(index.dtype) == BOOL


def _by_axis(indices: Any) -> list[tuple[int, Any]]:
    """Each index with the axis that it begins at: a mask covers as many axes as it has."""
    placed, axis = [], 0
    for index in indices:
        placed.append((axis, index))
        axis += len(index.shape) if index is not None and _is_flag(index) else 1
    return placed


def _as_integers(given: list[tuple[int, Any]]) -> tuple[list[int], list[Any]]:
    """One list of integers per axis, in place of masks."""
    axes: list[int] = []
    lists: list[Any] = []
    for axis, index in given:
        if not _is_flag(index):
            axes.append(axis)
            lists.append(op.Cast(index, to=INT64) if int(index.dtype) != INT64 else index)
            continue
        found = op.NonZero(index)
        for inner in range(len(index.shape)):
            row = op.Gather(found, op.Constant(value_int=inner), axis=0)
            row.shape = ir.Shape([None])
            axes.append(axis + inner)
            lists.append(row)
    return axes, lists


@translates(
    torch.ops.aten.masked_select.default,
    why="there is no translation of the values under a mask",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.masked_select(x, x > 0), lambda: (torch.randn(3, 4),), dynamic=True),
)
def _aten_masked_select(x: Any, mask: Any) -> Any:
    """The values where the mask is true, in a row."""
    wide, mask = op.Expand(x, op.Shape(mask)), op.Expand(mask, op.Shape(x))
    return op.Compress(op.Reshape(wide, ints(-1)), op.Reshape(mask, ints(-1)))


_LEAST = {1: -float("inf"), DOUBLE: -float("inf"), 10: -float("inf"), INT64: -(2**63), INT32: -(2**31)}
_MOST = {1: float("inf"), DOUBLE: float("inf"), 10: float("inf"), INT64: 2**63 - 1, INT32: 2**31 - 1}


@translates(
    torch.ops.aten.scatter_reduce.two,
    why="the default gives the sum in place of the mean",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(
        lambda x, src: x.scatter_reduce(1, src.argsort(dim=1, stable=True) // 2, src, "mean"),
        lambda: (torch.randn(4, 6), torch.randn(4, 6)),
        dynamic=True,
    ),
)
def _aten_scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    """Reduce ``src`` into ``x`` at ``index``, with or without the value that stands there."""
    if not x.shape:
        x, index, src = (op.Reshape(value, ints(1)) for value in (x, index, src))
        return op.Squeeze(_aten_scatter_reduce(x, 0, index, src, reduce, include_self))
    dtype = int(x.dtype)
    kind = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduce]
    neutral = {"add": 0, "mul": 1, "max": _LEAST.get(dtype, 0), "min": _MOST.get(dtype, 0)}[kind]
    if kind in ("max", "min") and dtype not in _LEAST:
        raise NotImplementedError(f"scatter_reduce {reduce} of element type {dtype}")
    start = x
    if not include_self:
        start = op.ScatterElements(x, index, op.Expand(typed(neutral, dtype), op.Shape(index)), axis=dim)
    src = op.Slice(src, op.Expand(ints(0), op.Shape(op.Shape(index))), op.Shape(index))  # a longer source is cut
    result = op.ScatterElements(start, index, src, axis=dim, reduction=kind)
    if reduce != "mean":
        return result
    ones = op.Expand(typed(1, dtype), op.Shape(index))
    counts = op.Expand(typed(int(include_self), dtype), op.Shape(x))
    counts = op.Max(op.ScatterElements(counts, index, ones, axis=dim, reduction="add"), typed(1, dtype))
    if not is_integer(x):
        return op.Div(result, counts)
    return op.Div(op.Sub(result, op.Mod(result, counts)), counts)  # rounded down, as torch does it


@translates(
    torch.ops.aten._cdist_forward.default,
    why="there is no translation of the distances between two sets of points",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x, y: torch.cdist(x, y), lambda: (torch.randn(2, 5, 4), torch.randn(2, 3, 4)), dynamic=True),
)
def _aten_cdist(x: Any, y: Any, p: float, compute_mode: Any = None) -> Any:
    """Distance of every point (…, n, d) from every other (…, m, d)."""
    apart = op.Sub(op.Unsqueeze(x, ints(-2)), op.Unsqueeze(y, ints(-3)))
    if p == 2:
        return op.ReduceL2(apart, ints(-1), keepdims=False)
    apart = op.Abs(apart)
    if p == 1:
        return op.ReduceSum(apart, ints(-1), keepdims=False)
    if p == float("inf"):
        return op.ReduceMax(apart, ints(-1), keepdims=False)
    if p == 0:
        return op.ReduceSum(op.CastLike(op.Greater(apart, operand(0, x)), x), ints(-1), keepdims=False)
    total = op.ReduceSum(op.Pow(apart, operand(p, x)), ints(-1), keepdims=False)
    return op.Pow(total, operand(1 / p, x))
