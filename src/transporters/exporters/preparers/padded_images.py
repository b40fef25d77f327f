# SPDX-License-Identifier: Apache-2.0
"""Rows of images that are filled up with empty ones: the features of each row."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from .base import Preparer


def drops_images(method: Any) -> bool:
    """Whether a method ``get_image_features`` leaves out images that are zero everywhere."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is not None and "real_images_inds" in code.co_varnames


class PaddedImages(Preparer):
    """Splits the joined features of all images into one tensor per row of the batch, as eager returns them."""

    name = "padded_images"

    @classmethod
    def find(cls, model: torch.nn.Module, inputs: Mapping[str, Any]) -> PaddedImages | None:
        """When the model drops empty images, and there are images."""
        images = inputs.get("pixel_values")
        if not isinstance(images, torch.Tensor) or images.ndim != 5:
            return None
        drops = (drops_images(getattr(type(part), "get_image_features", None)) for part in model.modules())
        return cls() if any(drops) else None

    def after(self, config: Any, inputs: Mapping[str, Any], outputs: Any) -> Any:
        """Split by the numbers of images that are not empty; all features belong to the first row if none is."""
        images: torch.Tensor = inputs["pixel_values"]
        found: Any = getattr(outputs, "image_outputs", None)
        joined = getattr(found, "pooler_output", None)
        if isinstance(joined, (list, tuple)) and len(joined) == 1:
            counts = (images != 0).flatten(2).any(2).sum(1)
            counts[0] += int(counts.sum() == 0)
            share = joined[0].shape[0] // int(counts.sum())
            found.pooler_output = list(torch.split(joined[0], (counts * share).tolist()))
        return outputs
