# SPDX-License-Identifier: Apache-2.0
"""Distances between points, which torch computes in one of two ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch

#: Points on either side from which on torch takes the product of matrices.
_FEW = 25


@register_patch(
    "dynamo",
    "torch.cdist",
    why="how distances are computed depends on whether there are more than 25 points, so that a program takes only "
    "fewer, or only more",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(lambda x: torch.cdist(x, x.new_ones(4, 3) * 2), lambda: (torch.rand(9, 3),), dynamic=True),
)
def _patch_cdist(original: Callable[..., Any]) -> Callable[..., Any]:
    """Decide by the side whose size is known; with few points there, without the product, which is less exact."""

    def cdist(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: str | None = None) -> Any:
        sizes = (x1.shape[-2], x2.shape[-2])
        if p != 2.0 or not any(isinstance(size, torch.SymInt) for size in sizes):
            return NotImplemented
        if compute_mode not in (None, "use_mm_for_euclid_dist_if_necessary"):
            return NotImplemented
        many = any(not isinstance(size, torch.SymInt) and size > _FEW for size in sizes)
        prefix = "use" if many else "donot_use"
        return original(x1, x2, p=p, compute_mode=f"{prefix}_mm_for_euclid_dist")

    return cdist
