# SPDX-License-Identifier: Apache-2.0
"""Images of a batch that only fill a row up, which a model drops before its vision encoder."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from ...preparers.padded_images import drops_images
from ...registry import Repro, register_patch
from .grids import Patches


def real_images(images: torch.Tensor, *, keeps_one: bool) -> torch.Tensor:
    """Which images are no padding, that is not zero everywhere.

    Args:
        images: (images, channels, height, width).
        keeps_one: Whether the first counts as real when none is.

    Returns:
        (images,) bool.
    """
    is_real = (images != 0).flatten(1).any(1)
    if keeps_one:
        is_first = torch.arange(images.shape[0], device=images.device) == 0
        is_real = is_real | (is_first & ~is_real.any())
    return is_real


def _real_rows(value: Any, is_real: torch.Tensor) -> Any:
    """Tensors (images, …), and tuples of them, without the rows of padding."""
    if isinstance(value, torch.Tensor):
        return value[is_real]
    return type(value)(_real_rows(entry, is_real) for entry in value) if isinstance(value, (tuple, list)) else value


class _PaddedImages(torch.nn.Module):
    """The fault, for the reproducer: features of images of which some are padding."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.smolvlm import modeling_smolvlm as smolvlm

        vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        text = {"model_type": "llama", **vision, "vocab_size": 9, "num_key_value_heads": 2, "head_dim": 4}
        sizes = {"image_size": 8, "patch_size": 2}
        config = smolvlm.SmolVLMConfig(vision_config={**vision, **sizes}, text_config=text, scale_factor=2)
        self.model = smolvlm.SmolVLMModel(config)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The features of all real images (rows, images, 3 * 8 * 8), joined, and their hidden states."""
        found = self.model.get_image_features(images.reshape(*images.shape[:2], 3, 8, 8))
        return torch.cat(found.pooler_output), found.last_hidden_state


def _padded_rows() -> tuple[torch.Tensor]:
    """Three rows of three images, of which about every third is padding."""
    return (torch.rand(3, 3, 192) * (torch.rand(3, 3, 1) > 0.3),)


@register_patch(
    "model",
    "transformers.models.*.modeling_*.Idefics*Model.get_image_features",
    "transformers.models.*.modeling_*.SmolVLM*Model.get_image_features",
    "transformers.models.*.modeling_*.*VBertModel.get_image_features",
    why="images that only fill a row up are dropped before the vision encoder, so that the number of images is data "
    "within it, and the features are split by row into as many tensors as the sample has rows",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_PaddedImages, _padded_rows, dynamic=True, builds=True),
)
def _patch_padded_images(original: Callable[..., Any]) -> Callable[..., Any]:
    """Encode all images, drop the rows of padding from the results, and leave the split to the runner."""
    if not drops_images(original):
        return original
    keeps_one = "any" in inspect.unwrap(original).__code__.co_names

    @functools.wraps(original)
    def get_image_features(
        self: Any, pixel_values: torch.Tensor, pixel_attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> Any:
        if kwargs.get("return_dict") is False:
            return NotImplemented
        images = pixel_values.to(dtype=self.dtype).flatten(0, 1)
        is_real = real_images(images, keeps_one=keeps_one)
        if pixel_attention_mask is None:
            pixels = torch.ones_like(images[:, 0], dtype=torch.bool)
        else:
            pixels = pixel_attention_mask.flatten(0, 1)
        size = self.config.vision_config.patch_size
        counts = pixels.unfold(1, size, size).unfold(2, size, size).sum(dim=(-1, -2))
        if "attention_mask" in inspect.signature(self.connector.forward).parameters:  # Idefics2: only whole patches
            patches = counts == size * size
            options = {"attention_mask": patches.flatten(1)}
        else:
            patches, options = counts > 0, {}
        kwargs["return_dict"] = True
        found = self.vision_model(pixel_values=images, patch_attention_mask=patches, **kwargs)
        features = self.connector(found.last_hidden_state, **options)
        for name, value in list(found.items()):
            found[name] = _real_rows(value, is_real)
        found.pooler_output = [features[is_real].flatten(0, 1)]
        return found

    return get_image_features


class _PaddedPatches(torch.nn.Module):
    """The fault, for the reproducer: a batch of images, each with as many patches as the largest."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.colqwen2 import modeling_colqwen2 as colqwen2

        vision = {"embed_dim": 8, "hidden_size": 8, "num_heads": 2, "depth": 1, "patch_size": 1, "mlp_ratio": 1}
        text = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        rope = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 100.0}
        more = {"vocab_size": 9, "num_key_value_heads": 2, "rope_parameters": rope}
        vlm = {"model_type": "qwen2_vl", "vision_config": vision, "text_config": {**text, **more}, "image_token_id": 8}
        self.model = colqwen2.ColQwen2ForRetrieval(colqwen2.ColQwen2Config(vlm_config=vlm, embedding_dim=4))

    def forward(self, patches: torch.Tensor, heights: torch.Tensor) -> torch.Tensor:
        """Embeddings of images of ``heights`` by 4 patches (images, 16, 6), and nothing beside them."""
        count = patches.shape[0]
        grid = torch.stack([torch.ones_like(heights), heights, torch.full_like(heights, 4)], 1)
        ids = torch.where(torch.arange(4, device=patches.device) < heights[:, None], 8, 1)
        ids = torch.cat([ids, torch.ones_like(ids[:, :1])], 1)
        mask = torch.ones(count, 5, dtype=torch.int64)
        found: torch.Tensor = self.model(ids, mask, pixel_values=patches, image_grid_thw=grid).embeddings
        return found


