# SPDX-License-Identifier: Apache-2.0
"""Packed images, of which a model would read positions and bounds out of a grid, image by image."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...registry import Repro, register_patch


class _Tower(torch.nn.Module):
    """Stands in for a vision encoder: adds its position to each patch."""

    def forward(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> Any:
        """Hidden states (1, patches, pixels) of packed patches."""
        from transformers import vision_utils
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        positions = vision_utils.get_vision_position_ids(grid_thw, 2, kwargs=kwargs)
        return BaseModelOutputWithPooling(last_hidden_state=(pixel_values + positions.sum(1, keepdim=True))[None])


class _Projector(torch.nn.Module):
    """Stands in for a projector: four patches become one feature."""

    spatial_merge_size = 2

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Sums of four patches (patches, pixels) each."""
        return states.reshape(-1, 4, states.shape[1]).sum(1)


class _PositionsOfAGrid(torch.nn.Module):
    """The fault, for the reproducer: the positions are given, under the name that the whole model takes them by."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as minimax

        self.config, self.owner = minimax.MiniMaxM3VLConfig(), minimax.MiniMaxM3VLModel
        self.vision_tower, self.multi_modal_projector = _Tower(), _Projector()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The features of all images (images, 16, pixels), as a model joins them."""
        count = images.shape[0]
        grid = torch.tensor([[1, 4, 4]]).repeat(count, 1)
        rows = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3])
        columns = torch.tensor([0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3])
        positions = torch.stack([rows, columns], 1).repeat(count, 1)
        given = {"image_position_ids": positions, "image_cu_seqlens": torch.arange(count + 1) * 16}
        found = self.owner.get_image_features(self, images.flatten(0, 1), grid, **given)
        return torch.cat(found.pooler_output)


def _wrapped(function: Any) -> Iterator[Any]:
    """A function and what it wraps, and what that wraps."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*.get_image_features",
    "transformers.models.*.modeling_*.*.get_video_features",
    why="the method leaves the modality before the names of what was computed for its encoder, which then does not "
    "find it and computes it anew from the grid",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_PositionsOfAGrid, lambda: (torch.rand(3, 16, 6),), dynamic=True, builds=True),
)
def _patch_precomputed_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take the modality off the names, as the methods of other models do."""
    from transformers.utils.generic import accepts_precomputed_kwargs

    modality = original.__name__.split("_")[1]
    if f"{modality}_grid_thw" not in inspect.signature(original).parameters:
        return original
    if any("other_prefixes" in getattr(part, "__code__", _wrapped.__code__).co_freevars for part in _wrapped(original)):
        return original
    wrapped: Callable[..., Any] = accepts_precomputed_kwargs(modality)(original)
    return wrapped


class _CountsTokens(torch.nn.Module):
    """The fault, for the reproducer: features for the tokens that stand for them, whose number is data."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.hunyuan_vl import modeling_hunyuan_vl as hunyuan

        self.config = hunyuan.HunYuanVLConfig(image_token_id=1)
        self.owner = hunyuan.HunYuanVLModel

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States (tokens, width), of which about half are doubled."""
        is_image = states[:, 0] > 0.5
        features, embedded = 2 * states[is_image], states[None]
        mask = self.owner.get_placeholder_mask(self, is_image.long()[None], embedded, features)
        return embedded.masked_scatter(mask, features)


@register_patch(
    "model",
    "transformers.models.hunyuan_vl.modeling_hunyuan_vl.HunYuanVLModel.get_placeholder_mask",
    why="Python compares the number of image tokens with that of features, which are both data in a program",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_CountsTokens, lambda: (torch.rand(9, 6),), dynamic=True, builds=True),
)
def _patch_placeholder_count(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave the comparison to the program, as other models do."""
    from transformers.utils import torch_compilable_check

    def get_placeholder_mask(self: Any, input_ids: Any, inputs_embeds: torch.Tensor, image_features: Any = None) -> Any:
        mask = original(self, input_ids, inputs_embeds)
        if image_features is not None:
            torch_compilable_check(mask.sum() == image_features.numel(), "image features and image tokens do not match")
        return mask

    return get_placeholder_mask
