# SPDX-License-Identifier: Apache-2.0
"""Images of different size in one batch, which a model cuts out and packs one after the other in a loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch
from .grids import Patches


def _rows_of(value: Any, is_real: torch.Tensor) -> Any:
    """Of hidden states (1, patches, width), attention maps (1, heads, patches, patches), and tuples: real patches."""
    if isinstance(value, (tuple, list)):
        return type(value)(_rows_of(entry, is_real) for entry in value)
    if not isinstance(value, torch.Tensor):
        return value
    place = is_real.nonzero().squeeze(1)
    return value.index_select(1, place) if value.ndim == 3 else value.index_select(2, place).index_select(3, place)


def _encode(self: Any, pixel_values: torch.Tensor, image_sizes: Any = None, **kwargs: Any) -> Any:
    """Pixtral's encoder over all patches of the batch, those beyond an image's size included but not looked at."""
    embedded = self.patch_conv(pixel_values.to(dtype=self.patch_conv.weight.dtype))
    count, _, height, width = embedded.shape
    states = self.ln_pre(embedded.flatten(2).transpose(1, 2).flatten(0, 1)[None])
    position = torch.arange(height * width, device=states.device)
    positions = torch.stack([position // width, position % width], dim=-1).repeat(count, 1)
    image = torch.arange(count, device=states.device).repeat_interleave(height * width)
    allowed = image[:, None] == image[None, :]
    if image_sizes is not None:
        allowed = allowed & _is_inside(self, embedded, image_sizes)[None, :]
    mask = torch.where(allowed, 0.0, torch.finfo(states.dtype).min).to(states.dtype)[None, None]
    turn = self.patch_positional_embedding(states, positions)
    return self.transformer(states, attention_mask=mask, position_embeddings=turn, **kwargs)


def _is_inside(self: Any, embedded: torch.Tensor, image_sizes: torch.Tensor) -> torch.Tensor:
    """Which patches of a batch (images, width, rows, columns) belong to its images: (all patches,) bool."""
    sizes = image_sizes // self.patch_size
    rows = torch.arange(embedded.shape[2], device=embedded.device) < sizes[:, :1]
    columns = torch.arange(embedded.shape[3], device=embedded.device) < sizes[:, 1:]
    inside: torch.Tensor = rows[:, :, None] & columns[:, None, :]
    return inside.flatten()


class _SplitBySize(torch.nn.Module):
    """The fault, for the reproducer: features of a batch of images."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _pixtral(8, 2)

    def forward(self, images: torch.Tensor, heights: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
        """The features of all images, as a model joins them."""
        found = self.model.get_image_features(images, torch.stack([heights, widths], 1))
        return torch.cat(found.pooler_output)


def _pixtral(size: int, merge: int) -> Any:
    from transformers.models.mistral3 import modeling_mistral3 as mistral3

    vision = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "patch_size": 2, "image_size": size, "head_dim": 8}
    text = {"model_type": "mistral", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
    more = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}
    config = mistral3.Mistral3Config(
        vision_config={**vision, **heads}, text_config={**text, **more}, spatial_merge_size=merge, image_token_index=1
    )
    return mistral3.Mistral3Model(config)


