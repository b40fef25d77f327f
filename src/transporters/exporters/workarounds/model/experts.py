# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts that loop over those experts which some token chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


class _FourExperts(torch.nn.Module):
    """The fault, for the reproducer: with few tokens some expert stays idle."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.nllb_moe import modeling_nllb_moe as nllb_moe

        self.experts = nllb_moe.NllbMoeExperts(nllb_moe.NllbMoeConfig(d_model=8, num_experts=4), 16)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Send each of the tokens (tokens, 8) to the expert of its largest of four numbers."""
        weight, choice = states[:, :4].max(dim=-1, keepdim=True)
        result: torch.Tensor = self.experts(states, choice, weight)
        return result


@register_patch(
    "model",
    "transformers.models.nllb_moe.modeling_nllb_moe.NllbMoeExperts.forward",
    why="the loop runs over the experts that were hit while tracing; the rest would be missing from the program",
    issue="https://github.com/huggingface/transformers/issues/38518",
    needed="transformers>=5.24",
    repro=Repro(_FourExperts, lambda: (torch.rand(3, 8),), dynamic=True, builds=True),
)
def _patch_nllb_moe_experts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run every expert on every token and weigh the results; an expert that no token chose weighs zero."""

    def forward(
        self: Any, hidden_states: torch.Tensor, router_mask: torch.Tensor, router_probs: torch.Tensor
    ) -> torch.Tensor:
        kept = 1 - self.moe_token_dropout if self.moe_token_dropout > 0 else 1
        result = torch.zeros_like(hidden_states)
        for index in range(self.num_experts):
            weight = torch.where(router_mask == index, router_probs, 0).sum(dim=-1, keepdim=True)
            result = result + (self[f"expert_{index}"](hidden_states) * weight * kept).to(hidden_states.dtype)
        return result

    return forward
