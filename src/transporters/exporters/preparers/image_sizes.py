# SPDX-License-Identifier: Apache-2.0
"""Images of different size in one batch (``image_sizes``): the features of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .base import Preparer


class ImageSizes(Preparer):
    """Splits the joined features of all images into one tensor per image, as eager returns them."""

    name = "image_sizes"

    @classmethod
    def find(cls, model: torch.nn.Module, inputs: Mapping[str, Any]) -> ImageSizes | None:
        """When there are images with sizes, and the model merges blocks of their patches."""
        config = getattr(model, "config", None)
        return cls() if isinstance(inputs.get("image_sizes"), torch.Tensor) and _block(config) else None

    def after(self, config: Any, inputs: Mapping[str, Any], outputs: Any) -> Any:
        """Split by the number of blocks in each image."""
        found: Any = getattr(outputs, "image_outputs", None)
        joined = getattr(found, "pooler_output", None)
        if isinstance(joined, (list, tuple)) and len(joined) == 1:
            counts = (inputs["image_sizes"] // _block(config)).prod(-1)
            found.pooler_output = torch.split(joined[0], counts.tolist())
        return outputs


def _block(config: Any) -> int:
    """Side of a block of patches that becomes one feature, in pixels; 0 when nothing is merged."""
    patch = getattr(getattr(config, "vision_config", None), "patch_size", 0)
    merge = getattr(config, "spatial_merge_size", 0)
    return patch * merge if isinstance(patch, int) and isinstance(merge, int) else 0
