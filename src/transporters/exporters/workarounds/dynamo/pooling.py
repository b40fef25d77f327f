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


def _average(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: a pool makes one pixel of an image of 4 x 4, and its channels come last."""
    smaller = torch.nn.functional.max_pool2d(x, 4).permute(0, 2, 3, 1).contiguous()
    return torch.nn.functional.adaptive_avg_pool2d(smaller.permute(0, 3, 1, 2), 1)


@register_patch(
    "dynamo",
    "torch.nn.functional.adaptive_avg_pool2d",
    why="an average over a whole image asks for its layout with its sizes, so the trace writes down that they are more "
    "than 1, and the program refuses images that shrink to one row",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(_average, lambda: (torch.rand(2, 3, 8, 8),), dynamic=True),
)
def _patch_average_of_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take the mean, which is what torch does behind its question."""

    def adaptive_avg_pool2d(x: torch.Tensor, output_size: Any) -> Any:
        if output_size not in (1, (1, 1), [1, 1]):
            return NotImplemented
        return x.mean((-2, -1), keepdim=True)

    return adaptive_avg_pool2d
