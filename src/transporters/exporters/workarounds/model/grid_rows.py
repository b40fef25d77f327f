# SPDX-License-Identifier: Apache-2.0
"""Packed images whose patches are merged block by block, some with a feature of its own at the end of each row."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch
from .grids import Patches, grid_of, plain


class _GridAsItem:
    """A grid that says as a list that there is one image, whose height is the grid itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self._tensor[place]

    def tolist(self) -> list[Any]:
        """One image."""
        return [(1, self._tensor, None)]

    def prod(self, dim: int) -> _EveryPatch:
        """Numbers of patches."""
        return _EveryPatch()


class _EveryPatch:
    """Numbers of patches, in whose place a split is told that there is nothing to split."""

    def tolist(self) -> Any:
        """More patches than there are."""
        return torch.iinfo(torch.int64).max


def _blocks(at: Patches, merge: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First patches of whole blocks (blocks,), and all patches of each (blocks, merge ** 2)."""
    row, column = at.place // at.width, at.place % at.width
    is_first = (row % merge == 0) & (column % merge == 0) & (at.frame < at.frames)
    is_whole = (row + merge <= at.height) & (column + merge <= at.width)
    first = (is_first & is_whole).nonzero().squeeze(1)
    step = torch.arange(merge * merge, device=first.device)
    return first, first[:, None] + step // merge * at.width[first][:, None] + step % merge


class _MergesPacked(torch.nn.Module):
    """The fault, for the reproducer: patches of packed images, two by two."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.paddleocr_vl import modeling_paddleocr_vl as paddle

        config = paddle.PaddleOCRVLConfig(vision_config={"hidden_size": 6}, text_config={"hidden_size": 8})
        self.projector = paddle.PaddleOCRProjector(config)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Features of pairs of clips (pairs, 40, 6)."""
        found: torch.Tensor = self.projector(patches.flatten(0, 1), grid_of(patches.shape[0]))
        return found


@register_patch(
    "model",
    "transformers.models.paddleocr_vl.modeling_paddleocr_vl.PaddleOCRProjector.forward",
    why="packed images are split by sizes read from the grid, and merged in a Python loop",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_MergesPacked, lambda: (torch.rand(3, 40, 6),), dynamic=True, builds=True),
)
def _patch_packed_projector(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the patches of each block, of which there are as many for every image as its patches allow."""

    def forward(self: Any, image_features: torch.Tensor, image_grid_thw: Any) -> Any:
        merge, across = self.merge_kernel_size
        if merge != across:
            return NotImplemented
        area = merge * merge
        at = Patches.of(image_grid_thw, image_features.shape[0] // area, area)
        across = at.width // merge
        first = at.start * area + at.frame * at.height * at.width
        first = first + at.place // across * merge * at.width + at.place % across * merge
        step = torch.arange(area, device=first.device)
        taken = first[:, None] + step // merge * at.width[:, None] + step % merge
        states = self.pre_norm(image_features)[taken].flatten(1)
        return self.linear_2(self.act(self.linear_1(states)))

    return forward


class _PacksRows(torch.nn.Module):
    """The fault, for the reproducer: an encoder without layers, whose features end each row with a new line."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.hunyuan_vl import modeling_hunyuan_vl as hunyuan

        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 0, "num_attention_heads": 2}
        more = {"patch_size": 1, "max_image_size": 3, "spatial_merge_size": 2, "text_hidden_size": 6}
        self.model = hunyuan.HunYuanVLVisionTransformer(hunyuan.HunYuanVLVisionConfig(**sizes, **more))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Features of pairs of images (pairs, 40, 3)."""
        grid = grid_of(patches.shape[0], ((1, 4, 4), (1, 4, 6)))
        bounds = torch.tensor([0, 40])
        found: torch.Tensor = self.model(patches.flatten(0, 1), grid, cu_seqlens=bounds).pooler_output
        return found


_ROWS = Repro(_PacksRows, lambda: (torch.rand(3, 40, 3),), dynamic=True, builds=True)


@register_patch(
    "model",
    "transformers.models.hunyuan_vl.modeling_hunyuan_vl.HunYuanVLVisionTransformer.forward",
    "transformers.models.hy_v4_vl.modeling_hy_v4_vl.HYV4VLVisionModel.forward",
    why="hidden states are split by sizes read from the grid, and each image is merged by itself",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_ROWS,
)
def _patch_image_items(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hand all images on as one, with their grid for its size."""

    @functools.wraps(original)
    def forward(self: Any, pixel_values: torch.Tensor, grid_thw: Any, **kwargs: Any) -> Any:
        return original(self, pixel_values, _GridAsItem(plain(grid_thw)), **kwargs)

    return forward


@register_patch(
    "model",
    "transformers.models.hunyuan_vl.modeling_hunyuan_vl.HunYuanVLVisionPatchEmbed.forward",
    "transformers.models.hy_v4_vl.modeling_hy_v4_vl.HYV4VLVisionPatchEmbed.forward",
    why="the table of positions is resized for each image in a Python loop",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_ROWS,
)
def _patch_interpolated_table(original: Callable[..., Any]) -> Callable[..., Any]:
    """Weigh the four positions around every patch."""
    stretch = 0.1 if "hy_v4_vl" in original.__module__ else 0.0  # HYV4 adds this to the size that it scales to

    def forward(self: Any, pixel_values: torch.Tensor, grid_thw: Any) -> Any:
        if self.config.interpolate_mode != "bilinear":
            return NotImplemented
        shape = (self.config.num_channels, self.patch_size, self.patch_size)
        pixels = pixel_values.reshape(-1, *shape).to(dtype=self.patch_embedding.weight.dtype)
        embedded = self.patch_embedding(pixels).flatten(1)
        edge = self.position_edge
        table = self.position_embedding.weight[1:].float()
        at = Patches.of(grid_thw, pixel_values.shape[0])
        top, bottom, below = _around(at.place // at.width, at.height, edge, stretch)
        left, right, beside = _around(at.place % at.width, at.width, edge, stretch)
        upper = table[top * edge + left] * (1 - beside) + table[top * edge + right] * beside
        lower = table[bottom * edge + left] * (1 - beside) + table[bottom * edge + right] * beside
        return (embedded + (upper * (1 - below) + lower * below).to(embedded.dtype)).unsqueeze(0)

    return forward


def _around(
    place: torch.Tensor, size: torch.Tensor, side: int, stretch: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The points of a line of ``side`` points before and after a place on a line of another size, and the share."""
    exact = ((place.float() + 0.5) * (side / (size + stretch)) - 0.5).clamp(min=0)
    exact = torch.where(size == side, place.float(), exact)  # torch then copies, whatever the factor
    before = exact.floor().long().clamp(max=side - 1)
    return before, (before + 1).clamp(max=side - 1), (exact - before.float()).unsqueeze(-1)


@register_patch(
    "model",
    "transformers.models.hunyuan_vl.modeling_hunyuan_vl.HunYuanVLVisionPatchMerger.forward",
    "transformers.models.hy_v4_vl.modeling_hy_v4_vl.HYV4VLVisionPatchMerger.forward",
    why="one image at a time is laid out, merged by a convolution, and given the ends of its rows",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_ROWS,
)
def _patch_row_ends(original: Callable[..., Any]) -> Callable[..., Any]:
    """Merge all blocks at once, and put what begins and ends rows and images between them."""

    def forward(self: Any, hidden_states: torch.Tensor, size: Any) -> Any:
        if not isinstance(size[0], torch.Tensor):
            return NotImplemented
        states, merge = self.before_rms(hidden_states)[0], self.spatial_merge_size
        at = Patches.of(size[0], states.shape[0])
        first, taken = _blocks(at, merge)
        blocks = states[taken].transpose(1, 2).flatten(1)
        blocks = self.proj_act(F.linear(blocks, self.proj_conv.weight.flatten(1), self.proj_conv.bias))
        blocks = F.linear(blocks, self.proj_out.weight.flatten(1), self.proj_out.bias)
        row, column = at.place[first] // at.width[first] // merge, at.place[first] % at.width[first] // merge
        ends_row = column == at.width[first] // merge - 1
        ends = self.image_newline.to(states.dtype).expand_as(blocks)
        parts, are_there = [blocks, ends], [torch.ones_like(ends_row), ends_row]
        if hasattr(self, "mlp"):
            begins_image = (row == 0) & (column == 0)
            ends_image = ends_row & (row == at.height[first] // merge - 1)
            parts = [self.mlp(part) for part in parts]
            edges = [edge.to(states.dtype).expand_as(parts[0]) for edge in (self.image_begin, self.image_end)]
            parts, are_there = [edges[0], *parts, edges[1]], [begins_image, *are_there, ends_image]
        place = torch.stack(are_there, 1).flatten().nonzero().squeeze(1)
        packed = torch.stack(parts, 1).flatten(0, 1)[place].unsqueeze(0)
        return self.after_rms(packed) if hasattr(self, "after_rms") else packed

    return forward


class _SplitRows(torch.nn.Module):
    """The fault, for the reproducer: features that are split by image."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.hy_v4_vl import modeling_hy_v4_vl as hy

        self.config, self.owner, self.vision_tower = hy.HYV4VLConfig(), hy.HYV4VLModel, _Tower()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The features of all images (images, 16, pixels), as a model joins them again."""
        grid = grid_of(images.shape[0], ((1, 4, 4),))
        found = self.owner.get_image_features(self, images.flatten(0, 1), image_grid_thw=grid)
        return torch.cat(found.pooler_output)


class _Tower(torch.nn.Module):
    """Stands in for a vision encoder: of 16 patches, six are features."""

    dtype = torch.float32

    def forward(self, pixel_values: torch.Tensor, **_: Any) -> Any:
        """Features (1, features, pixels) of packed patches (patches, pixels)."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return BaseModelOutputWithPooling(
            pooler_output=pixel_values.reshape(-1, 16, pixel_values.shape[1])[:, :6].flatten(0, 1)[None]
        )


@register_patch(
    "model",
    "transformers.models.hunyuan_vl.modeling_hunyuan_vl.HunYuanVLModel.get_image_features",
    "transformers.models.hy_v4_vl.modeling_hy_v4_vl.HYV4VLModel.get_image_features",
    why="pooled features are split into one tensor per image by sizes read from the grid, which fixes their number",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_SplitRows, lambda: (torch.rand(3, 16, 6),), dynamic=True, builds=True),
)
def _patch_row_split(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the features of all images in one tensor; the runner splits them."""
    from transformers.utils.generic import accepts_precomputed_kwargs

    def get_image_features(self: Any, pixel_values: torch.Tensor, image_grid_thw: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("return_dict") is False:
            return NotImplemented
        pixels = pixel_values.to(next((p.dtype for p in self.vision_tower.parameters()), pixel_values.dtype))
        found = self.vision_tower(pixels, grid_thw=plain(image_grid_thw), **kwargs)
        found.pooler_output = [found.pooler_output[0]]
        return found

    wrapped: Callable[..., Any] = accepts_precomputed_kwargs("image")(get_image_features)
    return wrapped
