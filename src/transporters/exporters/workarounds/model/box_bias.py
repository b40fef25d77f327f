# SPDX-License-Identifier: Apache-2.0
"""A bias of attention that follows from boxes, over a map whose height and width are data."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from ...registry import Repro, register_patch

#: Number of places of the map while a decoder runs, else None.
_PLACES: ContextVar[Any] = ContextVar("places", default=None)


class _BoxDecoder(torch.nn.Module):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.sam3.configuration_sam3 import Sam3DETRDecoderConfig
        from transformers.models.sam3.modeling_sam3 import Sam3DetrDecoder

        sizes = {"hidden_size": 8, "num_layers": 1, "num_queries": 3, "num_attention_heads": 2, "intermediate_size": 8}
        self.decoder = Sam3DetrDecoder(Sam3DETRDecoderConfig(**sizes, attn_implementation="sdpa"))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Boxes found in maps (batch, 12, 8) of three rows."""
        found: torch.Tensor = self.decoder(
            states, states.narrow(1, 0, 2), states, spatial_shapes=torch.tensor([[3, 4]])
        ).reference_boxes
        return found


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*DetrDecoder._get_rpb_matrix",
    why="the bias has as many columns as the map's height times its width, which are data and not seen to be as many "
    "as the map has places",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_BoxDecoder, lambda: (torch.rand(2, 12, 8),), dynamic=True, builds=True),
)
def _patch_box_bias(original: Callable[..., Any]) -> Callable[..., Any]:
    """Embed rows and columns as the model does, and look up for every place which of them it is in."""
    module = inspect.getmodule(original)

    def embedded(embed: Any, count: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Distances of all rows to both edges of boxes (batch, queries): (batch, queries, rows, heads)."""
        rows: Any = count.item()
        torch._check(rows >= 1)  # type: ignore[no-untyped-call]
        places = torch.arange(rows, device=low.device, dtype=low.dtype) / rows
        distances = 8 * (places[:, None] - torch.stack([low, high], dim=-1)[:, :, None])
        result: torch.Tensor = embed(torch.sign(distances) * torch.log2(distances.abs() + 1.0) / 3.0)
        return result

    def matrix(self: Any, reference_boxes: torch.Tensor, spatial_shape: tuple[torch.Tensor, torch.Tensor]) -> Any:
        total = _PLACES.get()
        if total is None:
            return NotImplemented
        height, width = spatial_shape
        left, top, right, bottom = module.box_cxcywh_to_xyxy(reference_boxes).unbind(-1)  # type: ignore[union-attr]
        rows = embedded(self.box_rpb_embed_y, height, top, bottom)
        columns = embedded(self.box_rpb_embed_x, width, left, right)
        places = torch.arange(total, device=rows.device)
        bias = rows.index_select(2, places // width) + columns.index_select(2, places % width)
        return bias.permute(0, 3, 1, 2).contiguous()

    return matrix


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*DetrDecoder.forward",
    why="what computes the bias over a map is not told how many places the map has",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_BoxDecoder, lambda: (torch.rand(2, 12, 8),), dynamic=True, builds=True),
)
def _patch_places_of_a_map(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tell it."""
    signature = inspect.signature(original)
    if "vision_features" not in signature.parameters:
        return original

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _PLACES.set(signature.bind(self, *args, **kwargs).arguments["vision_features"].shape[1])
        try:
            return original(self, *args, **kwargs)
        finally:
            _PLACES.reset(token)

    return forward
