# SPDX-License-Identifier: Apache-2.0
"""Images of one size, whose features a model gives in a list with an entry per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .base import Preparer

#: Models of which the program gives the features of all images in one tensor.
_LISTED = frozenset(["LlavaModel", "DeepseekOcr2Model", "UnlimitedOcrModel", "Step3p7Model"])


class ListedImages(Preparer):
    """Splits the joined features of all images into one tensor per image, as eager returns them."""

    name = "listed_images"

    @classmethod
    def find(cls, model: torch.nn.Module, inputs: Mapping[str, Any]) -> ListedImages | None:
        """When there are images and nothing says that they differ in size or have tiles."""
        given = {name for name in ("image_sizes", "pixel_values_local") if inputs.get(name) is not None}
        is_listed = any(type(part).__name__ in _LISTED for part in model.modules())
        return cls() if is_listed and not given and isinstance(inputs.get("pixel_values"), torch.Tensor) else None

    def after(self, config: Any, inputs: Mapping[str, Any], outputs: Any) -> Any:
        """Split into as many equal parts as there are images."""
        found: Any = getattr(outputs, "image_outputs", None)
        joined = getattr(found, "pooler_output", None)
        if isinstance(joined, (list, tuple)) and len(joined) == 1:
            found.pooler_output = list(joined[0].chunk(inputs["pixel_values"].shape[0]))
        return outputs
