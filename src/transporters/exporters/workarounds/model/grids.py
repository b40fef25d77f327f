# SPDX-License-Identifier: Apache-2.0
"""Computations on packed images that a model carries out image by image, by the rows of their grid."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...registry import Repro, register_patch


@dataclass(frozen=True)
class Patches:
    """Where each of the packed patches lies; all are integer tensors (patches,).

    Attributes:
        start: Place of the first patch of its image.
        frames: Number of frames, of rows, and of columns of its image.
        height: See ``frames``.
        width: See ``frames``.
        frame: The frame of its image that it lies in.
        place: Its place in the frame.
    """

    start: torch.Tensor
    frames: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor
    frame: torch.Tensor
    place: torch.Tensor

    @classmethod
    def of(cls, grid: Any, count: Any, merged: int = 1) -> Patches:
        """Take a grid apart.

        Args:
            grid: (images, 3) integers: frames, rows, columns.
            count: Number of patches, or features, of all images.
            merged: Number of patches that became one feature.

        What lies behind the last image counts as further frames of it.
        """
        grid = plain(grid)
        sizes = grid.prod(-1) // merged
        ends = sizes.cumsum(0)
        position = torch.arange(count, device=grid.device)
        image = (position[:, None] >= ends[None, :]).sum(-1).clamp(max=grid.shape[0] - 1)
        frames, height, width = grid[image].unbind(-1)
        start = (ends - sizes)[image]
        area = height * width // merged
        return cls(start, frames, height, width, (position - start) // area, (position - start) % area)

    def by_blocks(self, merge: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column of each patch, where the blocks of ``merge ** 2`` patches follow each other."""
        block = self.place // merge**2
        across = self.width // merge
        row = block // across * merge + self.place // merge % merge
        return row, block % across * merge + self.place % merge


def plain(grid: Any) -> torch.Tensor:
    """The tensor that a grid is, or that it stands in for."""
    tensor: torch.Tensor = getattr(grid, "_tensor", grid)
    return tensor


#: Two images, or clips, of different shape.
_SHAPES = ((1, 4, 4), (2, 2, 6))


def grid_of(count: Any, shapes: tuple[tuple[int, int, int], ...] = _SHAPES) -> torch.Tensor:
    """A grid (``count`` times the shapes, 3), for reproducers."""
    return torch.tensor(shapes).repeat(count, 1)


class _PoolsFrames(torch.nn.Module):
    """The fault, for the reproducer: patches in pairs of 2 by 2, averaged over the frames."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.kimi_k25 import modeling_kimi_k25 as kimi

        self.owner = kimi.Kimi_K25VisionModel

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Merged patches of all clips (pairs of clips, 40, width)."""
        found: torch.Tensor = self.owner.temporal_merge(self, patches.flatten(0, 1), grid_of(patches.shape[0]), 2, 2)
        return found


@register_patch(
    "model",
    "transformers.models.kimi_k25.modeling_kimi_k25.Kimi_K25VisionModel.temporal_merge",
    why="the numbers of patches and of merged patches are read from the grid as plain numbers",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_PoolsFrames, lambda: (torch.rand(3, 40, 6),), dynamic=True, builds=True),
)
def _patch_temporal_merge(original: Callable[..., Any]) -> Callable[..., Any]:
    """Add the frames up where the first one lies, and read the merged patches off from there."""

    def temporal_merge(
        self: Any, hidden_states: torch.Tensor, grid_thw: Any, kernel_height: int, kernel_width: int, kwargs: Any = None
    ) -> torch.Tensor:
        at = Patches.of(grid_thw, hidden_states.shape[0])
        weighted = hidden_states.float() * (1.0 / at.frames.float())[:, None]
        summed = torch.zeros_like(weighted).index_add(0, at.start + at.place, weighted)
        row, column = at.place // at.width, at.place % at.width
        is_corner = (at.frame == 0) & (row % kernel_height == 0) & (column % kernel_width == 0)
        corner = is_corner.nonzero().squeeze(1)
        below, right = torch.meshgrid(
            torch.arange(kernel_height, device=corner.device), torch.arange(kernel_width, device=corner.device)
        )
        taken = corner[:, None] + below.flatten() * at.width[corner][:, None] + right.flatten()
        return summed[taken].to(hidden_states.dtype)

    return temporal_merge


