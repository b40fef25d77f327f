# SPDX-License-Identifier: Apache-2.0
"""Padding whose width is worked out from the image's size in Python numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


class _SamePadding(torch.nn.Module):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, kernel_size=3, stride=2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Convolve images (batch, 3, height, width), padded so that the size becomes half of theirs, rounded up."""
        from transformers.models.mobilenet_v2 import modeling_mobilenet_v2 as mobilenet_v2

        result: torch.Tensor = self.conv(mobilenet_v2.apply_tf_padding(images, self.conv))
        return result


@register_patch(
    "model",
    "transformers.models.mobilenet_v1.modeling_mobilenet_v1.apply_tf_padding",
    "transformers.models.mobilenet_v2.modeling_mobilenet_v2.apply_tf_padding",
    why="the height and the width are made Python numbers, which freezes them",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_SamePadding, lambda: (torch.rand(2, 3, 8, 10),), dynamic=True, builds=True),
)
def _patch_same_padding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pad by as much as ``ceil(size / stride)`` outputs need more than there is."""

    def apply_tf_padding(features: torch.Tensor, conv_layer: torch.nn.Conv2d) -> torch.Tensor:
        for axis in (-1, -2):
            stride, kernel = int(conv_layer.stride[axis]), int(conv_layer.kernel_size[axis])
            features = _padded(features, axis, stride, kernel, int(conv_layer.dilation[axis]))
        return features

    return apply_tf_padding


def _padded(features: torch.Tensor, axis: int, stride: int, kernel: int, dilation: int) -> torch.Tensor:
    """Pad one axis with zeros on both sides.

    Where the stride is 1 the width is the same for all sizes. Else rows are gathered: the result's size is then
    ``(outputs - 1) * stride + kernel`` in so many words, and sizes stay simple through a stack of such layers.
    """
    size = features.shape[axis]
    if stride == 1 or dilation > 1:
        more = max(kernel - 1, 0) if stride == 1 else _more(size, stride, kernel)
        widths = [more // 2 * dilation, (more - more // 2) * dilation]
        return F.pad(features, widths if axis == -1 else [0, 0, *widths])
    outputs = (size + stride - 1) // stride
    before = _more(size, stride, kernel) // 2
    rows = torch.arange((outputs - 1) * stride + kernel, device=features.device) - before
    inside = ((rows >= 0) & (rows < size)).to(features.dtype)
    found = features.index_select(axis, rows.clamp(0, size - 1))
    padded: torch.Tensor = found * (inside if axis == -1 else inside[:, None])
    return padded


def _more(size: Any, stride: int, kernel: int) -> Any:
    """By how much ``ceil(size / stride)`` outputs need more than ``size``."""
    return torch.sym_max(kernel - 1 - (size - 1) % stride, 0)  # type: ignore[no-untyped-call]
