# SPDX-License-Identifier: Apache-2.0
"""Images of any shape, cut into tiles whose features are put together again in a loop over the images."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...preparers.tiles import Layout, most_of, side_of
from ...registry import Repro, register_patch


@dataclass(frozen=True)
class _AllImages:
    """Stands in for the size of one image, and means all images.

    Attributes:
        sizes: (images, 2) integers, height and width in pixels.
        count: Number of tiles of all images.
        per_image: Number of tiles that lie between the first of one image and of the next; None when none is unused.
    """

    sizes: torch.Tensor
    count: Any
    per_image: Any

    def first_tiles(self, layout: Layout) -> torch.Tensor:
        """Place of the first tile of each image: (images,)."""
        first: torch.Tensor
        if self.per_image is not None:
            first = torch.arange(self.sizes.shape[0], device=self.sizes.device) * self.per_image
            return first
        used = 1 + layout.down * layout.across
        first = used.cumsum(0) - used
        return first


def place_features(features: torch.Tensor, newline: Any, layout: Layout, first: torch.Tensor, largest: int) -> Any:
    """The features of all images one after the other: the overview, then the rows of the map, without its padding.

    Args:
        features: (tiles, side * side, width).
        newline: (width,) feature that ends each row, or None.
        layout: Of the images.
        first: (images,) places of the overviews.
        largest: Side of the largest map, in features.

    Returns:
        (features, width).
    """
    area, ends = features.shape[1], int(newline is not None)
    side = round(area**0.5)
    step = torch.arange(area + largest * (largest + ends), device=features.device)
    row, column = (step - area) // (largest + ends), (step - area) % (largest + ends)
    is_used = (row < layout.rows[:, None]) & (column < layout.columns[:, None] + ends)
    place = (is_used | (step < area)).flatten().nonzero().squeeze(1)
    image, step = place // step.shape[0], place % step.shape[0]
    row, column = row[step], column[step]
    height, width, rows, columns = (getattr(layout, n)[image] for n in ("height", "width", "rows", "columns"))
    flat = features.flatten(0, 1)

    def at(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y, x = y + layout.top[image], x + layout.left[image]
        tile = 1 + y // side * layout.across[image] + x // side
        inner = y % side * side + x % side
        return flat[(first[image] + torch.where(step < area, 0, tile)) * area + torch.where(step < area, step, inner)]

    y, below = _between(row, height, rows)
    x, beside = _between(column.minimum(columns - 1), width, columns)
    found = at(y, x)
    if layout.rows is not layout.height:  # some images are shrunk
        y1, x1 = (y + 1).minimum(height - 1), (x + 1).minimum(width - 1)
        upper = found * (1 - beside) + at(y, x1) * beside
        lower = at(y1, x) * (1 - beside) + at(y1, x1) * beside
        found = torch.where((step < area)[:, None], found, upper * (1 - below) + lower * below)
    if newline is None:
        return found
    is_end = (step >= area) & (column == columns)
    return torch.where(is_end[:, None], newline.to(found.dtype), found)


def _between(place: torch.Tensor, size: torch.Tensor, shrunk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a place on a shrunk line lies on the line: the point before, and the share of the next, (places, 1)."""
    exact = ((place.float() + 0.5) * (size.float() / shrunk.float()) - 0.5).clamp(min=0)
    before = exact.floor().long().clamp(min=0).minimum(size - 1)
    return before, (exact - before.float())[:, None]


class _Tiled(torch.nn.Module):
    """The fault, for the reproducer: features of tiled images."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.llava_onevision import modeling_llava_onevision as onevision

        vision = {"model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8, "image_size": 8}
        more = {"patch_size": 2, "num_hidden_layers": 1, "num_attention_heads": 2, "vision_use_head": False}
        text = {"model_type": "qwen2", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        heads = {"vocab_size": 9, "num_attention_heads": 2, "num_key_value_heads": 2}
        config = onevision.LlavaOnevisionConfig(
            vision_config={**vision, **more},
            text_config={**text, **heads},
            image_grid_pinpoints=[[8, 8], [8, 16], [16, 8], [16, 16], [32, 16], [40, 40]],
            vision_aspect_ratio="anyres_max_2",
            image_token_index=1,
        )
        self.model = onevision.LlavaOnevisionModel(config)

    def forward(self, tiles: torch.Tensor, heights: torch.Tensor, widths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Features of images (images, 26, 3 * 8 * 8), joined, and the hidden states of their tiles."""
        sizes = torch.stack([heights, widths], 1)
        found = self.model.get_image_features(tiles.reshape(*tiles.shape[:2], 3, 8, 8), sizes)
        return torch.cat(found.pooler_output), found.last_hidden_state


