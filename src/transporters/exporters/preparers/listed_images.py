# SPDX-License-Identifier: Apache-2.0
"""Images whose features a model puts into a Python list, one entry for each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from .base import Preparer


def lists_images(method: Any) -> bool:
    """Whether a method ``get_image_features`` makes a list of a tensor with all features."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is not None and "list" in code.co_names and "multi_modal_projector" in code.co_names


class ListedImages(Preparer):
    """Makes a list of the joined features of all images, one tensor per image, as eager returns them."""

    name = "listed_images"

    @classmethod
    def find(cls, model: torch.nn.Module, inputs: Mapping[str, Any]) -> ListedImages | None:
        """When the model makes such a list, and there are images, of which none says its size."""
        if inputs.get("pixel_values") is None or inputs.get("image_sizes") is not None:
            return None
        lists = (lists_images(getattr(type(part), "get_image_features", None)) for part in model.modules())
        return cls() if any(lists) else None

    def after(self, config: Any, inputs: Mapping[str, Any], outputs: Any) -> Any:
        """Take the features (images, features, width) apart."""
        found: Any = getattr(outputs, "image_outputs", None)
        joined = getattr(found, "pooler_output", None)
        if isinstance(joined, (list, tuple)) and len(joined) == 1 and joined[0].ndim == 3:
            found.pooler_output = list(joined[0])
        return outputs
