# SPDX-License-Identifier: Apache-2.0
"""Texts with a place on a page, to which a model joins the patches of the page's image."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


class _PatchesBesideWords(torch.nn.Module):
    """The fault, for the reproducer: words and the patches of a page, of which some have words on them."""

    def forward(self, words: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        """Embeddings (batch, words + 4, 3) and boxes (batch, words + 4, 4), side by side, of words (batch, words)."""
        from transformers.models.udop import modeling_udop as udop

        patches = words[:, :1, None] + torch.arange(12.0).reshape(4, 3)
        text = words[:, :, None].expand(-1, -1, 3).clone()
        boxes = boxes[:, :, None].expand(-1, -1, 4)
        embeddings, boxes, _ = udop.combine_image_text_embeddings(
            patches, text, boxes, None, None, num_patches=2, image_size=8, patch_size=4
        )
        return torch.cat([embeddings, boxes.float()], dim=-1)


@register_patch(
    "model",
    "transformers.models.udop.modeling_udop.combine_image_text_embeddings",
    why="the patches that no word lies on are picked row by row, in a loop over the values of a tensor",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(
        _PatchesBesideWords,
        lambda: (torch.rand(3, 5), torch.linspace(0.1, 0.9, 15).reshape(3, 5)),
        dynamic=True,
        builds=True,
    ),
)
def _patch_words_on_patches(original: Callable[..., Any]) -> Callable[..., Any]:
    """Move the patches without words to the front of each row by a stable sort, and zeros behind them."""
    visual_boxes = sys.modules[original.__module__].get_visual_bbox

    def combine(
        image_embeddings: torch.Tensor,
        inputs_embeds: torch.Tensor,
        bbox: torch.Tensor,
        visual_bbox: Any,
        attention_mask: torch.Tensor | None = None,
        num_patches: int = 14,
        max_len: int = 0,
        image_size: int = 224,
        patch_size: int = 16,
    ) -> Any:
        if max_len:
            return NotImplemented
        side = num_patches
        column, row = ((bbox[:, :, axis] + bbox[:, :, axis + 2]) / 2.0 * side for axis in (0, 1))
        place = torch.clip(column.floor().long(), 0, side - 1) + torch.clip(row.floor().long(), 0, side - 1) * side
        bbox = bbox.double()
        mean = bbox.mean(-1)
        is_nowhere = (mean == 0.0) | (mean == 1.0)
        below = image_embeddings.gather(1, place[:, :, None].expand(-1, -1, image_embeddings.shape[-1]))
        inputs_embeds = inputs_embeds + below.masked_fill(is_nowhere[:, :, None], 0.0)

        is_free = torch.ones_like(image_embeddings[:, :, 0], dtype=torch.bool).scatter(1, place, False)
        order = torch.sort((~is_free).long(), dim=1, stable=True).indices[:, :, None]
        is_kept = torch.arange(is_free.shape[1], device=order.device) < is_free.sum(1, keepdim=True)

        def front(values: torch.Tensor) -> torch.Tensor:
            found = values.gather(1, order.expand(-1, -1, values.shape[-1]))
            return found.masked_fill(~is_kept[:, :, None], 0)

        if visual_bbox is None:
            visual_bbox = visual_boxes(image_size=image_size, patch_size=patch_size).to(image_embeddings.device)
            visual_bbox = visual_bbox[None].expand(image_embeddings.shape[0], -1, -1)
        embeddings = torch.cat([inputs_embeds, front(image_embeddings)], 1)
        boxes = torch.cat([bbox, front(visual_bbox)], 1)
        if attention_mask is not None:
            attention_mask = torch.cat([attention_mask, is_kept.to(attention_mask.dtype)], 1)
        return embeddings, boxes, attention_mask

    return combine