def _tiles() -> dict[str, torch.Tensor]:
    heights, widths = torch.randint(4, 50, (2, 3))
    return {"tiles": torch.rand(3, 26, 192), "heights": heights, "widths": widths}


_TILED = Repro(_Tiled, _tiles, dynamic=True, builds=True)


@register_patch(
    "model",
    "transformers.models.*.modeling_*.Llava*Model.get_image_features",
    "transformers.models.*.modeling_*.Granite4*Model.get_image_features",
    why="the tiles of each image are counted, cut out and split off in Python, by sizes read from a tensor",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_TILED,
)
def _patch_tiled_images(original: Callable[..., Any]) -> Callable[..., Any]:
    """Encode all tiles as if they were of one image, and take the unused ones out of what the encoder returns."""
    signature = inspect.signature(original)
    if "image_size_to_num_patches" not in inspect.unwrap(original).__globals__:
        return original

    @functools.wraps(original)
    def get_image_features(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        given |= given.pop("kwargs", {})
        pixels, sizes, model = given.pop("pixel_values"), given.pop("image_sizes"), given.pop("self")
        is_whole = given.get("batch_num_images") is None and given.get("return_dict") is not False
        if not is_whole or not isinstance(sizes, torch.Tensor):
            return NotImplemented
        per_image = pixels.shape[1] if pixels.ndim == 5 else None
        tiles = pixels.flatten(0, 1) if pixels.ndim == 5 else pixels
        found = original(model, tiles, [_AllImages(sizes, tiles.shape[0], per_image)], **given)
        if per_image is not None:
            layout = Layout.of(sizes, self.config.image_grid_pinpoints, self.config.vision_config.image_size, 1)
            place = torch.arange(per_image, device=sizes.device)
            is_used = (place < 1 + (layout.down * layout.across)[:, None]).flatten()
            for name in ("last_hidden_state", "hidden_states", "attentions"):
                if found.get(name) is not None:
                    found[name] = _used(found[name], is_used)  # not all layers' states are there
        return found

    return get_image_features


def _used(value: Any, is_used: torch.Tensor) -> Any:
    if isinstance(value, tuple):
        return tuple(_used(entry, is_used) for entry in value)
    return value[is_used] if isinstance(value, torch.Tensor) else value


@register_patch(
    "model",
    "transformers.models.*.modeling_*.image_size_to_num_patches",
    why="the number of an image's tiles is counted in Python",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_TILED,
)
def _patch_tile_count(original: Callable[..., Any]) -> Callable[..., Any]:
    """All tiles, where all images are meant."""

    def image_size_to_num_patches(image_size: Any, *_: Any, **__: Any) -> Any:
        return image_size.count if isinstance(image_size, _AllImages) else NotImplemented

    return image_size_to_num_patches


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*Model.pack_image_features",
    why="the features of each image are put together, freed of padding, shrunk and given new lines in a Python loop",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_TILED,
)
def _patch_tile_packing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the features of all images at once."""
    signature = inspect.signature(original)
    counts = "feature_lens" in inspect.unwrap(original).__code__.co_varnames

    def pack_image_features(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs).arguments
        images = bound["image_sizes"][0]
        if not isinstance(images, _AllImages):
            return NotImplemented
        (features,) = bound["image_features"]
        points, tile, side = (
            self.config.image_grid_pinpoints,
            self.config.vision_config.image_size,
            side_of(self.config),
        )
        most = 0
        if "vision_aspect_ratio" in signature.parameters:
            most = most_of(bound.get("vision_aspect_ratio", self.config.vision_aspect_ratio))
        layout = Layout.of(images.sizes, points, tile, side, most)
        largest = max(map(max, points)) // tile * side
        newline = bound.get("image_newline")
        packed = [place_features(features, newline, layout, images.first_tiles(layout), largest)]
        return (packed, None) if counts else packed

    return pack_image_features
