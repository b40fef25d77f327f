# SPDX-License-Identifier: Apache-2.0
"""Attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from onnxscript.onnx_opset import opset20 as op

from ....onnx_tables import translates
from ....registry import Repro


def _masked_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """A query (batch, heads, length, d), and a mask that lets its second row look at nothing."""
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    allowed[:, :, 1] = False
    return torch.randn(2, 4, 5, 8), allowed


def _attend(query: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer."""
    return torch.nn.functional.scaled_dot_product_attention(query, query * 2, query + 1, attn_mask=allowed)


@translates(
    torch.ops.aten.scaled_dot_product_attention.default,
    why="the default gives a row that may look at nothing the mean of all values, torch gives it zeros",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_attend, _masked_rows),
)
def _aten_scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention in which a query that may look at nothing gives zeros, as torch does; the default gives the mean.

    query (…, heads, length, d), key and value (…, kv heads, kv length, d), mask bool or float, broadcastable.
    """
    scale = _scale(query, scale)
    is_grouped = enable_gqa and key.shape[1] != query.shape[1]
    perm = [*range(len(query.shape) - 2), len(query.shape) - 1, len(query.shape) - 2]
    scores = op.MatMul(_grouped(query, key) if is_grouped else query, op.Transpose(key, perm=perm))
    if is_grouped:
        scores = op.Reshape(scores, op.Concat(op.Shape(query, end=-1), op.Shape(key, start=-2, end=-1), axis=0))
    scores = op.Mul(scores, op.CastLike(scale, query))
    allowed = None
    if is_causal:
        lengths = op.Concat(op.Shape(query, start=-2, end=-1), op.Shape(key, start=-2, end=-1), axis=0)
        ones = op.Expand(op.Constant(value_int=1), lengths)
        allowed = op.Cast(op.Trilu(ones, upper=0), to=9)
    elif attn_mask is not None and attn_mask.dtype == 9:  # bool
        allowed = attn_mask
    elif attn_mask is not None:
        scores = op.Add(scores, attn_mask)
    dark = None
    if allowed is not None:
        scores = op.Where(allowed, scores, op.CastLike(op.Constant(value_float=-math.inf), scores))
    if attn_mask is not None:
        dark = _dark_rows(attn_mask)
    weights = op.Softmax(scores, axis=-1)
    if dark is not None:
        weights = op.Where(dark, op.CastLike(op.Constant(value_float=0.0), weights), weights)
    if dropout_p:
        weights = _drop(weights, dropout_p)
    if is_grouped:
        found = op.MatMul(_grouped(weights, value), value)
        return op.Reshape(found, op.Concat(op.Shape(query, end=-1), op.Shape(value, start=-1), axis=0))
    return op.MatMul(weights, value)


def _drop(weights: Any, chance: float) -> Any:
    """Set weights to zero by chance, and scale the others up."""
    drawn = op.RandomUniformLike(op.Cast(weights, to=1))
    kept = op.GreaterOrEqual(drawn, op.Constant(value_float=chance))
    scaled = op.Div(weights, op.CastLike(op.Constant(value_float=1 - chance), weights))
    return op.Where(kept, scaled, op.CastLike(op.Constant(value_float=0.0), weights))


def _dark_rows(mask: Any) -> Any:
    """Queries that may look at nothing: (…, length, 1) bool. The softmax of such a row is not a number."""
    if mask.dtype == 9:  # bool
        return op.Not(op.Cast(op.ReduceMax(op.Cast(mask, to=6), op.Constant(value_ints=[-1])), to=9))
    return op.Equal(
        op.ReduceMax(mask, op.Constant(value_ints=[-1])), op.CastLike(op.Constant(value_float=-math.inf), mask)
    )


def _scale(query: Any, scale: float | None) -> Any:
    """The factor on scores; by default one over the root of the head size, which may be symbolic."""
    size = query.shape[-1]
    if scale is None and not isinstance(size, int):
        return op.Reciprocal(op.Sqrt(op.Cast(op.Shape(query, start=-1), to=1)))
    return op.Constant(value_float=1 / math.sqrt(size) if scale is None else scale)


def _grouped(rows: Any, states: Any) -> Any:
    """(batch, heads, length, d) as (batch, kv heads, heads / kv heads x length, d), without moving anything.

    So the queries that share a head are the rows of one product, and keys and values are neither repeated nor read
    more than once.
    """
    heads = op.Constant(value_ints=[states.shape[1], -1])
    return op.Reshape(rows, op.Concat(op.Shape(rows, end=1), heads, op.Shape(rows, start=-1), axis=0))
