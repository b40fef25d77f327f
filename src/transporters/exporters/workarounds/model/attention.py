# SPDX-License-Identifier: Apache-2.0
"""Attention over packed sequences, written as a loop over their pieces."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch

#: Bounds of the packed pieces while a packed attention runs, else None.
_SEGMENTS: ContextVar[torch.Tensor | None] = ContextVar("segments", default=None)


class _WholeLength:
    """Stands in for the bounds of packed pieces and says that there is one piece: everything.

    It answers what the models ask of a tensor of bounds: slices, differences, and the list.
    """

    def __init__(self, length: Any) -> None:
        self._length = length

    def __getitem__(self, _: Any) -> _WholeLength:
        return self

    def __sub__(self, _: Any) -> _WholeLength:
        return self

    def tolist(self) -> list[Any]:
        """One length."""
        return [self._length]


class _OneImage:
    """A grid of patches, or the numbers of patches per image, that says as a list that there is one image.

    In every other regard it is the tensor that it stands in for.
    """

    def __init__(self, tensor: torch.Tensor, total: Any) -> None:
        self._tensor = tensor
        self._total = total  # patches, or features, of all images

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self._tensor[place]

    def __len__(self) -> int:
        return len(self._tensor)

    def __floordiv__(self, divisor: int) -> _OneImage:
        return _OneImage(self._tensor // divisor, self._total // divisor)

    def prod(self, dim: int) -> _OneImage:
        """Numbers of patches."""
        return _OneImage(self._tensor.prod(dim), self._total)

    def tolist(self) -> list[Any]:
        """One number: all."""
        return [self._total]

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [value._tensor if isinstance(value, _OneImage) else value for value in args]
        named = {k: v._tensor if isinstance(v, _OneImage) else v for k, v in (kwargs or {}).items()}
        return function(*plain, **named)


def segment_mask(bounds: torch.Tensor, length: Any) -> torch.Tensor:
    """Which position may look at which: those of the same piece.

    Args:
        bounds: (pieces + 1,) integers, from 0 to the length, ascending.
        length: Number of positions.

    Returns:
        (1, 1, length, length) bool.
    """
    position = torch.arange(length, device=bounds.device)
    piece = (position[:, None] >= bounds[None, :]).sum(dim=-1)
    return (piece[:, None] == piece[None, :])[None, None]


class _PackedAttention(torch.nn.Module):
    """The fault, for the reproducer: attention of a packed vision encoder."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl

        config = qwen2_vl.Qwen2VLVisionConfig(embed_dim=16, num_heads=2, attn_implementation="sdpa")
        self.attention = qwen2_vl.VisionAttention(config)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Attend within each of the images (images, patches, 16), packed into one sequence."""
        count, length, _ = images.shape
        turn = torch.ones(count * length, 8)
        bounds = torch.arange(count + 1) * length
        result: torch.Tensor = self.attention(images.flatten(0, 1), bounds, position_embeddings=(turn, turn))
        return result


class _SplitFeatures(torch.nn.Module):
    """The fault, for the reproducer: features that are split by image."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl

        self.config = qwen2_vl.Qwen2VLConfig()
        self.owner = qwen2_vl.Qwen2VLModel
        self.visual = _Merger()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The features of all images (images, 16, pixels), as a model joins them again."""
        grid = torch.tensor([[1, 4, 4]]).repeat(images.shape[0], 1)
        bounds = torch.arange(images.shape[0] + 1) * 16
        found = self.owner.get_image_features(self, images.flatten(0, 1), grid, cu_seqlens=bounds)
        return torch.cat(found.pooler_output)


class _Merger(torch.nn.Module):
    """Stands in for a vision encoder: four patches become one feature."""

    dtype = torch.float32
    spatial_merge_size = 2

    def forward(self, pixel_values: torch.Tensor, **_: Any) -> Any:
        """Features of packed patches (patches, pixels)."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return BaseModelOutputWithPooling(pooler_output=pixel_values.reshape(-1, 4, pixel_values.shape[1]).sum(1))


_PACKED = Repro(_PackedAttention, lambda: (torch.rand(2, 5, 16),), dynamic=True, builds=True)


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*VisionAttention.forward",
    "transformers.models.*.modeling_*.VisionAttention.forward",
    "transformers.models.*.modeling_*.*AudioAttention.forward",
    why="packed images are split by lengths read from a tensor, and each piece is attended to in a Python loop",
    issue="https://github.com/huggingface/transformers/pull/48418",
    needed="transformers>=5.24",
    repro=_PACKED,
)
def _patch_split_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attend once over all positions, with a mask that keeps the pieces apart."""
    if "cu_seqlens" not in inspect.signature(original).parameters:
        return original

    @functools.wraps(original)
    def forward(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind(self, hidden_states, *args, **kwargs)
        bounds = bound.arguments.get("cu_seqlens")
        if not isinstance(bounds, torch.Tensor):
            return NotImplemented
        bound.arguments["cu_seqlens"] = _WholeLength(hidden_states.shape[-2])
        token = _SEGMENTS.set(bounds)
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            _SEGMENTS.reset(token)

    return forward


@register_patch(
    "model",
    "transformers.modeling_utils.AttentionInterface.get_interface",
    why="the loop over packed images passes no mask, so attention over all of them at once needs one",
    issue="https://github.com/huggingface/transformers/pull/48418",
    needed="transformers>=5.24",
    repro=_PACKED,
)
def _patch_attention_interface(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the mask of the pieces to whichever attention function the model picks."""

    def get_interface(self: Any, *args: Any, **kwargs: Any) -> Any:
        bounds = _SEGMENTS.get()
        if bounds is None:
            return NotImplemented
        attention = original(self, *args, **kwargs)

        def packed(module: Any, query: torch.Tensor, *rest: Any, attention_mask: Any = None, **options: Any) -> Any:
            allowed = segment_mask(bounds, query.shape[2])
            if attention.__name__.startswith("eager"):
                allowed = torch.where(allowed, 0.0, torch.finfo(query.dtype).min).to(query.dtype)
            elif isinstance(query.shape[2], torch.SymInt) and getattr(module, "num_key_value_groups", 1) == 1:
                # The function of Transformers asks in Python whether the length, which may be data, is more than one.
                found = F.scaled_dot_product_attention(query, *rest, attn_mask=allowed, scale=options.get("scaling"))
                return found.transpose(1, 2).contiguous(), None
            return attention(module, query, *rest, attention_mask=allowed, **options)

        return packed

    return get_interface


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*Model.get_image_features",
    "transformers.models.*.modeling_*.*Model.get_video_features",
    why="pooled features are split into one tensor per image by sizes read from the grid, which fixes their number",
    issue="https://github.com/huggingface/transformers/pull/48418",
    needed="transformers>=5.24",
    repro=Repro(_SplitFeatures, lambda: (torch.rand(2, 16, 6),), dynamic=True, builds=True),
)
def _patch_feature_split(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the features of all images in one tensor; the runner splits them."""
    signature = inspect.signature(original)
    grid_name = next((name for name in signature.parameters if name.endswith("_grid_thw")), None)
    if grid_name is None:
        return original

    @functools.wraps(original)
    def get_features(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        pixels = next((v for k, v in bound.arguments.items() if k.startswith("pixel_values")), None)
        precomputed = any(name.endswith("cu_seqlens") for name in bound.arguments.get("kwargs", kwargs))
        if pixels is None or not precomputed:
            return NotImplemented
        bound.arguments[grid_name] = _OneImage(bound.arguments[grid_name], pixels.shape[0])
        return original(*bound.args, **bound.kwargs)

    return get_features