class _SizedImages(torch.nn.Module):
    """The fault, for the reproducer: a batch of images that are smaller than the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _pixtral(8, 2).vision_tower

    def forward(self, images: torch.Tensor, heights: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
        """Hidden states (1, patches, 16) of images (batch, 3, height, width), of which heights by widths count."""
        sizes = torch.stack([heights, widths], 1)
        found: torch.Tensor = self.model(images, image_sizes=sizes).last_hidden_state
        return found


def _images_and_sizes() -> dict[str, torch.Tensor]:
    heights, widths = 4 * torch.randint(1, 3, (2, 3))
    return {"images": torch.rand(3, 3, 8, 8), "heights": heights, "widths": widths}


@register_patch(
    "model",
    "transformers.models.pixtral.modeling_pixtral.PixtralVisionModel.forward",
    why="each image is cut to its size, numbered, and given its part of the mask in a Python loop",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_SizedImages, _images_and_sizes, dynamic=True, builds=True),
)
def _patch_sized_images(original: Callable[..., Any]) -> Callable[..., Any]:
    """Encode the whole tensor, with a mask that hides what lies beyond a size, and take that out afterwards."""
    from transformers.utils.generic import is_flash_attention_requested, merge_with_config_defaults
    from transformers.utils.output_capturing import capture_outputs

    encode = merge_with_config_defaults(capture_outputs(_encode))

    def forward(self: Any, pixel_values: torch.Tensor, image_sizes: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("return_dict") is False or is_flash_attention_requested(self.config):
            return NotImplemented
        found = encode(self, pixel_values, image_sizes, **kwargs)
        if image_sizes is not None:
            rows, columns = (size // self.patch_size for size in pixel_values.shape[2:])
            is_real = _is_inside(self, pixel_values.new_empty(1, 1, rows, columns), image_sizes)
            for name, value in list(found.items()):
                found[name] = _rows_of(value, is_real)
        return found

    return forward


class _MergesImages(torch.nn.Module):
    """The fault, for the reproducer: patches of packed images, two by two."""

    def __init__(self) -> None:
        super().__init__()
        self.merger = _pixtral(8, 2).multi_modal_projector.patch_merger

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Merged patches of pairs of images (pairs, 4 * 5 + 2 * 4, 16)."""
        sizes = torch.tensor([[8, 10], [4, 8]]).repeat(states.shape[0], 1)
        found: torch.Tensor = self.merger(states.flatten(0, 1), sizes)
        return found


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*PatchMerger.forward",
    why="packed images are taken apart by sizes read from a tensor, and merged in a Python loop",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_MergesImages, lambda: (torch.rand(3, 28, 16),), dynamic=True, builds=True),
)
def _patch_merged_images(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the patches of each block from where its first one lies."""
    if "image_sizes" not in original.__code__.co_varnames:
        return original

    def forward(self: Any, image_features: torch.Tensor, image_sizes: torch.Tensor) -> Any:
        merge = self.spatial_merge_size
        grid = F.pad(image_sizes // self.patch_size, (1, 0), value=1)
        at = Patches.of(grid, image_features.shape[0])
        row, column = at.place // at.width, at.place % at.width
        is_corner = (row % merge == 0) & (column % merge == 0)
        is_whole = (row + merge <= at.height) & (column + merge <= at.width)
        corner = (is_corner & is_whole).nonzero().squeeze(1)
        step = torch.arange(merge * merge, device=corner.device)
        taken = corner[:, None] + step // merge * at.width[corner][:, None] + step % merge
        return self.merging_layer(image_features[taken].transpose(1, 2).flatten(1))

    return forward


@register_patch(
    "model",
    "transformers.models.mistral3.modeling_mistral3.Mistral3Model.get_image_features",
    "transformers.models.mistral_large4.modeling_mistral_large4.MistralLarge4Model.get_image_features",
    "transformers.models.lighton_ocr.modeling_lighton_ocr.LightOnOcrModel.get_image_features",
    why="pooled features are split into one tensor per image by its size, which fixes the number of images",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_SplitBySize, _images_and_sizes, dynamic=True, builds=True),
)
def _patch_split_by_size(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the features of all images in one tensor; the runner splits them."""
    from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
    from transformers.utils.output_capturing import select_hidden_states

    if "vision_feature_layer" not in inspect.signature(original).parameters:
        last: Callable[..., Any] = can_return_tuple(_last_features)
        return last
    selected = select_hidden_states("vision_feature_layer")(_layer_features)
    layers: Callable[..., Any] = merge_with_config_defaults(can_return_tuple(selected))
    return layers


def _last_features(self: Any, pixel_values: torch.Tensor, image_sizes: torch.Tensor, **kwargs: Any) -> Any:
    """Features from the encoder's last states."""
    found = self.vision_encoder(pixel_values, image_sizes=image_sizes, return_dict=True, **kwargs)
    found.pooler_output = [self.vision_projection(found.last_hidden_state.squeeze(0), image_sizes)]
    return found


def _layer_features(
    self: Any, pixel_values: torch.Tensor, image_sizes: torch.Tensor, vision_feature_layer: Any = None, **kwargs: Any
) -> Any:
    """Features from the states after one layer or several."""
    found = self.vision_tower(pixel_values, image_sizes=image_sizes, return_dict=True, **kwargs)
    layers = [vision_feature_layer] if isinstance(vision_feature_layer, int) else vision_feature_layer
    states = torch.cat([found.hidden_states[layer] for layer in layers], dim=-1)
    found.pooler_output = [self.multi_modal_projector(states.squeeze(0), image_sizes)]
    return found