def _patches_and_heights() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(3, 16, 6), 2 * torch.randint(1, 3, (3,))


@register_patch(
    "model",
    "transformers.models.colqwen2.modeling_colqwen2.ColQwen2ForRetrieval.forward",
    why="patches that fill a row up are dropped before the vision encoder, so that their number is data within it",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_PaddedPatches, _patches_and_heights, dynamic=True, builds=True),
)
def _patch_padded_patches(original: Callable[..., Any]) -> Callable[..., Any]:
    """Encode all patches, those of padding apart from the others, and drop what becomes of them."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        given |= given.pop("kwargs", {})
        pixels, grid = given.get("pixel_values"), given.get("image_grid_thw")
        if pixels is None or grid is None or given.get("inputs_embeds") is not None or pixels.ndim != 3:
            return NotImplemented
        area = self.vlm.visual.spatial_merge_size**2
        whole = (pixels.shape[1] + area - 1) // area * area
        pixels = F.pad(pixels, (0, 0, 0, whole - pixels.shape[1]))
        count, longest, _ = pixels.shape
        sizes = grid[:, 1] * grid[:, 2]
        rows = torch.stack([grid[:, 0], torch.full_like(sizes, longest), torch.ones_like(sizes)], 1)
        at = Patches.of(rows, count * longest)
        image = torch.arange(count, device=grid.device).repeat_interleave(longest)
        places = replace(at, height=grid[:, 1][image], width=grid[:, 2][image]).by_blocks(
            self.vlm.visual.spatial_merge_size
        )
        starts = torch.arange(count, device=grid.device) * longest
        bounds = F.pad(torch.stack([starts + sizes, starts + longest], 1).flatten(), (1, 0)).to(torch.int32)
        precomputed = {"position_ids": torch.stack(places, 1), "cu_seqlens": bounds}
        states = self.vlm.visual(pixels.flatten(0, 1), grid_thw=grid, return_dict=True, **precomputed).pooler_output
        is_real = torch.arange(longest // area, device=grid.device) * area < sizes[:, None]
        embedded = self.vlm.get_input_embeddings()(given["input_ids"])
        mask = (given["input_ids"] == self.config.vlm_config.image_token_id).unsqueeze(-1)
        given["inputs_embeds"] = embedded.masked_scatter(mask, states[is_real.flatten()].to(embedded.dtype))
        given["pixel_values"] = given["image_grid_thw"] = None
        return original(**given)

    return forward
