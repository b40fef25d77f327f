# SPDX-License-Identifier: Apache-2.0
"""Special functions."""

from __future__ import annotations

import math
from typing import Any

import torch
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro
from .building import DOUBLE, is_integer, operand, typed

#: M. Giles, "Approximating the erfinv function" (2010): powers of w - 2.5 and of sqrt(w) - 3, highest first.
_ERFINV_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_ERFINV_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)

#: C. Lanczos' series with g = 7 for nine terms.
_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)


def _polynomial(x: Any, factors: tuple[float, ...], dtype: int) -> Any:
    total = typed(factors[0], dtype)
    for factor in factors[1:]:
        total = op.Add(op.Mul(total, x), typed(factor, dtype))
    return total


@translates(
    torch.ops.aten.erfinv.default,
    why="there is no translation of the inverse of the error function",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.erfinv(x), lambda: (torch.rand(3, 40) * 2 - 1,)),
)
def _aten_erfinv(x: Any) -> Any:
    """Inverse of the error function, to the precision of float32."""
    if x.dtype is not None and int(x.dtype) == DOUBLE:
        raise NotImplementedError("erfinv to the precision of float64")
    y = op.Cast(x, to=1)
    one = typed(1.0, 1)
    w = op.Neg(op.Log(op.Mul(op.Sub(one, y), op.Add(one, y))))
    centre = _polynomial(op.Sub(w, typed(2.5, 1)), _ERFINV_CENTRE, 1)
    tail = _polynomial(op.Sub(op.Sqrt(w), typed(3.0, 1)), _ERFINV_TAIL, 1)
    result = op.Mul(op.Where(op.Less(w, typed(5.0, 1)), centre, tail), y)
    ends = op.Mul(y, typed(math.inf, 1))
    return op.CastLike(op.Where(op.Equal(op.Abs(y), one), ends, result), x)


@translates(
    torch.ops.aten.lgamma.default,
    why="there is no translation of the logarithm of the gamma function",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.lgamma(x), lambda: (torch.rand(3, 40) * 12 - 4,)),
)
def _aten_lgamma(x: Any) -> Any:
    """Logarithm of the absolute gamma function; below a half from its mirror image. In doubles throughout."""
    y = op.Cast(x, to=DOUBLE)
    half, one = typed(0.5, DOUBLE), typed(1.0, DOUBLE)
    mirrored = op.Less(y, half)
    z = op.Sub(op.Where(mirrored, op.Sub(one, y), y), one)
    series = typed(_LANCZOS[0], DOUBLE)
    for place, factor in enumerate(_LANCZOS[1:], start=1):
        series = op.Add(series, op.Div(typed(factor, DOUBLE), op.Add(z, typed(float(place), DOUBLE))))
    shifted = op.Add(z, typed(7.5, DOUBLE))
    result = op.Add(op.Sub(op.Mul(op.Add(z, half), op.Log(shifted)), shifted), op.Log(series))
    result = op.Add(result, typed(0.5 * math.log(2 * math.pi), DOUBLE))
    pi = typed(math.pi, DOUBLE)
    image = op.Sub(op.Log(op.Div(pi, op.Abs(op.Sin(op.Mul(pi, op.Sub(y, op.Floor(y))))))), result)
    return op.CastLike(op.Where(mirrored, image, result), x)


@translates(
    torch.ops.aten.digamma.default,
    why="there is no translation of the derivative of the logarithm of the gamma function",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.digamma(x), lambda: (torch.rand(3, 40) * 9 + 0.1,)),
)
def _aten_digamma(x: Any) -> Any:
    """Logarithmic derivative of the gamma function, by recurrence to where its asymptotic series holds."""
    y = op.Cast(x, to=DOUBLE)
    one = typed(1.0, DOUBLE)
    mirrored = op.Less(y, typed(0.5, DOUBLE))
    z = op.Where(mirrored, op.Sub(one, y), y)
    total = typed(0.0, DOUBLE)
    for _ in range(8):
        total = op.Sub(total, op.Div(one, z))
        z = op.Add(z, one)
    inverse = op.Div(one, op.Mul(z, z))
    series = _polynomial(inverse, (-1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12, 0.0), DOUBLE)
    result = op.Add(op.Add(total, op.Sub(op.Log(z), op.Div(typed(0.5, DOUBLE), z))), series)
    pi = typed(math.pi, DOUBLE)
    angle = op.Mul(pi, op.Sub(y, op.Floor(y)))
    image = op.Sub(result, op.Div(op.Mul(pi, op.Cos(angle)), op.Sin(angle)))
    return op.CastLike(op.Where(mirrored, image, result), x)


@translates(
    torch.ops.aten.hypot.default,
    why="there is no translation of the length of a vector of two",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x, y: torch.hypot(x, y), lambda: (torch.randn(3, 4), torch.randn(3, 4))),
)
def _aten_hypot(x: Any, y: Any) -> Any:
    """Root of the sum of two squares."""
    return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))


@translates(
    torch.ops.aten.signbit.default,
    why="there is no translation of the sign bit of a value",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.signbit(x), lambda: (torch.tensor([1.0, -1.0, 0.0, -0.0]),)),
)
def _aten_signbit(x: Any) -> Any:
    """Whether a value is negative; minus zero is, which shows in its inverse."""
    zero = operand(0, x)
    return op.Less(x, zero) if is_integer(x) else op.Or(op.Less(x, zero), op.Less(op.Div(operand(1, x), x), zero))


@translates(
    torch.ops.aten.copysign.Tensor,
    torch.ops.aten.copysign.Scalar,
    why="the default decomposes into the sign bit by a name that has no translation",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x, y: torch.copysign(x, y), lambda: (torch.randn(3, 4), torch.randn(3, 4))),
)
def _aten_copysign(x: Any, y: Any) -> Any:
    """The size of one value with the sign of another."""
    size = op.Abs(x)
    return op.Where(_aten_signbit(typed(y, x.dtype) if isinstance(y, (int, float)) else y), op.Neg(size), size)


@translates(
    torch.ops.aten.log_sigmoid.default,
    why="the default takes the logarithm of a sigmoid, which ONNX Runtime computes to four digits where it is small",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.nn.functional.logsigmoid(x), lambda: (torch.rand(3, 40) * -16,)),
)
def _aten_log_sigmoid(x: Any) -> Any:
    """min(x, 0) - log(1 + exp(-|x|))."""
    return op.Sub(op.Min(x, operand(0, x)), op.Log(op.Add(operand(1, x), op.Exp(op.Neg(op.Abs(x))))))
