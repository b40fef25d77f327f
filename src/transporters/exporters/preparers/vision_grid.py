# SPDX-License-Identifier: Apache-2.0
"""Patch grids of images and videos (``image_grid_thw``): positions, segment bounds and multimodal RoPE indices."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch

from ..tracing import preserved_state
from .base import Preparer
from .vision_calls import Call, recorded, tracked

#: Inputs that say how many patches an image has, in which rows and columns; the first group says of which modality.
_GRID = re.compile(r"((?:image_|video_)?)(grid_thw|target_sizes)")


class VisionGrid(Preparer):
    """Computes what a packed vision encoder reads out of its grids.

    Per grid the results of the encoder's own functions (`vision_calls`) under the names by which the encoders of
    Transformers take them in place of computing them, such as ``image_position_ids`` (patches, 2) and
    ``image_cu_seqlens`` (segments + 1) int32; and ``position_ids`` (3, batch, sequence) from the model's own
    ``get_rope_index``.

    Args:
        calls: What is computed.
    """

    name = "vision_grid"

    def __init__(self, calls: tuple[Call, ...] = ()) -> None:
        self.calls = calls

    @classmethod
    def find(cls, model: torch.nn.Module, inputs: Mapping[str, Any]) -> VisionGrid | None:
        """When a grid is among the inputs. Runs the model once, to see what it computes from the grid."""
        if not any(_GRID.fullmatch(name) for name in inputs):
            return None
        with torch.no_grad(), preserved_state(model), recorded() as calls:
            model(**tracked(inputs))
        return cls(tuple(calls))

    def settings(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"calls": [call.to_dict() for call in self.calls]}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> VisionGrid:
        """Inverse of `settings`."""
        return cls(tuple(Call.from_dict(call) for call in settings["calls"]))

    def before(self, config: Any, model_class: type, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs with positions and segment bounds; what the caller gave himself is kept."""
        added = dict(inputs)
        for call in self.calls:
            grid = _GRID.fullmatch(call.grid)
            prefix = grid[1] if grid else ""
            if any(f"{prefix}{key}" not in added for key in call.keys):
                found = call.compute(inputs)
                added = {**{f"{prefix}{key}": value for key, value in found.items()}, **added}
        added = {name: added[name] for name in sorted(added, key=lambda name: name not in inputs)}
        owner = _class_with(model_class, "get_rope_index")
        if "position_ids" not in added and owner is not None and _reads_text(owner, inputs):
            added["position_ids"] = _rope_index(owner, config, inputs)
        return added

    def after(self, config: Any, inputs: Mapping[str, Any], outputs: Any) -> Any:
        """Split the pooled features into one tensor per image, as eager returns them."""
        for modality in ("image", "video"):
            grid = inputs.get(f"{modality}_grid_thw")
            features: Any = getattr(outputs, f"{modality}_outputs", None)
            for name in ("pooler_output", "deepstack_features"):
                joined = getattr(features, name, None)
                if grid is not None and isinstance(joined, (tuple, list)):
                    setattr(features, name, _per_image(joined, grid, _merge_size(config)))
        return outputs


def _reads_text(owner: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether ``get_rope_index`` finds images in a text: by their types, or, where there is audio too, by their ids."""
    if "mm_token_type_ids" in inputs:
        return True
    takes_audio = "audio_seqlens" in inspect.signature(owner.get_rope_index).parameters
    return takes_audio and "input_ids" in inputs and "attention_mask" in inputs


def _rope_index(owner: Any, config: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Multimodal RoPE indices (3, batch, sequence), by the method of the model's own class.

    The method reads only the configuration, so an instance without weights serves where the model is not loaded.
    """
    stand_in = owner.__new__(owner)
    torch.nn.Module.__init__(stand_in)
    stand_in.config = config
    stand_in.spatial_merge_size = _merge_size(config)
    accepted = inspect.signature(owner.get_rope_index).parameters
    given = dict(inputs)
    if "feature_attention_mask" in inputs:
        given.setdefault("audio_seqlens", inputs["feature_attention_mask"].sum(1))
    if "video_second_per_grid" in inputs:
        given["second_per_grids"] = inputs["video_second_per_grid"]
    position_ids: torch.Tensor
    position_ids, _ = stand_in.get_rope_index(**{k: v for k, v in given.items() if k in accepted})
    return position_ids


def _per_image(features: Any, grid: torch.Tensor, merge: int) -> Any:
    """Features that are joined in a sequence of one tensor, per image; sequences of such sequences alike.

    Args:
        features: Lists or tuples of (features, width) tensors.
        grid: (images, 3) numbers of frames, and of patches down and across.
        merge: Side of a block of patches that becomes one feature; 0 when it is not known.
    """
    if isinstance(features, (tuple, list)) and len(features) == 1 and isinstance(features[0], torch.Tensor):
        return torch.split(features[0], _counts(grid, merge, features[0].shape[0]).tolist())
    if isinstance(features, (tuple, list)):
        return type(features)(_per_image(entry, grid, merge) for entry in features)
    return features


def _counts(grid: torch.Tensor, merge: int, total: int) -> torch.Tensor:
    """Numbers of features (images,), of which there are ``total``.

    A block of patches becomes one feature; or the same block of all frames does; or each row of blocks has one feature
    more, and the image two more. These have different totals wherever they are different.
    """
    patches = grid.prod(-1)
    if merge:
        frames, down, across = grid[:, 0], grid[:, 1] // merge, grid[:, 2] // merge
        rows = down * (across + 1)
        for counts in (frames * down * across, down * across, frames * rows, rows + 2):
            if int(counts.sum()) == total:
                return counts
    return patches // (int(patches.sum()) // max(1, total))


def _merge_size(config: Any) -> int:
    vision = getattr(config, "vision_config", None)
    for name in ("spatial_merge_size", "merge_size", "merge_kernel_size"):
        size = getattr(vision, name, None)
        size = size[0] if isinstance(size, (tuple, list)) else size
        if isinstance(size, int):
            return size
    return 0


def _class_with(model_class: type, method: str) -> Any:
    """The class that has ``method``: the model's own, or the base model in the same module; None when none has."""
    if hasattr(model_class, method):
        return model_class
    module = inspect.getmodule(model_class)
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == model_class.__module__ and hasattr(value, method):
            return value
    return None
