# SPDX-License-Identifier: Apache-2.0
"""Questions about a tensor's memory layout that only some sizes answer with yes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._prims_common import is_contiguous_or_false

from ...registry import Repro, register_patch


def _cut_what_may_be_whole(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: for an even width the cut takes everything, and nothing is to be copied."""
    padded = F.pad(x, (0, x.shape[1] % 2)) * 2
    return padded[:, : x.shape[1]].contiguous().view(-1)


@register_patch(
    "dynamo",
    "torch.Tensor.contiguous",
    why="whether a slice is contiguous depends on the sizes, and the answer for the sample becomes a guard: the "
    "program "
    "then takes either sizes that need a copy or sizes that need none",
    issue="https://github.com/pytorch/pytorch/issues/165032",
    needed="torch>=2.13",
    repro=Repro(_cut_what_may_be_whole, lambda: (torch.rand(3, 6),), dynamic=True),
)
def _patch_contiguous(original: Callable[..., Any]) -> Callable[..., Any]:
    """Copy wherever contiguity does not hold for all sizes."""

    def contiguous(self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
        if memory_format is not torch.contiguous_format or not any(isinstance(n, torch.SymInt) for n in self.shape):
            return NotImplemented
        if is_contiguous_or_false(self):
            return NotImplemented
        return self.clone(memory_format=torch.contiguous_format)

    return contiguous


def _convolve_channels_last(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: a pool makes one pixel of an image of 4 x 4, and its channels come last."""
    smaller = F.max_pool2d(x, 4).permute(0, 2, 3, 1).contiguous()
    return F.conv2d(smaller.permute(0, 3, 1, 2), x.new_ones(4, 3, 1, 1))


@register_patch(
    "dynamo",
    "torch._C._conv_determine_backend_memory_format",
    why="the layout of what a convolution gives is asked for with its sizes, so the trace writes down that an axis is "
    "longer than 1, and the program refuses images that shrink to one row",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(_convolve_channels_last, lambda: (torch.rand(2, 3, 8, 8),), dynamic=True),
)
def _patch_layout_of_convolutions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take the sample's answer and hold no size to it: along an axis of size 1 all layouts are one."""
    return without_guards(original)


def without_guards(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of a symbolic tensor, which leaves no guard behind."""

    def answer(tensor: Any, *others: Any, **options: Any) -> Any:
        env = getattr(getattr(tensor, "fake_mode", None), "shape_env", None)
        if env is None:
            return NotImplemented
        with env.suppress_guards():
            return original(tensor, *others, **options)

    return answer
