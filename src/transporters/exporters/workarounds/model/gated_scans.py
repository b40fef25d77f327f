# SPDX-License-Identifier: Apache-2.0
"""Gated linear recurrences (RG-LRU) that a model writes as a Python loop over the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch
from .scans import linear_recurrence


class _Gate(torch.nn.Module):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.recurrent_gemma import modeling_recurrent_gemma as recurrent_gemma

        self.gate = recurrent_gemma.RecurrentGemmaRglru(
            recurrent_gemma.RecurrentGemmaConfig(lru_width=8, hidden_size=8, num_attention_heads=2)
        )
        for parameter in self.gate.parameters():
            torch.nn.init.uniform_(parameter, -0.5, 0.5)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Gate states (batch, length, 8), the first of which begins a text."""
        positions = torch.arange(states.shape[1]).expand(states.shape[0], -1)
        self.gate.recurrent_states = None
        result: torch.Tensor = self.gate(states, positions)
        return result


@register_patch(
    "model",
    "transformers.models.recurrent_gemma.modeling_recurrent_gemma.RecurrentGemmaRglru._rnn_scan",
    why="the recurrence runs a Python loop over the sequence, which freezes its length",
    issue="https://github.com/huggingface/transformers/issues/33839",
    needed="transformers>=5.24",
    repro=Repro(_Gate, lambda: (torch.rand(2, 7, 8),), dynamic=True, builds=True),
)
def _patch_gated_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compute the same states with a chunked scan."""

    def rnn_scan(
        self: Any,
        hidden_states: torch.Tensor,
        recurrent_gate: torch.Tensor,
        reset: torch.Tensor,
        recurrent_states: torch.Tensor | None,
        acc_dtype: torch.dtype = torch.float32,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        decay = (recurrent_gate * ~reset).to(acc_dtype)
        inputs = hidden_states.to(acc_dtype)
        if recurrent_states is not None:
            first = decay[:, :1] * recurrent_states[:, None].to(decay.device)
            inputs = inputs + F.pad(first, (0, 0, 0, inputs.shape[1] - 1))
        states = linear_recurrence(decay.transpose(1, 2).unsqueeze(-1), inputs.transpose(1, 2).unsqueeze(-1))
        states = states.squeeze(-1).transpose(1, 2)
        return states.to(hidden_states.dtype), states[:, -1]

    return rnn_scan