class _SplitClips(torch.nn.Module):
    """The fault, for the reproducer: features that are split by clip."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.kimi_k25 import modeling_kimi_k25 as kimi

        self.config, self.owner = kimi.Kimi_K25Config(), kimi.Kimi_K25Model
        self.vision_tower, self.mm_projector = _Tower(), torch.nn.Flatten(2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The features of all images (images, 16, pixels), as a model joins them again."""
        grid = grid_of(images.shape[0], ((1, 4, 4),))
        found = self.owner.get_image_features(self, images.flatten(0, 1), image_grid_thw=grid)
        return torch.cat(found.pooler_output)


class _Tower(torch.nn.Module):
    """Stands in for a vision encoder: four patches become one feature."""

    merge_kernel_size = (2, 2)

    def forward(self, pixel_values: torch.Tensor, **_: Any) -> Any:
        """Features of packed patches (patches, pixels)."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return BaseModelOutputWithPooling(pooler_output=pixel_values.reshape(-1, 4, pixel_values.shape[1])[:, :1])


@register_patch(
    "model",
    "transformers.models.kimi_k25.modeling_kimi_k25.Kimi_K25Model.get_image_features",
    why="pooled features are split into one tensor per clip by sizes read from the grid, which fixes their number",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_SplitClips, lambda: (torch.rand(3, 16, 6),), dynamic=True, builds=True),
)
def _patch_clip_split(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the features of all clips in one tensor; the runner splits them."""

    @functools.wraps(original)
    def get_image_features(self: Any, pixel_values: torch.Tensor, image_grid_thw: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("return_dict") is False:
            return NotImplemented
        found = self.vision_tower(pixel_values, grid_thw=plain(image_grid_thw), **kwargs)
        found.pooler_output = [self.mm_projector(found.pooler_output).squeeze(1)]
        return found

    return get_image_features


class _SlicesFrames(torch.nn.Module):
    """The fault, for the reproducer: even frames beside odd ones, an image beside itself."""

    spatial_merge_size = 2

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe as ernie

        self.owner = ernie.Ernie4_5_VLMoeVariableResolutionResamplerModel

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Pairs of frames of three clips each (triples of clips, 22, width)."""
        shapes = (*_SHAPES, (3, 2, 8))
        found: torch.Tensor = self.owner._temporal_slicing(
            self, features.flatten(0, 1), grid_of(features.shape[0], shapes)
        )
        return found


@register_patch(
    "model",
    "transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe.Ernie4_5_VLMoeVariableResolutionResamplerModel._temporal_slicing",
    why="the places of even and odd frames are collected in a loop over the grid",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_SlicesFrames, lambda: (torch.rand(3, 22, 6),), dynamic=True, builds=True),
)
def _patch_temporal_slicing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Find the even frames that have a partner, and the partners one frame on; an image is its own."""

    def _temporal_slicing(self: Any, hidden_states: torch.Tensor, grid_thw: Any) -> torch.Tensor:
        merged = self.spatial_merge_size**2
        at = Patches.of(grid_thw, hidden_states.shape[0], merged)
        is_image = at.frames == 1
        has_partner = (at.frame % 2 == 0) & (at.frame + torch.where(is_image, 0, 1) < at.frames)
        first = has_partner.nonzero().squeeze(1)
        ahead = torch.where(is_image, 0, at.height * at.width // merged)[first]
        return torch.cat([hidden_states[first], hidden_states[first + ahead]], dim=-1)

    return _temporal_slicing
