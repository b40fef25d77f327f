# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts that sort their tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


def _four_experts() -> torch.nn.Module:
    """The fault, for the reproducer: tokens that choose two of four experts."""
    from transformers.models.mixtral import modeling_mixtral as mixtral

    config = mixtral.MixtralConfig(hidden_size=8, intermediate_size=16, num_local_experts=4)
    config._experts_implementation = "grouped_mm"

    class Mixture(torch.nn.Module):
        """Send each token (tokens, 8) to the experts of the two largest of its first four numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.experts = mixtral.MixtralExperts(config)
            for parameter in self.experts.parameters():
                torch.nn.init.normal_(parameter)

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            """Weigh and choose, then the experts."""
            weights, choice = states[:, :4].softmax(-1).topk(2, dim=-1)
            result: torch.Tensor = self.experts(states, choice, weights)
            return result

    return Mixture()


@register_patch(
    "executorch",
    "transformers.integrations.moe.ExpertsInterface.get_interface",
    why="the tokens are sorted and counted by expert and multiplied in groups, and neither sort, histc nor the grouped "
    "product has a kernel",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_four_experts, lambda: (torch.randn(5, 8),), dynamic=True, builds=True),
)
def _patch_experts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run every expert on every token, all in one batch, and weigh the results; who was not chosen weighs zero."""

    def get_interface(self: Any, experts_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        if experts_implementation not in ("grouped_mm", "batched_mm"):
            return NotImplemented  # type: ignore[no-any-return]
        return _all_experts

    return get_interface


def _all_experts(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """States (tokens, hidden), each token's experts (tokens, k) and their weights (tokens, k) to (tokens, hidden)."""
    name = "gate_up_proj" if self.has_gate else "up_proj"
    states = _linear(self, hidden_states.unsqueeze(0).expand(self.num_experts, -1, -1), name)
    states = self._apply_gate(states) if self.has_gate else self.act_fn(states)
    states = _linear(self, states, "down_proj")
    if self.has_post_expert_norm:
        states = self.post_expert_norm(states)
    experts = torch.arange(self.num_experts, device=hidden_states.device).reshape(-1, 1, 1)
    weights = torch.where(top_k_index.unsqueeze(0) == experts, top_k_weights.unsqueeze(0), 0.0)
    result = (states * weights.sum(dim=-1, keepdim=True)).sum(dim=0)
    return result.to(hidden_states.dtype)


def _linear(self: Any, states: torch.Tensor, name: str) -> torch.Tensor:
    """States (experts, tokens, in) by each expert's own matrix and bias."""
    weight = getattr(self, name)
    product = torch.bmm(states, weight if self.is_transposed else weight.transpose(1, 2))
    return product + getattr(self, f"{name}_bias").unsqueeze(1) if self.has_bias else product
