# SPDX-License-Identifier: Apache-2.0
"""Images that are cut into tiles (`image_grid_pinpoints`): how the tiles lie, and the features of each image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from .base import Preparer


@dataclass(frozen=True)
class Layout:
    """How the tiles of images lie, and which part of their map is the image; all are tensors (images,).

    A map is ``down * side`` by ``across * side`` features, of which a border is padding. What is left may be shrunk.

    Attributes:
        down: Tiles above each other.
        across: Tiles beside each other.
        top: Rows of padding above the image.
        left: Columns of padding before the image.
        height: Rows of the image.
        width: Columns of the image.
        rows: Rows of features that it is shrunk to, else its height.
        columns: Columns of features that it is shrunk to, else its width.
    """

    down: torch.Tensor
    across: torch.Tensor
    top: torch.Tensor
    left: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor

    @classmethod
    def of(cls, sizes: torch.Tensor, pinpoints: Any, tile: int, side: int, most: int = 0) -> Layout:
        """Lay images out as the models do.

        Args:
            sizes: (images, 2) integers, height and width in pixels.
            pinpoints: Sizes in pixels that an image can be padded to.
            tile: Side of a tile in pixels.
            side: Side of a tile in features.
            most: Tiles' worth of features that an image may have before it is shrunk; 0 for any number.
        """
        best = best_resolution(sizes, torch.tensor(pinpoints, device=sizes.device))
        down, across = (best // tile).unbind(1)
        high, wide = down * side, across * side
        height, width = sizes.double().unbind(1)
        is_flat = width / height > wide.double() / high.double()
        # As in Python, where round(x, 7) comes before int(x).
        new_height = (height * (wide / width) + 5e-8).long()
        new_width = (width * (high / height) + 5e-8).long()
        top = torch.where(is_flat, (high - new_height) // 2, 0)
        left = torch.where(is_flat, 0, (wide - new_width) // 2)
        high, wide = high - 2 * top, wide - 2 * left
        rows, columns = high, wide
        if most:
            ratio = (high * wide / (most * side**2)).double().sqrt()
            ratio = torch.where(ratio > 1.1, ratio, 1.0)
            rows, columns = (torch.div(size.double(), ratio, rounding_mode="floor").long() for size in (high, wide))
        return cls(down, across, top, left, high, wide, rows, columns)


def best_resolution(sizes: torch.Tensor, pinpoints: torch.Tensor) -> torch.Tensor:
    """The sizes (images, 2) that waste least of images (images, 2), as `select_best_resolution` finds them."""
    height, width = sizes.double()[:, :, None].unbind(1)
    scale = torch.minimum(pinpoints[:, 1] / width, pinpoints[:, 0] / height)
    fitted = (width * scale).long() * (height * scale).long()
    effective = torch.minimum(fitted, sizes.prod(1, keepdim=True))
    wasted = pinpoints.prod(1) - effective
    is_best = effective == effective.amax(1, keepdim=True)
    count = pinpoints.shape[0]
    order = wasted * count + torch.arange(count, device=sizes.device)  # of equals the first
    return pinpoints[torch.where(is_best, order, torch.iinfo(torch.int64).max).argmin(1)]


def side_of(config: Any) -> int:
    """Side of a tile in features."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    return int(side * Fraction(getattr(config, "downsample_rate", None) or 1))


def most_of(ratio: str | None) -> int:
    """The number in an aspect ratio such as "anyres_max_9"."""
    return int(ratio.strip("anyres_max_")) if ratio else 0  # noqa: B005  as the model writes it


class Tiles(Preparer):
    """Splits the joined features of all images into one tensor per image, as eager returns them."""

    name = "tiles"

    @classmethod
    def find(cls, model: torch.nn.Module, inputs: Mapping[str, Any]) -> Tiles | None:
        """When there are images with sizes, and the model cuts images into tiles."""
        has_tiles = any(hasattr(part, "pack_image_features") for part in model.modules())
        return cls() if has_tiles and isinstance(inputs.get("image_sizes"), torch.Tensor) else None

    def after(self, config: Any, inputs: Mapping[str, Any], outputs: Any) -> Any:
        """Split by what each image has: its overview, and rows that each end in a feature for the new line."""
        side, most = side_of(config), most_of(getattr(config, "vision_aspect_ratio", None))
        tile = config.vision_config.image_size
        layout = Layout.of(inputs["image_sizes"], config.image_grid_pinpoints, tile, side, most)
        counts = (side**2 + layout.rows * (layout.columns + 1)).tolist()
        found: Any = getattr(outputs, "image_outputs", None)
        if getattr(found, "pooler_output", None) is not None:
            found.pooler_output = _split(found.pooler_output, counts)
        layers = getattr(outputs, "deepstack_features", None)
        if layers is not None:
            outputs.deepstack_features = [(layer, _split(features, counts)) for layer, features in layers]
        return outputs


def _split(joined: Any, counts: list[int]) -> Any:
    return list(torch.split(joined[0], counts)) if len(joined) == 1 else joined
