# SPDX-License-Identifier: Apache-2.0
"""Features of images that a model puts into a Python list, one entry for each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ...preparers.listed_images import lists_images
from ...registry import Repro, register_patch


class _Listed(torch.nn.Module):
    """The fault, for the reproducer: features of as many images as there are."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.llava import modeling_llava as llava

        layers = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
        vision = {"model_type": "clip_vision_model", **layers, "image_size": 8, "patch_size": 4}
        text = {"model_type": "llama", **layers, "vocab_size": 9, "num_key_value_heads": 2}
        self.model = llava.LlavaModel(llava.LlavaConfig(vision_config=vision, text_config=text))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The features of all images (images, 3 * 8 * 8), joined."""
        features = self.model.get_image_features(images.reshape(images.shape[0], 3, 8, 8)).pooler_output
        return torch.cat([part.flatten(0, -2) for part in features])


@register_patch(
    "model",
    "transformers.models.llava.modeling_llava.LlavaModel.get_image_features",
    why="a list is made of the tensor of features, with an entry for each image, which fixes the number of images",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Listed, lambda: (torch.rand(3, 192),), dynamic=True, builds=True),
)
def _patch_listed_images(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let the list have one entry with all features; the runner takes it apart."""
    signature = inspect.signature(original)
    if not lists_images(original):
        return original

    @functools.wraps(original)
    def get_image_features(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        given = {**given, **given.get("kwargs", {})}
        if given.get("image_sizes") is not None or given.get("return_dict") is False:
            return NotImplemented  # joined already
        hook = self.multi_modal_projector.register_forward_hook(lambda _, __, features: features[None])
        try:
            return original(self, *args, **kwargs)
        finally:
            hook.remove()

    return get_image_features
