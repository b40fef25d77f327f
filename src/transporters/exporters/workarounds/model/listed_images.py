# SPDX-License-Identifier: Apache-2.0
"""Features of images that a model lists with an entry per image."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


class _ListedImages(torch.nn.Module):
    """The fault, for the reproducer: features of a batch of images."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.llava import modeling_llava as llava

        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
        vision = {"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4, **sizes}
        text = {"model_type": "llama", "vocab_size": 9, "num_key_value_heads": 2, **sizes}
        self.model = llava.LlavaModel(llava.LlavaConfig(vision_config=vision, text_config=text, image_token_index=1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The features of all images (batch, 3, 8, 8), as a model joins them."""
        return torch.cat(self.model.get_image_features(images).pooler_output)


class _ImagesInTurn(torch.nn.Module):
    """The fault, for the reproducer: the same of a model that ends rows and images with features of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.image_newline, self.view_separator = torch.nn.Parameter(torch.rand(2)), torch.nn.Parameter(torch.rand(2))
        self.multi_modal_projector = torch.nn.Linear(2, 2)

    def vision_tower(self, images: torch.Tensor) -> Any:
        """Four features of each image (batch,)."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        features = images[:, None, None] * torch.arange(8.0).reshape(4, 2)
        return BaseModelOutputWithPooling(last_hidden_state=features)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The features of all images (batch,), as a model joins them."""
        from transformers.models.unlimited_ocr import modeling_unlimited_ocr as unlimited_ocr

        return torch.cat(unlimited_ocr.UnlimitedOcrModel.get_image_features(self, images).pooler_output)


@register_patch(
    "model",
    "transformers.models.llava.modeling_llava.LlavaModel.get_image_features",
    why="features are made a list with an entry per image, which fixes the number of images",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_ListedImages, lambda: (torch.rand(3, 3, 8, 8),), dynamic=True, builds=True),
)
def _patch_listed_features(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the features of all images in one tensor; the runner splits them. Images that have sizes stay apart."""
    from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
    from transformers.utils.output_capturing import select_hidden_states

    selected = select_hidden_states("vision_feature_layer")(_layer_features)
    joined: Callable[..., Any] = merge_with_config_defaults(can_return_tuple(selected))

    @functools.wraps(original)
    def features(self: Any, *args: Any, **kwargs: Any) -> Any:
        return NotImplemented if kwargs.get("image_sizes") is not None else joined(self, *args, **kwargs)

    return features


def _layer_features(
    self: Any,
    pixel_values: torch.Tensor,
    vision_feature_layer: Any = None,
    vision_feature_select_strategy: str | None = None,
    **kwargs: Any,
) -> Any:
    """Llava: the states after one layer or several, with or without each image's first token."""
    kwargs.pop("image_sizes", None)  # None, or the original is at work
    found = self.vision_tower(pixel_values, return_dict=True, **kwargs)
    layers = [vision_feature_layer] if isinstance(vision_feature_layer, int) else vision_feature_layer
    first = int(vision_feature_select_strategy == "default")
    states = torch.cat([found.hidden_states[layer][:, first:] for layer in layers], dim=-1)
    found.pooler_output = [self.multi_modal_projector(states).flatten(0, 1)]
    return found


@register_patch(
    "model",
    "transformers.models.deepseek_ocr2.modeling_deepseek_ocr2.DeepseekOcr2Model.get_image_features",
    "transformers.models.unlimited_ocr.modeling_unlimited_ocr.UnlimitedOcrModel.get_image_features",
    "transformers.models.step3p7.modeling_step3p7.Step3p7Model.get_image_features",
    why="the features of the images are put together image by image in a Python loop",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_ImagesInTurn, lambda: (torch.rand(3),), dynamic=True, builds=True),
)
def _patch_images_in_turn(original: Callable[..., Any]) -> Callable[..., Any]:
    """Put the parts of all images together at once; the runner splits them. Images with tiles stay as they are."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    prefix = original.__qualname__.partition(".")[0]
    module = sys.modules[original.__module__]
    output: Any = getattr(module, f"{prefix}OutputWithPooling", BaseModelOutputWithPooling)

    @functools.wraps(original)
    def features(self: Any, pixel_values: torch.Tensor, pixel_values_local: Any = None, *_: Any, **kwargs: Any) -> Any:
        if pixel_values_local is not None or kwargs.get("return_dict") is False:
            return NotImplemented
        kwargs.pop("num_local_patches", None)
        kwargs.pop("patches_grid", None)
        vision = self.vision_tower if hasattr(self, "vision_tower") else self.vision_model
        found = vision(pixel_values, **kwargs)
        states = self.multi_modal_projector(found.last_hidden_state)
        count, places, width = states.shape
        if hasattr(self, "image_newline"):  # after each row of the square
            side = int(places**0.5)
            ends = self.image_newline.expand(count, side, 1, width)
            states = torch.cat([states.reshape(count, side, side, width), ends], dim=2).flatten(1, 2)
        if hasattr(self, "view_separator"):
            states = torch.cat([states, self.view_separator.expand(count, 1, width)], dim=1)
        return output(
            last_hidden_state=found.last_hidden_state,
            pooler_output=[states.flatten(0, 1)],
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )

    return features
