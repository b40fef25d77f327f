# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts that loop over those experts which some token chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


def of_expert(index: int, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weight that each token gives to one expert, 0 where it did not choose it.

    Args:
        index: The expert.
        chosen: (tokens, choices) indices of experts.
        weights: (tokens, choices).

    Returns:
        (tokens, 1).
    """
    return torch.where(chosen == index, weights, 0).sum(dim=-1, keepdim=True)


def weighed(
    count: int, expert: Callable[[int], torch.Tensor], weight: Callable[[int], torch.Tensor], start: torch.Tensor
) -> torch.Tensor:
    """The sum of what every expert makes of every token; an expert that no token chose weighs zero.

    Args:
        count: Number of experts.
        expert: Index to what that expert gives (tokens, width).
        weight: Index to the weight that each token gives to it (tokens, 1).
        start: (tokens, width) that the sum begins with; its dtype is the sum's.
    """
    for index in range(count):
        start = start + (expert(index) * weight(index)).to(start.dtype)
    return start


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
        return weighed(
            self.num_experts,
            lambda index: self[f"expert_{index}"](hidden_states),
            lambda index: of_expert(index, router_mask, router_probs) * kept,
            torch.zeros_like(hidden_states),
        )

    return forward


class _SwitchExperts(torch.nn.Module):
    """The fault, for the reproducer: experts that are chosen by a mask, in a loop over those that were hit."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.switch_transformers import modeling_switch_transformers as switch_transformers

        config = switch_transformers.SwitchTransformersConfig(d_model=8, d_ff=8, num_experts=4, dropout_rate=0.0)
        self.experts = switch_transformers.SwitchTransformersExperts(config)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Send each of the tokens (tokens, 8) to the expert of its largest of four numbers."""
        weight, choice = states[:, :4].max(dim=-1, keepdim=True)
        chosen = torch.nn.functional.one_hot(choice, 4)
        result: torch.Tensor = self.experts(states, chosen, weight)
        return result


@register_patch(
    "model",
    "transformers.models.switch_transformers.modeling_switch_transformers.SwitchTransformersExperts.forward",
    why="the loop runs over the experts that were hit, which only the data tells",
    issue="https://github.com/huggingface/transformers/issues/38518",
    needed="transformers>=5.24",
    repro=Repro(_SwitchExperts, lambda: (torch.rand(3, 8),), dynamic=True, builds=True),
)
def _patch_switch_experts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run every expert on every token and weigh the results; an expert that no token chose weighs zero."""

    def forward(
        self: Any, hidden_states: torch.Tensor, selected_experts: torch.Tensor, routing_weights: torch.Tensor
    ) -> torch.Tensor:
        return weighed(
            self.num_experts,
            lambda index: self[f"expert_{index}"](hidden_states),
            lambda index: routing_weights * selected_experts[:, 0, index : index + 1],
            torch.zeros_like(hidden_states),
        )

    return forward


class TwoOfFour(torch.nn.Module):
    """For reproducers: four experts of width 8, of which each token chooses two.

    Args:
        experts: They take tokens, indices and weights.
    """

    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        self.experts = experts
        for parameter in experts.parameters():
            torch.nn.init.uniform_(parameter)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Send each of the states (…, 8) to the experts of the two largest of its first four numbers."""
        weights, chosen = states.reshape(-1, 8)[:, :4].topk(2)
        result: torch.Tensor = self.experts(states, chosen, weights)
        return result


class _DbrxExperts(TwoOfFour):
    """The fault, for the reproducer: experts in one weight, in a loop over those that were hit."""

    def __init__(self) -> None:
        from transformers.models.dbrx import configuration_dbrx
        from transformers.models.dbrx import modeling_dbrx as dbrx

        config = configuration_dbrx.DbrxFFNConfig(ffn_hidden_size=8, moe_num_experts=4)
        config.hidden_size = 8
        super().__init__(dbrx.DbrxExperts(config))


@register_patch(
    "model",
    "transformers.models.dbrx.modeling_dbrx.DbrxExperts.forward",
    why="the loop runs over the experts that were hit, which only the data tells",
    issue="https://github.com/huggingface/transformers/issues/38518",
    needed="transformers>=5.24",
    repro=Repro(_DbrxExperts, lambda: (torch.rand(2, 3, 8),), dynamic=True, builds=True),
)
def _patch_dbrx_experts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run every expert on every token and weigh the results; an expert that no token chose weighs zero."""

    def forward(
        self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        tokens = hidden_states.reshape(-1, self.hidden_size)
        parts = (self.mlp.w1, self.mlp.v1, self.mlp.w2)
        experts = [part.view(-1, self.ffn_hidden_size, self.hidden_size) for part in parts]
        result = weighed(
            self.num_experts,
            lambda index: self.mlp(tokens, *(part[index] for part in experts)),
            lambda index: of_expert(index, top_k_index, top_k_weights),
            torch.zeros_like(tokens),
        )
        return result.view(hidden_states.shape[0], -1, self.hidden_size)

    return forward


class _IdentityExperts(TwoOfFour):
    """The fault, for the reproducer: experts of which some do nothing, in a loop over those that were hit."""

    def __init__(self) -> None:
        from transformers.models.longcat_flash import modeling_longcat_flash as longcat_flash

        sizes = {"hidden_size": 8, "expert_ffn_hidden_size": 8, "n_routed_experts": 3, "zero_expert_num": 1}
        super().__init__(longcat_flash.LongcatFlashExperts(longcat_flash.LongcatFlashConfig(**sizes)))


@register_patch(
    "model",
    "transformers.models.longcat_flash.modeling_longcat_flash.LongcatFlashExperts.forward",
    why="the loop runs over the experts that were hit, which only the data tells",
    issue="https://github.com/huggingface/transformers/issues/38518",
    needed="transformers>=5.24",
    repro=Repro(_IdentityExperts, lambda: (torch.rand(3, 8),), dynamic=True, builds=True),
)
def _patch_identity_experts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run every expert on every token and weigh the results; experts that do nothing weigh the token itself."""

    def forward(
        self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        routed = self.num_routed_experts if self.gate_up_proj is not None else 0
        idle = torch.where(top_k_index >= routed, top_k_weights, 0).sum(dim=-1, keepdim=True)

        def expert(index: int) -> torch.Tensor:
            gate, up = F.linear(hidden_states, self.gate_up_proj[index]).chunk(2, dim=-1)
            return F.linear(self.act_fn(gate) * up, self.down_proj[index])

        start = (hidden_states * idle).to(hidden_states.dtype)
        return weighed(routed, expert, lambda index: of_expert(index, top_k_index, top_k_weights), start)

    return forward
