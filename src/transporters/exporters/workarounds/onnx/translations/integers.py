# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of integers, which must not take a way over floats, and division with a sign."""

from __future__ import annotations

import operator
from typing import Any

import torch
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro
from .building import BOOL, INT64, ints, is_float, is_integer, operand, running, typed


def _large() -> tuple[torch.Tensor]:
    return (torch.randint(2**60, 2**61, (3, 4)) * torch.tensor([-1, 1, -1, 1]),)


def _whole_quotient(x: Any, y: Any) -> Any:
    """Quotient of integers, rounded down."""
    quotient = op.Div(x, y)  # towards zero
    rest = op.Sub(x, op.Mul(quotient, y))
    zero = operand(0, x)
    across = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(y, zero)))
    return op.Sub(quotient, op.CastLike(across, x))


def _floor_quotient(x: Any, y: Any) -> Any:
    """Quotient of floats, rounded down as torch does it: from the exact remainder and not from the rounded quotient."""
    rest = op.Mod(x, y, fmod=1)
    zero, unit = operand(0, x), operand(1, x)
    quotient = op.Div(op.Sub(x, rest), y)
    across = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(y, zero)))
    quotient = op.Where(across, op.Sub(quotient, unit), quotient)
    whole = op.Floor(quotient)
    whole = op.Where(op.Greater(op.Sub(quotient, whole), operand(0.5, x)), op.Add(whole, unit), whole)
    return op.Where(op.Equal(y, zero), op.Div(x, y), whole)


@translates(
    torch.ops.aten.div.Tensor_mode,
    torch.ops.aten.div.Scalar_mode,
    why="the default divides integers as floats, so that large quotients are rounded",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.div(x, 7, rounding_mode="floor"), _large),
)
def _aten_div_mode(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    """Quotient rounded down or towards zero; integers stay integers."""
    if is_integer(x) and not (is_integer(y) if isinstance(y, (int, float)) else True):
        x = op.Cast(x, to=1)  # an integer by a float gives float32
    y = operand(y, x) if not isinstance(y, float) or x.dtype is not None else typed(y, 1)
    if rounding_mode == "floor":
        return _whole_quotient(x, y) if is_integer(x) else _floor_quotient(x, y)
    quotient = op.Div(x, y)
    if rounding_mode is None or is_integer(x):
        return quotient
    return op.Where(op.Less(quotient, operand(0, x)), op.Ceil(quotient), op.Floor(quotient))


@translates(
    operator.floordiv,
    why="the default rounds a negative quotient of sizes towards zero, Python rounds it down",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: x.sum() * 0 + (-x.shape[1]) // 2, lambda: (torch.randn(3, 5),), dynamic=True),
)
def _aten_floordiv_of_sizes(x: Any, y: Any) -> Any:
    """Quotient of sizes of the graph, rounded down as Python does it; where one is a float, a float."""
    if is_float(x) or is_float(y):
        x, y = (typed(side, 1) if isinstance(side, (int, float)) else op.Cast(side, to=1) for side in (x, y))
        return _floor_quotient(x, y)
    x, y = (op.Constant(value_int=size) if isinstance(size, int) else size for size in (x, y))
    return op.Div(op.Sub(x, op.Mod(x, y)), y)  # Mod takes the sign of the divisor, so that the division is exact


@translates(
    torch.ops.aten.remainder.Scalar,
    why="the default cannot take the remainder by a size of the graph",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: x.long() % x.shape[1], lambda: (torch.randn(3, 5) * 20,), dynamic=True),
)
def _aten_remainder(x: Any, y: Any) -> Any:
    """Remainder with the sign of the divisor."""
    if is_integer(x) and isinstance(y, float):
        x = op.Cast(x, to=1)
        y = typed(y, 1)
    else:
        y = operand(y, x)
    if is_integer(x):
        return op.Mod(x, y)
    rest, zero = op.Mod(x, y, fmod=1), op.CastLike(0, y)
    across = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(y, zero)))
    return op.Where(across, op.Add(rest, y), rest)


@translates(
    torch.ops.aten.pow.Tensor_Scalar,
    torch.ops.aten.pow.Tensor_Tensor,
    torch.ops.aten.pow.Scalar,
    why="ONNX Runtime raises integers to a power as floats, so that large powers are rounded",
    issue="unreported",
    needed="onnxruntime>=1.32",
    repro=Repro(lambda x: x**4, lambda: (torch.randint(6000, 7000, (3, 4)) * 2 + 1,)),
)
def _aten_pow(x: Any, exponent: Any) -> Any:
    """Power; integers by repeated squares."""
    if not (is_integer(x) and is_integer(exponent)):
        if isinstance(x, (int, float)):
            whole = is_integer(exponent)  # a float to an integer tensor gives float32
            return op.Pow(typed(x, 1 if whole else exponent.dtype), op.Cast(exponent, to=1) if whole else exponent)
        if is_integer(x) and isinstance(exponent, float):
            return op.Pow(op.Cast(x, to=1), typed(exponent, 1))
        return op.Pow(x, operand(exponent, x) if isinstance(exponent, (int, float)) else exponent)
    if isinstance(exponent, int) and exponent >= 0:
        return _chain(x, exponent)
    base = operand(x, exponent) if isinstance(x, int) else x
    exponent = operand(exponent, base)
    power, square, rest = operand(1, base), base, op.Abs(exponent)
    for bit in range(6):  # 2**63 is past the largest integer, and only 0 and ±1 have higher powers
        odd = op.Equal(op.Mod(rest, operand(2, base)), operand(1, base))
        power = op.Where(odd, op.Mul(power, square), power)
        square, rest = op.Mul(square, square), op.Div(rest, operand(2, base))
        if bit == 5:
            break
    inverse = op.Where(op.Equal(op.Abs(base), operand(1, base)), power, operand(0, base))
    return op.Where(op.Less(exponent, operand(0, base)), inverse, power)


