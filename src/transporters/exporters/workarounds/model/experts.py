# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts that loop over those experts which some token chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


def _loop_over_hits(choice: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: the number of steps depends on the data."""
    result = torch.zeros_like(states)
    for expert in torch.unique(choice):
        rows = torch.where(choice == expert)[0]
        result.index_add_(0, rows, states[rows] * (expert + 1))
    return result


@register_patch(
    "model",
    "transformers.models.nllb_moe.modeling_nllb_moe.NllbMoeExperts.forward",
    why="the loop runs over the experts that were hit while tracing; the rest would be missing from the program",
    issue="https://github.com/huggingface/transformers/issues/38518",
    needed="transformers>=5.24",
    repro=Repro(_loop_over_hits, lambda: (torch.tensor([0, 2, 2]), torch.rand(3, 4)), dynamic=True),
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
