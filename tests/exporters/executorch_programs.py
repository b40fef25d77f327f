# SPDX-License-Identifier: Apache-2.0
"""A small decoder and its ExecuTorch program, for the tests of both."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from transporters import ExecutorchExporter, ExportedModel
from transporters.inputs.samples import sample_inputs


class Twice(torch.nn.Module):
    """Two for one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def llama(*, tied: bool = True, vocabulary: int = 99, positions: int = 128) -> LlamaForCausalLM:
    """One layer; with a large vocabulary a second copy of the embedding would double the file."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # equal small weights would become one
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def export(model: torch.nn.Module, inputs: dict[str, Any] | None = None, **config: Any) -> ExportedModel:
    """A program; on the model's own sample inputs unless others are given."""
    given = sample_inputs(model) if inputs is None else inputs  # type: ignore[arg-type]
    return ExecutorchExporter().export(model, given, config)  # type: ignore[arg-type]


def ids(batch: int, length: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 99, (batch, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
