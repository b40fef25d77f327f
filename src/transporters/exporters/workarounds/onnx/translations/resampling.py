# SPDX-License-Identifier: Apache-2.0
"""Images at another size, as products with matrices of weights that the graph makes from the sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro
from .building import count_up, ints, length, one, typed

#: Distance to weight.
_Kernel = Callable[[Any], Any]


def _resample(x: Any, weights: list[Any]) -> Any:
    """Multiply the last axes of ``x``, as many as there are matrices (new size, old size), by one each."""
    if len(weights) == 2:
        x = op.MatMul(weights[0], x)
    return op.MatMul(x, op.Transpose(weights[-1], perm=[1, 0]))


def _float(value: Any) -> Any:
    return op.Cast(value, to=1)


def _mean_weights(old: Any, new: Any) -> Any:
    """Each new position takes the mean of the old ones that it covers, cut ones included."""
    place, spot = op.Unsqueeze(count_up(new), ints(1)), count_up(old)
    start = op.Div(op.Mul(place, old), new)
    end = op.Div(op.Add(op.Mul(op.Add(place, ints(1)), old), op.Sub(new, ints(1))), new)
    inside = op.And(op.GreaterOrEqual(spot, start), op.Less(spot, end))
    return op.Div(_float(inside), _float(op.Sub(end, start)))


def _pool(x: Any, sizes: Any, rank: int) -> Any:
    sizes = list(sizes) if isinstance(sizes, (list, tuple)) else [sizes] * rank
    if all(size == 1 for size in sizes):
        return op.ReduceMean(x, ints(*range(-rank, 0)), keepdims=True)
    full = len(x.shape)
    lengths = [length(x, full - rank + axis) for axis in range(rank)]
    weights = [op.CastLike(_mean_weights(old, one(new)), x) for old, new in zip(lengths, sizes)]
    return _resample(x, weights)


def _pooled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The fault, for the reproducer."""
    return F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_avg_pool1d(x[:, :, 0], 3)


@translates(
    torch.ops.aten.adaptive_avg_pool2d.default,
    torch.ops.aten._adaptive_avg_pool2d.default,
    why="the default decomposes into operations on sizes that have no translation",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_pooled, lambda: (torch.randn(2, 3, 9, 8),), dynamic=True),
)
def _aten_adaptive_avg_pool2d(x: Any, output_size: Any) -> Any:
    """Mean over as many fields as asked for, whatever the input's size."""
    return _pool(x, output_size, 2)


def _triangle(distance: Any) -> Any:
    return op.Max(op.Sub(typed(1.0, 1), distance), typed(0.0, 1))


def _cubic(distance: Any) -> Any:
    """Keys' kernel with a = -0.5, which torch takes when it smooths."""
    square = op.Mul(distance, distance)
    near = op.Add(op.Mul(square, op.Sub(op.Mul(typed(1.5, 1), distance), typed(2.5, 1))), typed(1.0, 1))
    falling = op.Sub(typed(2.5, 1), op.Mul(typed(0.5, 1), distance))
    far = op.Add(op.Mul(distance, op.Sub(op.Mul(distance, falling), typed(4.0, 1))), typed(2.0, 1))
    outer = op.Where(op.Less(distance, typed(2.0, 1)), far, typed(0.0, 1))
    return op.Where(op.Less(distance, typed(1.0, 1)), near, outer)


def _smooth_weights(old: Any, new: Any, kernel: _Kernel, reach: float, corners: bool, factor: float) -> Any:
    """Weights of a kernel that grows wider when the image shrinks, so that every old position counts."""
    one_, half = typed(1.0, 1), typed(0.5, 1)
    if corners:
        steps = _float(op.Sub(new, ints(1)))
        scale = op.Div(_float(op.Sub(old, ints(1))), op.Max(steps, one_))
        scale = op.Where(op.Greater(steps, typed(0.0, 1)), scale, typed(0.0, 1))
    elif factor:
        scale = op.Reshape(typed(1.0 / factor, 1), ints(1))
    else:
        scale = op.Div(_float(old), _float(new))
    wide = op.Max(scale, one_)
    support = op.Mul(wide, typed(reach, 1))
    centre = op.Mul(scale, op.Add(_float(op.Unsqueeze(count_up(new), ints(1))), half))
    spot = _float(count_up(old))
    first = op.Floor(op.Max(op.Add(op.Sub(centre, support), half), typed(0.0, 1)))
    last = op.Floor(op.Min(op.Add(op.Add(centre, support), half), _float(old)))
    inside = op.And(op.GreaterOrEqual(spot, first), op.Less(spot, last))
    weight = kernel(op.Abs(op.Div(op.Add(op.Sub(spot, centre), half), wide)))
    weight = op.Where(inside, weight, typed(0.0, 1))
    return op.Div(weight, op.ReduceSum(weight, ints(1), keepdims=True))


def _smooth(x: Any, sizes: Any, corners: bool, factors: Any, kernel: _Kernel, reach: float) -> Any:
    weights = []
    for axis in range(2):
        old = length(x, 2 + axis)
        factor = float(factors[axis]) if factors else 0.0
        if sizes:
            new, factor = one(sizes[axis]), 0.0
        else:
            new = op.Cast(op.Floor(op.Mul(_float(old), typed(factor, 1))), to=7)
        matrix = _smooth_weights(old, new, kernel, reach, corners, factor)
        weights.append(op.CastLike(matrix, x))
    return _resample(x, weights)


def _smoothed(mode: str) -> Callable[..., Any]:
    """The fault, for the reproducers."""

    def smooth(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        options: Any = {"mode": mode, "antialias": True, "align_corners": True}
        return F.interpolate(x, size=(3, 4), **options), F.interpolate(x, scale_factor=2, **options)

    return smooth


@translates(
    torch.ops.aten._upsample_bilinear2d_aa.vec,
    why="the default smooths an image whose corners are aligned as if they were not",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_smoothed("bilinear"), lambda: (torch.randn(2, 3, 9, 8),), dynamic=True),
)
def _aten_upsample_bilinear2d_aa(x: Any, sizes: Any, align_corners: bool, factors: Any = None) -> Any:
    """Bilinear interpolation with a kernel that is as wide as what shrinks to one position."""
    return _smooth(x, sizes, align_corners, factors, _triangle, 1.0)


@translates(
    torch.ops.aten._upsample_bicubic2d_aa.vec,
    why="the default smooths an image whose corners are aligned as if they were not",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_smoothed("bicubic"), lambda: (torch.randn(2, 3, 9, 8),), dynamic=True),
)
def _aten_upsample_bicubic2d_aa(x: Any, sizes: Any, align_corners: bool, factors: Any = None) -> Any:
    """Bicubic interpolation with a kernel that is as wide as what shrinks to four positions."""
    return _smooth(x, sizes, align_corners, factors, _cubic, 2.0)
