# SPDX-License-Identifier: Apache-2.0
"""Layers that lay packed patches out on their grid, image by image."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch
from .grids import Patches, grid_of, plain


class _KeptGrid:
    """A grid that is itself when it is asked for a list, and otherwise the tensor that it stands in for."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self._tensor[place]

    def tolist(self) -> _KeptGrid:
        """The grid."""
        return self


class _ConvolvesFrames(torch.nn.Module):
    """The fault, for the reproducer: an encoder of one convolution over the grid of each frame."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.lfm3_vl import modeling_lfm3_vl as lfm3

        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = lfm3.Lfm3VlVisionConfig(**sizes, patch_size=1, temporal_patch_size=2, layer_types=["conv"])
        self.model = lfm3.Lfm3VlVisionModel(config)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Hidden states of pairs of clips (pairs, 40, 6)."""
        grid, count = grid_of(patches.shape[0]), patches.shape[0] * 40
        at = Patches.of(grid, count)
        given = {"position_ids": torch.stack(at.by_blocks(2), 1), "cu_seqlens": torch.tensor([0, 40])}
        found: torch.Tensor = self.model(patches.flatten(0, 1), grid, **given).last_hidden_state
        return found


_FRAMES = Repro(_ConvolvesFrames, lambda: (torch.rand(3, 40, 6),), dynamic=True, builds=True)


@register_patch(
    "model",
    "transformers.models.lfm3_vl.modeling_lfm3_vl.Lfm3VlVisionModel.forward",
    why="the grid is handed to the layers as a list, which fixes the number of images",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_FRAMES,
)
def _patch_grid_list(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hand it on as it is."""

    @functools.wraps(original)
    def forward(self: Any, pixel_values: torch.Tensor, grid_thw: Any, **kwargs: Any) -> Any:
        if isinstance(grid_thw, _KeptGrid):
            return NotImplemented
        return original(self, pixel_values, _KeptGrid(plain(grid_thw)), **kwargs)

    return forward


@register_patch(
    "model",
    "transformers.models.lfm3_vl.modeling_lfm3_vl.Lfm3VlVisionShortConv.forward",
    why="each image is laid out on its grid and convolved in a Python loop",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_FRAMES,
)
def _patch_frame_convolution(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the neighbours of every patch, with nothing beyond the edge of its frame, and weigh them."""

    def forward(self: Any, hidden_states: torch.Tensor, grid_thw: Any, **kwargs: Any) -> Any:
        if isinstance(grid_thw, list):
            return NotImplemented
        entrance, exit_, content = self.in_proj(hidden_states).chunk(3, dim=-1)
        gated = entrance * content
        weight = self.spatial_conv.weight.flatten(1).t()
        side, merge = self.spatial_conv.kernel_size[0], self.spatial_merge_size
        at = Patches.of(grid_thw, gated.shape[0])
        step = torch.arange(side * side, device=gated.device)
        row, column = (place[:, None] for place in at.by_blocks(merge))
        row, column = row + step // side - side // 2, column + step % side - side // 2
        height, width = at.height[:, None], at.width[:, None]
        is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        block = row // merge * (width // merge) + column // merge
        place = block * merge**2 + row % merge * merge + column % merge
        taken = torch.where(is_inside, (at.start + at.frame * at.height * at.width)[:, None] + place, 0)
        neighbours = torch.where(is_inside[:, :, None], gated[taken], 0.0)
        return self.out_proj(exit_ * (neighbours * weight).sum(1))

    return forward


def smooth_weights(place: torch.Tensor, size: torch.Tensor, side: int) -> torch.Tensor:
    """Weights of a line of ``side`` points in the points of a line that it is resized to, with antialiasing.

    Args:
        place: (points,) places on the resized line.
        size: (points,) length of the resized line.
        side: Length of the line.

    Returns:
        (points, side) float32.
    """
    scale = side / size.float()
    reach = scale.clamp(min=1.0)
    centre = (place.float() + 0.5) * scale
    distance = (torch.arange(side, device=place.device) + 0.5 - centre[:, None]) / reach[:, None]
    weight = (1 - distance.abs()).clamp(min=0)
    return weight / weight.sum(-1, keepdim=True)


class _ResizesTable(torch.nn.Module):
    """The fault, for the reproducer: a table of 3 by 3 positions, resized for each image."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.cosmos3_edge import modeling_cosmos3_edge as cosmos

        config = cosmos.Cosmos3EdgeVisionConfig(hidden_size=8, num_patches=9, patch_size=1, spatial_merge_size=2)
        self.embeddings = cosmos.Cosmos3EdgeVisionEmbeddings(config)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Embedded patches of pairs of clips (pairs, 40, 3)."""
        found: torch.Tensor = self.embeddings(patches.flatten(0, 1), grid_of(patches.shape[0]))
        return found


@register_patch(
    "model",
    "transformers.models.cosmos3_edge.modeling_cosmos3_edge.Cosmos3EdgeVisionEmbeddings.forward",
    why="the table of positions is resized for each image in a Python loop",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_ResizesTable, lambda: (torch.rand(3, 40, 3),), dynamic=True, builds=True),
)
def _patch_resized_table(original: Callable[..., Any]) -> Callable[..., Any]:
    """Weigh the table's rows and columns for every patch as the resizing does."""

    def forward(self: Any, pixel_values: torch.Tensor, grid_thw: Any) -> torch.Tensor:
        embedded: torch.Tensor = self.patch_embedding(pixel_values.to(dtype=self.patch_embedding.weight.dtype))
        side = self.position_embedding_size
        table = self.position_embedding.weight.float().unflatten(0, (side, side))
        at = Patches.of(grid_thw, embedded.shape[0])
        row, column = at.by_blocks(self.config.spatial_merge_size)
        above, beside = smooth_weights(row, at.height, side), smooth_weights(column, at.width, side)
        weights = (above[:, :, None] * beside[:, None, :]).flatten(1)
        positions: torch.Tensor = weights @ table.flatten(0, 1)
        return embedded + positions.to(embedded.dtype)

    return forward
