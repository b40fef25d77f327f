# SPDX-License-Identifier: Apache-2.0
"""Values that are drawn anew with every run."""

from __future__ import annotations

from typing import Any

import torch
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro
from .building import INT32, INT64, count_up, ints, length, one, operand


@translates(
    torch.ops.aten.randperm.default,
    why="there is no translation of a random order",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.randperm(x.shape[0]).sort().values, lambda: (torch.randn(7, 2),), dynamic=True),
)
def _aten_randperm(size: Any, dtype: int = INT64, **_: Any) -> Any:
    """0, 1, … in the order of random numbers."""
    keys = op.RandomUniformLike(op.Cast(count_up(one(size)), to=1))
    _, places = op.TopK(keys, one(size), axis=0)
    return op.Cast(places, to=dtype if dtype not in (-1, None) else INT64)


def _draws(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: of each row all, so that only the order is random."""
    return torch.multinomial(x, x.shape[1]).sort(1).values


@translates(
    torch.ops.aten.multinomial.default,
    why="the default draws the same place twice when it may not",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_draws, lambda: (torch.rand(3, 8) + 0.1,), dynamic=True),
)
def _aten_multinomial(weights: Any, count: Any, replacement: bool = False, generator: Any = None) -> Any:
    """Draw places in proportion to their weights, with or without putting them back."""
    shares = op.Cast(weights, to=1)
    if not replacement:
        # The largest of log(weight) + Gumbel noise is a draw, the next largest is the next draw, and so on.
        noise = op.Neg(op.Log(op.Neg(op.Log(op.RandomUniformLike(shares)))))
        return op.TopK(op.Add(op.Log(shares), noise), one(count), axis=-1)[1]
    sums = op.CumSum(shares, ints(-1))
    rank = len(weights.shape)
    lead = [length(weights, 0)] if rank == 2 else []
    drawn = op.RandomUniformLike(op.Cast(op.Expand(ints(0), op.Concat(*lead, one(count), axis=0)), to=1))
    whole = op.Gather(sums, ints(-1), axis=-1)
    before = op.LessOrEqual(op.Unsqueeze(sums, ints(-2)), op.Unsqueeze(op.Mul(drawn, whole), ints(-1)))
    return op.Cast(op.ReduceSum(op.Cast(before, to=INT32), ints(-1), keepdims=False), to=INT64)


@translates(
    torch.ops.aten.bernoulli.default,
    torch.ops.aten.bernoulli.p,
    why="the default gives one with the chance that zero should have",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: torch.bernoulli((x > 0).float()), lambda: (torch.randn(3, 4),), dynamic=True),
)
def _aten_bernoulli(x: Any, chance: Any = None, generator: Any = None) -> Any:
    """One with the given chance, or with the one that each value is."""
    chances = op.Cast(x, to=1)
    drawn = op.RandomUniformLike(chances)  # from 0 on, below 1
    if chance is not None:
        chances = operand(float(chance), drawn)
    return op.CastLike(op.Less(drawn, chances), x)


@translates(
    torch.ops.aten.uniform.default,
    why="the default decomposes into an operation that has no translation",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(lambda x: x.clone().uniform_(2, 3).floor(), lambda: (torch.randn(3, 4),), dynamic=True),
)
def _aten_uniform(x: Any, low: float = 0.0, high: float = 1.0, generator: Any = None) -> Any:
    """Even values between two bounds."""
    drawn = op.CastLike(op.RandomUniformLike(op.Cast(x, to=1)), x)
    return op.Add(op.Mul(drawn, operand(high - low, x)), operand(low, x))
