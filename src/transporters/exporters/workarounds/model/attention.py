# SPDX-License-Identifier: Apache-2.0
"""Attention over packed sequences, written as a loop over their pieces."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from ...registry import Repro, register_patch

#: Bounds of the packed pieces while a packed attention runs, else None.
_SEGMENTS: ContextVar[torch.Tensor | None] = ContextVar("segments", default=None)


class _WholeLength:
    """Stands in for the bounds of packed pieces and says that there is one piece: everything.

    It answers what the models ask of a tensor of bounds or of patch grids: slices, differences, products, and the list.
    """

    def __init__(self, length: Any) -> None:
        self._length = length

    def __getitem__(self, _: Any) -> _WholeLength:
        return self

    def __sub__(self, _: Any) -> _WholeLength:
        return self

    def __floordiv__(self, divisor: int) -> _WholeLength:
        return _WholeLength(self._length // divisor)

    def prod(self, _: int) -> _WholeLength:
        """Number of patches."""
        return self

    def tolist(self) -> list[Any]:
        """One length."""
        return [self._length]


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


def _loop_over_pieces(states: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer."""
    return torch.cat([piece.softmax(0) for piece in torch.split(states, (bounds[1:] - bounds[:-1]).tolist())])


_PACKED = Repro(_loop_over_pieces, lambda: (torch.rand(6, 4), torch.tensor([0, 2, 6])), dynamic=True)


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*VisionAttention.forward",
    "transformers.models.*.modeling_*.VisionAttention.forward",
    why="packed images are split by lengths read from a tensor, and each piece is attended to in a Python loop",
    issue="https://github.com/huggingface/transformers/issues/37391",
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
        bound.arguments["cu_seqlens"] = _WholeLength(hidden_states.shape[0])
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
    issue="https://github.com/huggingface/transformers/issues/37391",
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
            return attention(module, query, *rest, attention_mask=allowed, **options)

        return packed

    return get_interface


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*Model.get_image_features",
    "transformers.models.*.modeling_*.*Model.get_video_features",
    why="pooled features are split into one tensor per image by sizes read from the grid, which fixes their number",
    issue="https://github.com/huggingface/transformers/issues/37391",
    needed="transformers>=5.24",
    repro=_PACKED,
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
        bound.arguments[grid_name] = _WholeLength(pixels.shape[0])
        return original(*bound.args, **bound.kwargs)

    return get_features