def _chain(x: Any, exponent: int) -> Any:
    power = None
    while exponent:
        if exponent & 1:
            power = x if power is None else op.Mul(power, x)
        exponent >>= 1
        x = op.Mul(x, x) if exponent else x
    return op.CastLike(op.Expand(op.Constant(value_int=1), op.Shape(x)), x) if power is None else power


def _multiply(x: Any, y: Any) -> tuple[Any, ...]:
    return (op.Mul(x, y),)


@translates(
    torch.ops.aten.prod.default,
    torch.ops.aten.prod.dim_int,
    why="the default has no product of a whole tensor, and ONNX Runtime multiplies integers as floats",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: (x.prod(), x.prod(1), x.prod(-1)), lambda: (torch.randint(0, 9, (2, 3)) * 2 + 94906267,)),
)
def _aten_prod(x: Any, dim: int | None = None, keepdim: bool = False, dtype: int = -1) -> Any:
    """Product over one axis or all."""
    if dtype != -1:
        x = op.Cast(x, to=dtype)
    elif (x.dtype is not None and int(x.dtype) == BOOL) or is_integer(x):
        x = op.Cast(x, to=INT64)
    if not is_integer(x) and dtype not in (INT64, 6) and not (x.dtype is None and dtype == -1):
        return op.ReduceProd(x, keepdims=False) if dim is None else op.ReduceProd(x, ints(dim), keepdims=keepdim)
    axis = 0
    if dim is None:
        x = op.Reshape(x, ints(-1))
    else:
        axis = dim
    ones = op.Add(op.Mul(op.Slice(x, ints(0), ints(1), ints(axis)), op.CastLike(0, x)), op.CastLike(1, x))
    (product,) = running((op.Concat(ones, x, axis=axis),), axis, _multiply)
    last = op.Slice(product, ints(-1), ints(2**62), ints(axis))
    return last if keepdim else op.Squeeze(last, ints(axis))


@translates(
    torch.ops.aten.cumprod.default,
    why="there is no translation of a running product",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: (x.cumprod(1), x.cumprod(-1)), lambda: (torch.randn(3, 6),), dynamic=True),
)
def _aten_cumprod(x: Any, dim: int, dtype: int = -1) -> Any:
    """Running product."""
    if dtype != -1:
        x = op.Cast(x, to=dtype)
    elif is_integer(x) or (x.dtype is not None and int(x.dtype) == BOOL):
        x = op.Cast(x, to=INT64)
    return running((x,), dim, _multiply)[0]


def _shifted(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The fault, for the reproducer."""
    return x << y, x >> y


@translates(
    torch.ops.aten.__lshift__.Tensor,
    torch.ops.aten.__lshift__.Scalar,
    torch.ops.aten.bitwise_left_shift.Tensor,
    torch.ops.aten.bitwise_left_shift.Tensor_Scalar,
    why="there is no translation of a shift to the left that is written as an operator",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_shifted, lambda: (torch.randint(-99, 99, (3, 4)), torch.randint(0, 9, (3, 4)))),
)
def _aten_left_shift(x: Any, places: Any) -> Any:
    """Multiply by a power of two; an integer that is shifted out is lost, as in torch."""
    return op.Mul(x, _power_of_two(places, x))


@translates(
    torch.ops.aten.__rshift__.Tensor,
    torch.ops.aten.__rshift__.Scalar,
    torch.ops.aten.bitwise_right_shift.Tensor,
    torch.ops.aten.bitwise_right_shift.Tensor_Scalar,
    why="there is no translation of a shift to the right that is written as an operator",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_shifted, lambda: (torch.randint(-99, 99, (3, 4)), torch.randint(0, 9, (3, 4)))),
)
def _aten_right_shift(x: Any, places: Any) -> Any:
    """Divide by a power of two and round down, which keeps the sign."""
    return _whole_quotient(x, _power_of_two(places, x))


def _power_of_two(places: Any, like: Any) -> Any:
    if isinstance(places, int):
        return operand(2**places, like)
    table = op.Constant(value_ints=[2**place for place in range(63)])
    return op.CastLike(op.Gather(table, op.Cast(places, to=INT64)), like)
