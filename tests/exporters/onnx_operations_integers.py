# SPDX-License-Identifier: Apache-2.0
"""Integers that must not take a way over floats, division and remainder with signs, comparisons, and bits."""

from __future__ import annotations

import torch
from onnx_operations import UNEVEN, Make, case, enter, flags, real, whole

near = whole(UNEVEN - 3, UNEVEN + 3, 3, 4)


@case(x=near)
def sums_of_integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(), x.sum(1), x.sum((0, 1), keepdim=True), (x > UNEVEN).sum(0), x.cumsum(1), (x > UNEVEN).cumsum(0)


@case(x=whole(-3, 3, 3, 4))
def products_of_integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    odd = x * 2 + 94906267
    return odd.prod(), odd.prod(1), odd.prod(0, keepdim=True), x.cumprod(1)


@case(x=near)
def extremes_of_integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.max(), x.min(), x.max(1).values, x.min(0).values, x.amax((0, 1)), x.amin(1), x.aminmax(dim=1).max


@case(x=whole(UNEVEN - 1, UNEVEN + 1, 3, 7))
def places_of_extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.argmax(1), x.argmin(1), x.argmax(), x.max(1).indices, x.min(0).indices, x.argmax(0, keepdim=True)


@case(x=near, y=near)
def pairs_of_integers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.maximum(x, y), torch.minimum(x, y), x + y, x - y, (x - UNEVEN) * y, -x, x.abs(), (x - y).sign()


@case(x=near, y=near)
def comparisons_of_integers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x == y, x != y, x < y, x >= y, x > UNEVEN, x <= UNEVEN, x == UNEVEN


@case(x=near)
def clamp_of_integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.clamp(UNEVEN - 1, UNEVEN + 1), x.clamp(min=UNEVEN), x.clamp(max=x[0, 0]), x.clamp_min(UNEVEN)


@case(x=whole(-6, 6, 3, 4))
def powers_of_integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x**2, x**3, 2 ** x.abs(), (x + 94906267) ** 2, x.pow(x.abs()), x**0, x.square()


def divided(pairs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All ways to divide by tensors of both signs; pairs (n, m, 2)."""
    x, y = pairs[..., 0], pairs[..., 1]
    down, cut = torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")
    return x // y, down, cut, x % y, torch.fmod(x, y), torch.remainder(x, y)


def divided_by_numbers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All ways to divide by numbers of both signs."""
    cut = torch.div(x, 3, rounding_mode="trunc"), torch.div(x, -3, rounding_mode="trunc")
    return x // 3, x // -3, x % 3, x % -3, x.fmod(3), x.fmod(-3), x.remainder(-2), *cut


def _paired(make: Make) -> Make:
    """Dividends with divisors, which are odd and of both signs."""
    return lambda: torch.stack((made := make(), torch.randint(-3, 3, made.shape).to(made) * 2 + 1), -1)


small = whole(-20, 20, 5, 6)
large = whole(-(2**62), 2**62, 5, 6)
kinds: dict[str, tuple[torch.dtype, Make]] = {
    "integers": (torch.int64, small),
    "large_integers": (torch.int64, large),
    "doubles": (torch.float64, small),
    "fractions": (torch.float32, lambda: torch.randn(5, 6) * 9),
}
for kind, (dtype, many) in kinds.items():
    pairs = _paired(many)
    enter(f"{kind}_divided", lambda pairs, d=dtype: divided(pairs.to(d)), pairs=pairs)
    enter(f"{kind}_divided_by_numbers", lambda x, d=dtype: divided_by_numbers(x.to(d)), x=many)


@case(x=real(3, 4))
def sizes_divided(x: torch.Tensor) -> torch.Tensor:
    return x.sum() * (x.shape[1] // 2) + (-x.shape[1]) // 2 + x.shape[1] % 3 + (-x.shape[0]) % 3


@case(x=real(3, 4))
def sizes_divided_as_floats(x: torch.Tensor) -> torch.Tensor:
    share = x.shape[1] / 2.5
    return x.sum() * (share // 1) + (-share) // 1 + share // 0.7 + x.shape[0] // 0.7


@case(x=whole(-100, 100, 3, 4), y=whole(0, 100, 3, 4))
def bits(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x & y, x | y, x ^ y, ~x, x & 7, torch.bitwise_or(x, 8), torch.bitwise_xor(x, 1)


@case(x=flags(3, 4), y=flags(3, 4))
def bits_of_flags(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x & y, x | y, x ^ y, ~x, torch.bitwise_and(x, y), torch.logical_xor(x, y), torch.logical_not(x)


@case(x=whole(-100, 100, 3, 4))
def shifts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.abs() % 6
    return x << 2, x >> 2, x << y, x >> y, (x.int() >> 1), torch.bitwise_left_shift(x, y), x.to(torch.uint8) >> 4


@case(x=flags(3, 4), y=real(3, 4))
def any_and_all(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dims = x.any(1), x.all(0), x.any(0, keepdim=True), torch.any(x, dim=(0, 1))
    return x.any(), x.all(), (y > 5).any(), y.any(1), y.long().all(1), *dims


@case(x=flags(3, 4))
def numbers_of_flags(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sums = x.sum(), x.sum(1), x.cumsum(1), x.long().cumsum(0) - 1
    return *sums, x.float().mean(1), x.count_nonzero(), x.int().argmax(1)


@case(x=lambda: torch.tensor([[1.0, float("nan"), float("inf")], [-float("inf"), -2.0, 0.0]]))
def not_numbers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    finite = torch.nan_to_num(x), torch.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-3.0), x.isfinite()
    return x.isnan(), x.isinf(), torch.isposinf(x), torch.isneginf(x), x.nansum(1), *finite


@case(x=lambda: torch.tensor([[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], [2.4, -2.4, 2.6, -2.6, 0.0, -7.0]]))
def roundings(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kinds = x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()
    return *kinds, x.sign(), x.long(), x.int(), x.round(decimals=1), x.to(torch.bool), x.long().to(torch.uint8)


@case(x=whole(0, 5, 4, 6))
def modes_of_counting(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.bincount(x.flatten(), minlength=6)[:6], (x[:, :, None] == x[:, None]).sum(-1)
