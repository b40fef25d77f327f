# SPDX-License-Identifier: Apache-2.0
"""Convolutions, pools, resampling, and normalizations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from onnx_operations import CASES, Make, case, enter, real
from torch import nn

from transporters.exporters.registry import Repro


class Brain(nn.Module):
    """Convolutions in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        shapes: list[tuple[int, ...]] = [(4, 3, 3), (4,), (2, 4, 3, 3), (2,), (4, 2, 2, 2)]
        tensors = [torch.randint(-2, 3, shape).bfloat16() / 2 for shape in shapes]
        self.line, self.image, self.back = tensors[:2], tensors[2:4], tensors[4]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x (batch, 3, length), in quarters, so that no sum is rounded."""
        x = F.conv1d(x.bfloat16(), *self.line, padding=1)
        y = F.conv2d(x[:, :, None].expand(-1, -1, 5, -1), *self.image, stride=2)
        return x, y, F.conv_transpose2d(x[:, :, None], self.back, stride=2)


enter("bfloat16_convolutions", Brain(), x=lambda: torch.randint(-2, 3, (2, 3, 9)) / 2)


class Convolutions(nn.Module):
    """The kinds of convolutions that models have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.same = nn.Conv1d(3, 6, 3, padding="same", dilation=2)
        self.deep = nn.Conv1d(6, 6, 4, groups=6, padding=3)
        self.back = nn.ConvTranspose1d(6, 2, 4, stride=2, padding=1, output_padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x (batch, 3, length)."""
        y = self.same(x)
        return y, self.deep(y)[..., : x.shape[-1]], self.back(y)


enter("convolutions", Convolutions(), x=real(2, 3, 9))
enter("convolution_3d", nn.Conv3d(2, 3, (1, 2, 2), stride=(1, 2, 2)), input=real(2, 2, 3, 6, 8))
enter("transposed_2d", nn.ConvTranspose2d(3, 4, 3, stride=2, groups=1, dilation=2), input=real(2, 3, 4, 5))


@case(x=real(2, 3, 4, 5), y=real(4, 3, 2, 2))
def convolution_with_computed_weights(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, torch.tanh(y), padding=1)


@case(x=real(2, 3, 9, 8))
def max_pools(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    lines = F.max_pool1d(x[:, :, 0], 2), F.max_pool1d(x[:, :, 0], 3, 2, ceil_mode=True)
    return F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.max_pool2d(x, 2, ceil_mode=True), *lines


@case(x=real(2, 3, 9, 8))
def max_pool_places(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.max_pool2d(x, 2, return_indices=True)


@case(x=real(2, 3, 9, 8))
def average_pools(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rims = F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 2)
    whole = F.avg_pool2d(x, 2, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)
    return *rims, *whole, F.avg_pool1d(x[:, :, 0], 3, 1, 1)


@case(x=real(2, 3, 9, 8))
def average_pools_to_a_size(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    flat = F.adaptive_avg_pool1d(x[:, :, 0], 1), F.adaptive_avg_pool1d(x[:, :, 0], 3)
    return F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_avg_pool2d(x, (None, 1)), *flat


@case(x=real(2, 3, 9, 8))
def max_pools_to_a_size(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool1d(x[:, :, 0], 1)


def faint(*shape: int) -> Make:
    """Small values: the weights of a position are as exact as the position, which is a large float."""
    return lambda: torch.randn(shape) / 16


def resampled(x: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    """To a fixed size, by a factor, and to a size that follows from the input."""
    larger = x.shape[-2] * 2 + 1, x.shape[-1] // 2 + 2
    sizes = [F.interpolate(x, size=size, **options) for size in ((5, 11), (3, 2), larger)]
    by_two = F.interpolate(x, scale_factor=2, **options)
    if options.get("antialias"):  # torch itself is wrong when it smooths an image to a width of one
        return *sizes, by_two
    return *sizes, by_two, F.interpolate(x, scale_factor=0.5, **options), F.interpolate(x, size=(3, 1), **options)


def both_corners(x: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    """With the corners aligned, and without."""
    return *resampled(x, align_corners=True, **options), *resampled(x, align_corners=False, **options)


for mode in ("bilinear", "bicubic"):
    for smooth in (False, True):
        options = {"mode": mode, "antialias": smooth}
        enter(f"{mode}{'_antialias' * smooth}", lambda x, o=options: both_corners(x, **o), x=faint(2, 3, 6, 8))
enter("nearest", lambda x: resampled(x, mode="nearest"), x=real(2, 3, 6, 8))
enter("nearest_exact", lambda x: resampled(x, mode="nearest-exact"), x=real(2, 3, 6, 8))
enter("area", lambda x: F.interpolate(x, size=(3, 4), mode="area"), x=real(2, 3, 6, 8))


@case(x=faint(2, 3, 9), y=faint(2, 3, 4, 5, 6))
def resampled_lines_and_blocks(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    line = F.interpolate(x, size=13, mode="linear"), F.interpolate(x, scale_factor=2, mode="linear", align_corners=True)
    block = F.interpolate(y, size=(2, 7, 6), mode="trilinear"), F.interpolate(y, scale_factor=2)
    return *line, *block, F.interpolate(x, size=5)


@case(x=real(2, 3, 6, 7), grid=lambda: torch.rand(2, 4, 5, 2) * 2.6 - 1.3)
def grid_sample(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rims: tuple[Any, ...] = ("zeros", "border", "reflection")
    made = [F.grid_sample(x, grid, padding_mode=rim, align_corners=c) for rim in rims for c in (False, True)]
    return *made, F.grid_sample(x, grid, mode="nearest", align_corners=False), F.grid_sample(x, grid, "bicubic")


class Norms(nn.Module):
    """Normalizations with weights that are not one and zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        kinds = nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True), nn.InstanceNorm1d(4), nn.BatchNorm1d(4)
        self.kinds = nn.ModuleList([*kinds, nn.BatchNorm1d(4, affine=False)])
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            if tensor.is_floating_point():
                tensor.data = torch.rand(tensor.shape) + (0.5 if "var" in name else 0.0)
        self.layer = nn.LayerNorm(4)
        self.root = nn.RMSNorm(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x (batch, 4, length)."""
        turned = x.transpose(1, 2)
        return *(kind(x) for kind in self.kinds), self.layer(turned), self.root(turned)


enter("normalizations", Norms(), x=real(2, 4, 9))
enter("group_norm_of_images", nn.GroupNorm(3, 6), input=real(2, 6, 4, 5))
enter("local_response_norm", nn.LocalResponseNorm(2), input=real(2, 6, 4, 5))
enter("weight_norm", nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 3)), input=real(2, 2, 7))

# A transposed convolution and a batch norm of 16-bit floats go through the same kernels.
CASES["float16_convolution"] = Repro(nn.Conv2d(3, 4, 3).half(), lambda: {"input": torch.randn(2, 3, 6, 7).half()})
