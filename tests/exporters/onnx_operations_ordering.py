# SPDX-License-Identifier: Apache-2.0
"""Sorting, searching, counting, running extremes, and scattered reductions."""

from __future__ import annotations

import torch
from onnx_operations import Make, case, real, whole


def apart(x: torch.Tensor) -> torch.Tensor:
    """No two values of a row are equal: which one of equals torch picks is not specified."""
    return x + torch.arange(x.shape[1]) * 0.017 + torch.arange(x.shape[0])[:, None] * 0.031


@case(x=real(3, 8))
def topk(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = apart(x)
    least = x.topk(2, dim=1, largest=False)
    return *x.topk(3, dim=1), *least, x.topk(3, dim=1, sorted=False).values.sort(1).values, *x.topk(1, dim=0)


@case(x=real(3, 8), other=real(4))
def topk_by_size(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = apart(x)
    whole_axis, some = x.topk(x.shape[1], dim=1), x.topk(other.shape[0], dim=1)
    return *whole_axis, *some, x.topk(x.shape[1] // 2, largest=False).values


@case(x=whole(0, 3, 3, 8))
def topk_of_equals(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.topk(4, dim=1).values, x.topk(4, dim=1, largest=False).values, x.float().topk(4).values


@case(x=real(3, 8))
def topk_mask(x: torch.Tensor) -> torch.Tensor:
    chosen = apart(x).topk(3, dim=-1, sorted=False).indices
    return torch.zeros_like(x).scatter(1, chosen, 1.0)


@case(x=real(3, 8))
def sort(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = apart(x)
    return *x.sort(1), *x.sort(0, descending=True), x.argsort(1), x.argsort(-1, descending=True), x.msort()


@case(x=whole(0, 3, 3, 8))
def stable_sort(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    up, down = x.sort(dim=1, stable=True), x.sort(dim=1, stable=True, descending=True)
    return *up, *down, x.argsort(dim=1, stable=True), x.float().argsort(dim=1, stable=True, descending=True)


@case(x=whole(0, 3, 3, 8))
def places_of_equals(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.argmax(1), x.argmin(1), x.float().argmax(), x.float().max(1).indices, x.float().min(0).indices


@case(x=lambda: torch.randint(0, 12, (4, 5)).float() / 2, edges=lambda: torch.arange(5.0))
def bucketize(x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
    edges = edges.sort().values
    kinds = torch.bucketize(x, edges, right=True), torch.bucketize(x, edges, out_int32=True)
    return torch.bucketize(x, edges), *kinds, torch.bucketize(x[0], edges, right=False)


@case(x=lambda: torch.randint(0, 12, (4, 5)), edges=lambda: torch.arange(0, 10, 2))
def bucketize_integers(x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
    edges = edges.sort().values
    return torch.bucketize(x, edges), torch.bucketize(x, edges, right=True)


@case(x=lambda: torch.randint(0, 9, (3, 4)).float(), rows=lambda: torch.randint(0, 9, (3, 6)).float())
def searchsorted_in_rows(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = rows.sort(1).values
    kinds = torch.searchsorted(rows, x, side="right"), torch.searchsorted(rows, x, right=True, out_int32=True)
    return torch.searchsorted(rows, x), *kinds


@case(x=lambda: torch.randint(0, 9, (3, 4)), known=lambda: torch.randint(0, 9, (6,)))
def searchsorted_with_a_sorter(x: torch.Tensor, known: torch.Tensor) -> tuple[torch.Tensor, ...]:
    order = known.argsort(stable=True)
    return torch.searchsorted(known, x, sorter=order), torch.searchsorted(known, x, sorter=order, right=True)


@case(x=lambda: torch.rand(30) * 5 - 0.5)
def histc(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.histc(x, 4, 0, 4), torch.histc(x, 3, -1, 5), torch.histc(x, 5)


@case(x=whole(0, 5, 3, 8))
def running_extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *x.cummax(1), *x.cummin(0), *x.float().cummax(0), *x.float().cummin(1)


@case(x=real(3, 8))
def running_sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    double = x.double().cumsum(0), x.cumsum(1, dtype=torch.float64)
    return x.cumsum(1), x.cumprod(1), x.logcumsumexp(1), x.diff(dim=1), torch.trapezoid(x, dim=1), *double


def scattered(x: torch.Tensor, kinds: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    """`scatter_reduce` with a repeated index, with the old values and without them."""
    src = x.flip(1) + 1
    index = src.argsort(dim=1, stable=True) // 2
    ways = [(kind, kept) for kind in kinds for kept in (True, False)]
    return tuple(x.scatter_reduce(1, index, src, kind, include_self=kept) for kind, kept in ways)


@case(x=real(4, 6))
def scatter_reduce(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return scattered(x, ("sum", "prod", "mean", "amax", "amin"))


@case(x=whole(-5, 5, 4, 6))
def scatter_reduce_of_integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return scattered(x, ("sum", "prod", "amax", "amin"))


@case(x=whole(0, 5, 20))
def unique(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, places, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values, places, counts, *torch.unique_consecutive(x, return_inverse=True)


@case(x=real(3, 7))
def middle_values(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.median(1).values, x.kthvalue(2, 1).values, x.quantile(0.5, dim=1), x.quantile(0.3, dim=0)


@case(x=real(3, 4, 5))
def statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    spread = x.std(1).nan_to_num(), x.var(-1, unbiased=False), x.var((0, 2), correction=0, keepdim=True), x.std()
    sizes = x.logsumexp(1), x.norm(dim=1), x.norm(p=1), torch.var_mean(x, 0, correction=0)[1]
    return *spread, *sizes, x.mean((1, 2)), x.prod(1), x.prod()


@case(x=real(3, 4, 5))
def norms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kinds: list[float] = [2, 1, float("inf"), -float("inf"), 0, 3]
    vectors = [torch.linalg.vector_norm(x, order, dim=-1, keepdim=True) for order in kinds]
    whole = torch.linalg.vector_norm(x), torch.linalg.norm(x, dim=(1, 2))
    return *vectors, *whole, torch.nn.functional.normalize(x, dim=1)


distances: Make = real(2, 6, 4)


@case(x=real(2, 5, 4), y=distances)
def distances_of_points(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    cosine = torch.nn.functional.cosine_similarity(x[:, :, None], y[:, None], -1)
    return torch.cdist(x, y), torch.cdist(x, y, p=1.0), torch.cdist(x, y, p=float("inf")), cosine
