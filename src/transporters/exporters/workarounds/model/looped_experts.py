# SPDX-License-Identifier: Apache-2.0
"""Gated experts in one weight per projection, in a loop over those experts which some token chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch
from .experts import TwoOfFour, of_expert, weighed


class _GatedExperts(TwoOfFour):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        from transformers.models.step3p7 import configuration_step3p7
        from transformers.models.step3p7 import modeling_step3p7 as step3p7

        sizes = {"hidden_size": 8, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2}
        super().__init__(step3p7.Step3p7Experts(configuration_step3p7.Step3p7TextConfig(**sizes)))


@register_patch(
    "model",
    "transformers.models.step3p7.modeling_step3p7.Step3p7Experts.forward",
    "transformers.models.openai_privacy_filter.modeling_openai_privacy_filter.OpenAIPrivacyFilterExperts.forward",
    why="the loop runs over the experts that were hit, which only the data tells",
    issue="https://github.com/huggingface/transformers/issues/38518",
    needed="transformers>=5.24",
    repro=Repro(_GatedExperts, lambda: (torch.rand(3, 8),), dynamic=True, builds=True),
)
def _patch_looped_experts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run every expert on every token and weigh the results; an expert that no token chose weighs zero."""

    def forward(self: Any, hidden_states: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        biased = hasattr(self, "gate_up_proj_bias")
        states = hidden_states.float() if biased else hidden_states  # with biases the model computes in float32
        one = _biased if biased else _plain
        found = weighed(
            self.num_experts,
            lambda index: one(self, states, index),
            lambda index: of_expert(index, chosen, weights).to(states.dtype),
            torch.zeros_like(states),
        )
        return found.to(hidden_states.dtype)

    return forward


def _plain(experts: Any, states: torch.Tensor, index: int) -> torch.Tensor:
    """One expert without biases, its weights (out, in)."""
    return F.linear(experts._apply_gate(F.linear(states, experts.gate_up_proj[index])), experts.down_proj[index])


def _biased(experts: Any, states: torch.Tensor, index: int) -> torch.Tensor:
    """One expert with biases, its weights (in, out)."""
    gated = experts._apply_gate(
        states @ experts.gate_up_proj[index].float() + experts.gate_up_proj_bias[index].float()
    ).float()
    found: torch.Tensor = gated @ experts.down_proj[index].float() + experts.down_proj_bias[index].float()
    return found
