# SPDX-License-Identifier: Apache-2.0
"""Attention with masked rows, and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from onnx_operations import CASES, Make, case, enter, real

from transporters.exporters.registry import Repro


def rows_in_the_dark(*shape: int) -> Make:
    """A mask whose first row lets nothing through, and whose others all let something through."""

    def make() -> torch.Tensor:
        made = torch.rand(shape) > 0.4
        made[..., 0] = True
        made[..., 0, :] = False
        return made

    return make


@case(q=real(2, 3, 4, 8), k=real(2, 3, 6, 8), v=real(2, 3, 6, 8), mask=rows_in_the_dark(2, 4, 6))
def flags_as_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])


@case(q=real(2, 3, 4, 8), k=real(2, 3, 6, 8), v=real(2, 3, 6, 5), mask=rows_in_the_dark(4, 6))
def infinities_as_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    added = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=0.3)


@case(q=real(2, 3, 4, 8), k=real(2, 3, 6, 8), v=real(2, 3, 6, 8), mask=rows_in_the_dark(2, 4, 6))
def least_numbers_as_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added[:, None])


@case(q=real(2, 3, 4, 8), k=real(2, 3, 6, 8))
def large_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q * 1000 - 90000 * k.abs().sum(), k.abs(), k, attn_mask=allowed)


def causal(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Queries look at keys up to their own place, from the first on, whatever the lengths."""
    return F.scaled_dot_product_attention(q, k, k.flip(-1), is_causal=True)


enter("causal_longer_keys", causal, q=real(2, 3, 4, 8), k=real(2, 3, 7, 8))
enter("causal_longer_queries", causal, q=real(2, 3, 7, 8), k=real(2, 3, 4, 8))


@case(q=real(2, 4, 48), k=real(2, 5, 16), mask=rows_in_the_dark(2, 4, 5))
def shared_heads(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    q, k = q.unflatten(2, (6, 8)).transpose(1, 2), k.unflatten(2, (2, 8)).transpose(1, 2)
    v = k.flip(-1)

    def attend(**options: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)

    return attend(), attend(attn_mask=mask[:, None]), attend(is_causal=True)


@case(q=real(2, 4, 8), k=real(2, 6, 8))
def without_heads(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, k)


@case(scores=real(2, 4, 6), mask=rows_in_the_dark(2, 4, 6))
def softmax_of_masked_rows(scores: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    least = scores.masked_fill(~mask, torch.finfo(torch.float32).min)
    return least.softmax(-1), scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(), least.log_softmax(1)


@case(x=real(3, 4, 5), y=real(3, 5, 6), z=real(3, 4, 6))
def products(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    added = torch.addmm(z[0], x[0], y[0], alpha=0.5), torch.baddbmm(z, x, y)
    sums = torch.einsum("bik,bkj->bij", x, y), torch.einsum("bik,bkj->i", x, y)
    return *added, *sums, torch.baddbmm(z, x, y, beta=0.5, alpha=2.0), x @ y, torch.bmm(x, y)


@case(x=real(3, 4, 5), y=real(6, 5))
def einsums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kinds = torch.einsum("bik,jk->bij", x, y), torch.einsum("...k,jk->...j", x, y), torch.einsum("bij->bji", x)
    return *kinds, torch.einsum("bii->bi", x[:, :2, :2]), F.linear(x, y), torch.tensordot(x, y, dims=([2], [1]))


@case(x=real(4, 5), y=real(5), z=real(4))
def vectors(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mv(y), torch.addmv(z, x, y), y.dot(y), torch.addr(x, z, y)


def _groups() -> dict[str, torch.Tensor]:
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    return {"states": torch.randn(8, 16), "weights": torch.randn(3, 16, 8), "ends": ends}


def _grouped(states: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch._grouped_mm(states.bfloat16(), weights.bfloat16(), offs=ends)
    return product


def _fallback() -> Callable[..., torch.Tensor]:
    from transformers.integrations import moe

    assert moe is not None, "the import registers the operation"

    def grouped(states: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.transformers.grouped_mm_fallback(states, weights, ends)
        return product

    return grouped


# The sizes stand in the table of ends, so that a program for other sizes is another case.
CASES["grouped_product_bfloat16"] = Repro(_grouped, _groups)
CASES["grouped_product_fallback"] = Repro(_fallback, _groups, builds=True)
