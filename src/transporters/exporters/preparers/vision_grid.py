# SPDX-License-Identifier: Apache-2.0
"""Patch grids of images and videos (``image_grid_thw``): positions, segment bounds and multimodal RoPE indices."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

_MODALITIES = (("image", "pixel_values"), ("video", "pixel_values_videos"))


class VisionGrid:
    """Computes what a packed vision encoder reads out of its grids.

    Per modality: ``<modality>_position_ids`` (patches, 2) and ``<modality>_cu_seqlens`` (segments + 1) int32, which the
    encoders of Transformers take in place of computing them; and ``position_ids`` (3, batch, sequence) from the
    model's own ``get_rope_index``.
    """

    name = "vision_grid"

    def applies(self, config: Any, inputs: Mapping[str, Any]) -> bool:
        """When a grid is among the inputs."""
        return any(f"{modality}_grid_thw" in inputs for modality, _ in _MODALITIES)

    def before(self, config: Any, model_class: type, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs with positions and segment bounds."""
        from transformers import vision_utils

        added = dict(inputs)
        merge = config.vision_config.spatial_merge_size
        for modality, _ in _MODALITIES:
            grid = inputs.get(f"{modality}_grid_thw")
            if grid is None:
                continue
            if f"{modality}_position_ids" not in added:
                added[f"{modality}_position_ids"] = vision_utils.get_vision_position_ids(grid, merge)
            if f"{modality}_cu_seqlens" not in added:
                added[f"{modality}_cu_seqlens"] = vision_utils.get_vision_cu_seqlens(grid)
        if "position_ids" not in added and "mm_token_type_ids" in inputs:
            added["position_ids"] = self._rope_index(config, model_class, inputs)
        return added

    def after(self, config: Any, inputs: Mapping[str, Any], outputs: Any) -> Any:
        """Split the pooled features into one tensor per image, as eager returns them."""
        for modality, _ in _MODALITIES:
            grid = inputs.get(f"{modality}_grid_thw")
            features: Any = getattr(outputs, f"{modality}_outputs", None)
            pooled = getattr(features, "pooler_output", None)
            if grid is not None and isinstance(pooled, (tuple, list)) and len(pooled) == 1:
                sizes = (grid.prod(-1) // config.vision_config.spatial_merge_size**2).tolist()
                features.pooler_output = torch.split(pooled[0], sizes)
        return outputs

    def _rope_index(self, config: Any, model_class: type, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Multimodal RoPE indices (3, batch, sequence), by the method of the model's own class.

        The method reads only the configuration, so an instance without weights serves where the model is not loaded.
        """
        owner = _class_with(model_class, "get_rope_index")
        stand_in = owner.__new__(owner)
        torch.nn.Module.__init__(stand_in)
        stand_in.config = config
        accepted = inspect.signature(owner.get_rope_index).parameters
        position_ids: torch.Tensor
        position_ids, _ = stand_in.get_rope_index(**{k: v for k, v in inputs.items() if k in accepted})
        return position_ids


def _class_with(model_class: type, method: str) -> Any:
    """The class that has ``method``: the model's own, or the base model in the same module."""
    if hasattr(model_class, method):
        return model_class
    module = inspect.getmodule(model_class)
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == model_class.__module__ and hasattr(value, method):
            return value
    raise TypeError(f"no class in {model_class.__module__} has {method}")
