# SPDX-License-Identifier: Apache-2.0
"""Reading and writing by index and by mask."""

from __future__ import annotations

import torch
from onnx_operations import case, enter, flags, places, real, whole


@case(x=real(3, 4, 5), mask=flags(3, 4, 5))
def write_a_number_by_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[mask] = 2.5
    return y


@case(x=real(3, 4, 5), mask=flags(3, 4))
def write_a_number_by_mask_of_rows(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = x.clone(), x.clone()
    y[mask] = -1.0
    z[mask] = x.sum()
    return y, z


@case(x=real(3, 4, 5), row=real(5), mask=flags(3, 4))
def write_a_row_by_mask(x: torch.Tensor, row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[mask] = row
    return y


@case(x=real(3, 4, 5), mask=flags(3, 4))
def write_as_many_rows_as_the_mask_has(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.clone()
    y[mask] = torch.tanh(x[mask]) * 2
    return y, x.index_put((mask,), x[mask] + 1, accumulate=True)


@case(x=real(3, 4, 5), mask=flags(3, 4, 5))
def write_values_by_mask(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.clone()
    y[mask] = x[mask].cumsum(0)
    return y, x.index_put((mask,), torch.tensor(3.0), accumulate=True)


@case(x=real(3, 4, 5), mask=flags(4), last=flags(5))
def write_by_mask_of_an_inner_axis(x: torch.Tensor, mask: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = x.clone(), x.clone()
    y[:, mask] = 0.0
    z[..., last] = 7.0
    return y, z


@case(x=whole(-9, 9, 3, 4), mask=flags(3, 4))
def write_integers_and_flags_by_mask(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = x.clone(), x > 0
    y[mask] = 2**53 + 1
    z[mask] = False
    return y, z


@case(x=real(3, 4, 6), idx=places(3, 6))
def write_a_number_on_the_last_axis(x: torch.Tensor, idx: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = x.clone(), x.clone()
    y[..., idx] = 1.5
    z[:, :, idx] = x.sum()
    return y, z


@case(x=real(3, 4, 6), idx=places(2, 6), value=real(3, 4, 2), row=real(2))
def write_on_the_last_axis(
    x: torch.Tensor, idx: torch.Tensor, value: torch.Tensor, row: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    y, z = x.clone(), x.clone()
    y[..., idx] = value
    z[:, :, idx] = row
    return y, z


@case(x=real(3, 6, 4), idx=places(2, 6), value=real(3, 2, 4))
def write_on_a_middle_axis(x: torch.Tensor, idx: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, idx] = value
    return y


@case(x=real(5, 6), rows=whole(-5, 4, 7), columns=whole(-6, 5, 7), value=real(7))
def add_at_repeated_places(
    x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    one = torch.tensor(1.0)
    return x.index_put((rows, columns), value, accumulate=True), x.index_put((rows,), one, accumulate=True)


@case(x=real(5, 6), rows=places(3, 5), columns=places(4, 6))
def write_a_grid(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[rows[:, None], columns] = 2.0
    return y


@case(x=real(3, 4, 5))
def write_slices(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z, w = x.clone(), x.clone(), x.clone()
    y[:, -2:] = 0.0
    z[..., 1::2] = x[..., :1]
    w[:, 0] = w[:, -1]
    return y, z, w


@case(x=real(3, 4, 5), mask=flags(3, 4, 5))
def read_by_mask(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[mask], torch.masked_select(x, x > 0), mask.nonzero()


@case(x=real(3, 4, 5), rows=flags(3, 4), inner=flags(4), last=flags(5))
def read_rows_by_mask(
    x: torch.Tensor, rows: torch.Tensor, inner: torch.Tensor, last: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    return x[rows], x[:, inner], x[..., last]


@case(x=real(3, 6, 5), idx=places(4, 5))
def read_by_index(x: torch.Tensor, idx: torch.Tensor) -> tuple[torch.Tensor, ...]:
    last = idx.flip(0)
    return x[:, idx], x[..., last], x[:, idx, last], x[:, :, None, last], x[:, idx[:, None], last]


@case(x=real(4, 6, 5), first=places(3, 4))
def read_by_indices_apart(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return x[first, :, first.flip(0)]


@case(mask=flags(3, 4))
def nonzero_as_tuple(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, columns = torch.where(mask)
    return rows, columns


@case(x=real(4, 6), index=whole(0, 3, 2, 3))
def gather(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.gather(x, 0, index), torch.gather(x, -1, index)


@case(x=real(4, 6))
def take_along_dim(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    order = x.argsort(dim=1, stable=True)
    return torch.take_along_dim(x, order, dim=1), torch.take_along_dim(x, order[:, :1], dim=1)


@case(x=real(4, 6), index=whole(-4, 3, 5))
def take_flat(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.take(x, index)


@case(x=real(4, 6), index=whole(0, 3, 5), more=real(5, 6))
def index_methods(x: torch.Tensor, index: torch.Tensor, more: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.index_select(0, index), x.index_add(0, index, more, alpha=2), x.index_fill(0, index, 3.0)


@case(x=real(4, 6), index=places(3, 4), more=real(3, 6))
def index_copy(x: torch.Tensor, index: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    return x.index_copy(0, index % x.shape[0], more)


@case(x=real(4, 6), src=real(4, 6))
def scatter(x: torch.Tensor, src: torch.Tensor) -> tuple[torch.Tensor, ...]:
    order = src.argsort(dim=1, stable=True)
    return x.scatter(1, order, src), x.scatter(1, order[:, :1], 2.0), x.scatter_add(1, order // 2, src)


@case(x=whole(-9, 9, 4, 6), src=whole(2**53 - 3, 2**53 + 3, 4, 6))
def scatter_add_of_integers(x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return x.scatter_add(1, src.argsort(dim=1, stable=True) // 2, src)


@case(x=real(4, 6), mask=flags(4, 6))
def masked_fill(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.masked_fill(mask, float("-inf")), mask.masked_fill(x > 0, True), x.long().masked_fill(mask, 2**53 + 1)


@case(x=real(4, 6), src=real(4, 8))
def masked_scatter(x: torch.Tensor, src: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x.sum(1, keepdim=True) > 0
    return x.masked_scatter(x > 0, src), x.masked_scatter(rows.expand_as(x), src)


@case(x=real(4, 6))
def where(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mask, other = x > 0, x.flip(0) > 0.5
    return torch.where(mask, x, 0.0), torch.where(mask, other, ~other), torch.where(mask, other, False)


@case(ids=whole(0, 6, 3, 4))
def one_hot(ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(ids, 7)


@case(x=real(3, 4))
def diagonals(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.diag_embed(x), torch.diag_embed(x, offset=1, dim1=0, dim2=2), torch.diagonal(x), torch.diag(x[0])


@case(x=whole(0, 9, 3, 4), known=whole(0, 9, 3))
def isin(x: torch.Tensor, known: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.isin(x, known), torch.isin(x, known, invert=True)


@case(x=real(2, 4, 5), mask=flags(4, 5))
def triangles(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.tril(x), torch.triu(x, 1), torch.tril(x, -1), torch.tril(mask), torch.triu(x.long(), -1)


@case(x=real(3, 4))
def triangle_indices(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.ones(x.shape[0], x.shape[1]).tril(), torch.full((x.shape[1],) * 2, float("-inf")).triu(1)


enter("embedding", torch.nn.Embedding(9, 4, padding_idx=0), input=whole(0, 8, 3, 5))
