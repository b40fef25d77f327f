# SPDX-License-Identifier: Apache-2.0
"""Slices, splits, pads, and other ways for values to change their places."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from onnx_operations import case, enter, real, whole


@case(x=real(3, 8, 5))
def slices(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    ends = x[:, -3:], x[:, :-1], x[:, -3:-1], x[:, 20:], x[:, :20], x[:, -20:2], x[:, 5:2]
    return *ends, x[:, ::2], x[..., 1::3], x[:, -4::2], x[-1], x[:, -1:], x[..., -2]


@case(x=real(3, 8, 5), other=real(4))
def slices_by_size(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = other.shape[0]
    ends = x[:, :-n], x[:, -n:], x[:, n:], x[:, :n]
    return *ends, x[:, n - 1 : n + 1], x[:, : x.shape[1] // 2], x[:, x.shape[1] - 2 :]


@case(x=real(3, 8), other=real(4))
def narrows(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = other.shape[0]
    return x.narrow(1, n - 1, 1), x.narrow(1, 0, n), x.narrow(1, n, x.shape[1] - n), x.select(1, n - 1)


@case(x=real(3, 8), src=real(3, 8))
def slice_scatters(x: torch.Tensor, src: torch.Tensor) -> tuple[torch.Tensor, ...]:
    ends = x.slice_scatter(src[:, :3], 1, 0, 3), x.slice_scatter(src[:, -2:], 1, -2)
    return *ends, x.slice_scatter(src[:, ::2], 1, 0, None, 2), x.select_scatter(src[:, 0], 1, -1)


@case(x=real(3, 8), other=real(3))
def slice_scatter_by_size(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = other.shape[0]
    y, z = x.clone(), x.clone()
    y[:, n:] = 0.0
    z[:, :n] = x[:, -n:]
    return y, z


@case(x=real(3, 4))
def rolls(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[1] // 2
    return x.roll(1), x.roll(-2, 1), x.roll((1, -1), (0, 1)), x.roll(n, 1), x.roll((-n, n), (0, 1)), x.roll(7, -1)


@case(x=real(3, 4))
def flips(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.flip(1), x.flip(0, 1), x.fliplr(), x.rot90(1, (0, 1))


@case(x=real(10, 4))
def uneven_splits(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *x.split([3, 1], 1), *x.split(3, 1), *x.chunk(2, -1), *x.tensor_split(2, dim=1), *x.unbind(1)


@case(x=real(3, 10))
def splits_at_a_place(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[1]
    return *x.split([3, n - 3], 1), *x.split([n // 2, n - n // 2], 1), *x.tensor_split([2, 3], dim=1)


@case(x=real(3, 10))
def halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = x.chunk(2, dim=1)
    return a, b


@case(x=real(3, 10))
def pieces_of_four(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:, :4], x[:, 4:8], x[:, 8:]


@case(x=real(2, 6, 7))
def pads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    modes: tuple[Any, ...] = ("reflect", "replicate", "circular")
    return *(F.pad(x, (1, 2), mode=mode) for mode in modes), F.pad(x, (1, 2, 0, 1), value=3.0), F.pad(x, (-1, 1))


@case(x=real(2, 3, 6, 7))
def pads_of_images(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    modes: tuple[Any, ...] = ("reflect", "replicate", "circular", "constant")
    return tuple(F.pad(x, (2, 1, 1, 2), mode=mode) for mode in modes)


@case(x=real(2, 9, 7))
def pads_by_size(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = (4 - x.shape[1] % 4) % 4
    m = x.shape[2] // 3
    return F.pad(x, (0, 0, 0, n)), F.pad(x, (m, m), value=-1.0), F.pad(x.long(), (0, m), value=7)


@case(x=real(2, 9, 7))
def other_pads_by_size(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    m = x.shape[2] // 3
    modes: tuple[Any, ...] = ("reflect", "replicate", "circular")
    return tuple(F.pad(x, (m, 1), mode=mode) for mode in modes)


@case(x=real(3, 12))
def windows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.unfold(1, 3, 1), x.unfold(1, 4, 2), x.unfold(-1, 2, 3), x.unfold(0, 1, 1)


@case(x=real(2, 3, 6, 7))
def patches(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.unfold(x, 2), F.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1)), F.unfold(x, 3, stride=3)


@case(x=real(2, 12, 20))
def folds(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.fold(x, (5, 6), 2), F.fold(x[:, :, :9], (6, 6), 2, stride=2)


@case(x=real(2, 3, 6, 8))
def patches_and_back(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-2:]
    return F.fold(F.unfold(x, 2, stride=1, padding=1), n, 2, stride=1, padding=1)


@case(x=real(3, 4), counts=whole(0, 3, 4))
def repeats(x: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.repeat_interleave(counts, dim=1), x.repeat_interleave(2, dim=0), x.repeat_interleave(3), x.repeat(2, 1, 3)


@case(x=real(3, 4), counts=whole(1, 3, 3))
def repeats_by_size(x: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[1]
    listed = torch.repeat_interleave(counts), x.repeat_interleave(counts, 0)
    return x.repeat_interleave(n, dim=0), x.repeat(n, 1), x[:, None].expand(-1, n, -1), *listed


@case(x=real(3, 4))
def ranges(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n, m = x.shape
    steps = torch.arange(0, m, 2), torch.arange(m, 0, -1)
    return torch.arange(n), torch.arange(n, n + m), torch.arange(m, dtype=torch.float32), *steps


@case(x=real(3, 4))
def fills(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n, m = x.shape
    made = x.new_zeros(n, 2), x.new_full((m,), 2.0), torch.eye(m), torch.full((n, m), True), torch.ones(m, n).bool()
    return *made, torch.zeros_like(x), torch.full_like(x, 3, dtype=torch.int64)


@case(x=real(3, 4), y=real(5))
def grids(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = torch.meshgrid(x[0], y, indexing="ij")
    c, d = torch.meshgrid(x[0], y, indexing="xy")
    return a, b, c, d, torch.cartesian_prod(x[0], y), torch.stack((x, x), -1).flatten(1), torch.outer(x[0], y)


@case(x=real(2, 6, 4))
def shapes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    b, n, m = x.shape
    views = x.reshape(b * n, m), x.view(b, -1), x.permute(2, 0, 1), x.transpose(0, 1).reshape(n, -1), x.movedim(0, -1)
    return *views, x.unflatten(2, (2, -1)), x.swapaxes(1, 2).contiguous(), x[:, None].squeeze(1), x.mT


enter("pixel_shuffle", lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)), x=real(2, 8, 4, 6))
