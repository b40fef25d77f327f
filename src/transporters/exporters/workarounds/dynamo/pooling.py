# SPDX-License-Identifier: Apache-2.0
"""Pools over an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


@register_patch(
    "dynamo",
    "torch.nn.functional.max_pool1d",
    why="torch pools a line in a way that takes its length for a number, which freezes it",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(lambda x: torch.nn.functional.max_pool1d(x, 3, 2), lambda: (torch.randn(2, 3, 9),), dynamic=True),
)
def _patch_max_pool1d(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pool an image that is one line high."""

    def max_pool1d(
        x: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        size, step, rim, gap = (
            value[0] if isinstance(value, (tuple, list)) else value
            for value in (kernel_size, stride or kernel_size, padding, dilation)
        )
        pool: Any = torch.nn.functional.max_pool2d
        made = pool(x.unsqueeze(-2), (1, size), (1, step), (0, rim), (1, gap), ceil_mode, return_indices)
        return tuple(part.squeeze(-2) for part in made) if return_indices else made.squeeze(-2)

    return max_pool1d
