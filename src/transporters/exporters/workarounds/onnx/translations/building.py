# SPDX-License-Identifier: Apache-2.0
"""Small pieces that translations are built of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxscript.onnx_opset import opset20 as op

INT64 = int(ir.DataType.INT64)
INT32 = int(ir.DataType.INT32)
BOOL = int(ir.DataType.BOOL)
DOUBLE = int(ir.DataType.DOUBLE)

_INTEGERS = frozenset(int(getattr(ir.DataType, name)) for name in ("INT8", "INT16", "INT32", "INT64", "UINT8"))

#: A running operation doubles its reach with every step; this many reach along every axis that fits into memory.
_DOUBLINGS = 31


def is_integer(value: Any) -> bool:
    """Whether a tensor of the graph, or a Python number, is an integer and no truth value."""
    if isinstance(value, (bool, int, float)):
        return isinstance(value, int) and not isinstance(value, bool)
    return value.dtype is not None and int(value.dtype) in _INTEGERS


def is_float(value: Any) -> bool:
    """Whether a tensor of the graph, or a Python number, is known to be a floating-point number."""
    if isinstance(value, (bool, int, float)):
        return isinstance(value, float)
    return value.dtype is not None and bool(value.dtype.is_floating_point())


def ints(*values: int) -> Any:
    """A constant list of integers."""
    return op.Constant(value_ints=list(values))


def typed(value: float, dtype: Any) -> Any:
    """A constant number of an element type."""
    made = op.Constant(value=ir.tensor(value, dtype=ir.DataType(int(dtype))))
    made.dtype = ir.DataType(int(dtype))
    return made


def operand(value: Any, like: Any) -> Any:
    """A number, a size of the graph or a tensor in the element type of ``like``."""
    if not isinstance(value, (bool, int, float)):
        return op.CastLike(value, like)
    if like.dtype is not None:
        return typed(value, like.dtype)
    return op.CastLike(typed(value, DOUBLE if isinstance(value, float) else INT64), like)


def length(value: Any, axis: int) -> Any:
    """Size of one axis, as a list of one integer."""
    return op.Shape(value, start=axis) if axis == -1 else op.Shape(value, start=axis, end=axis + 1)


def one(value: Any) -> Any:
    """An integer, or a size of the graph, as a list of one integer."""
    return ints(value) if isinstance(value, int) else op.Reshape(op.Cast(value, to=INT64), ints(1))


def count_up(size: Any) -> Any:
    """0, 1, … below a size that is given as a list of one integer."""
    return op.Range(op.Constant(value_int=0), op.Squeeze(size), op.Constant(value_int=1))


def running(values: tuple[Any, ...], axis: int, combine: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
    """Combine every position with all before it, by an associative function of (earlier…, later…).

    Each step joins every position with the one as far back as all steps before it reach together, so that the number of
    steps is the logarithm of the length.
    """
    size, zero, axes = length(values[0], axis), ints(0), ints(axis)
    known = values[0].shape[axis] if values[0].shape is not None else None
    steps = max(known - 1, 0).bit_length() if isinstance(known, int) else _DOUBLINGS
    for step in range(steps):
        reach = ints(2**step)
        rest = op.Max(op.Sub(size, reach), zero)
        earlier = [op.Slice(value, zero, rest, axes) for value in values]
        later = [op.Slice(value, reach, size, axes) for value in values]
        joined = combine(*earlier, *later)
        heads = [op.Slice(value, zero, reach, axes) for value in values]
        values = tuple(op.Concat(head, new, axis=axis) for head, new in zip(heads, joined))
    return values
