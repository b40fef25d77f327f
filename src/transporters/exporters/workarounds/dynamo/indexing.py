# SPDX-License-Identifier: Apache-2.0
"""Reading along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


def _best(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer."""
    return torch.take_along_dim(x, x.argsort(dim=1, stable=True)[:, :1], dim=1)


@register_patch(
    "dynamo",
    "torch.take_along_dim",
    "torch.Tensor.take_along_dim",
    why="torch broadcasts the two tensors by their sample sizes, which freezes them",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(_best, lambda: (torch.randn(4, 6),), dynamic=True),
)
def _patch_take_along_dim(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gather, after the sizes apart from the axis have been made alike."""

    def take_along_dim(x: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        if dim is None:
            return x.flatten().gather(0, indices.flatten())
        axis = dim % x.ndim
        taken = [slice(None)] * x.ndim
        taken[axis] = slice(0, 1)
        joint = torch.ops.aten.broadcast_tensors([x[tuple(taken)], indices[tuple(taken)]])[0]
        shape = [-1 if place == axis else size for place, size in enumerate(joint.shape)]
        return x.expand(shape).gather(axis, indices.expand(shape))

    return take_along_dim
