# SPDX-License-Identifier: Apache-2.0
"""What of drawn values is certain."""

from __future__ import annotations

import torch
from onnx_operations import case, real


@case(x=lambda: torch.rand(3, 8) + 0.1)
def all_places_in_any_order(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.multinomial(x, x.shape[1]).sort(1).values, torch.randperm(x.shape[1]).sort().values


@case(x=real(3, 8))
def the_only_place_with_a_weight(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weights = (torch.arange(x.shape[1]) == x.argmax(1, keepdim=True)).float()
    return torch.multinomial(weights, 1), torch.multinomial(weights, 5, replacement=True), torch.bernoulli(weights)


@case(x=real(3, 8))
def bounds_and_shapes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    drawn = torch.rand(x.shape), torch.rand_like(x), x.clone().uniform_(0, 1)
    return *(values.floor() for values in drawn), torch.randn_like(x).isfinite(), torch.randint(0, 1, (x.shape[0],))
