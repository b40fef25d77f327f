# SPDX-License-Identifier: Apache-2.0
"""Attention, before it is translated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


def _shared_heads() -> torch.nn.Module:
    """Four heads of queries over two of keys and values, for the reproducer."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    class Attention(torch.nn.Module):
        num_key_value_groups = 2
        is_causal = False

        def forward(self, query: torch.Tensor, key: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = sdpa_attention_forward(self, query, key, key + 1, allowed)[0]
            return found

    return Attention()


@register_patch(
    "onnx",
    "transformers.integrations.sdpa_attention.use_gqa_in_sdpa",
    why="under a mask Transformers repeats keys and values for every head that shares them: a step copies its cache",
    issue="by-design",
    needed="transformers>=5.24",
    repro=Repro(
        _shared_heads,
        lambda: (torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.ones(2, 1, 5, 7, dtype=torch.bool)),
        builds=True,
        most_calls=("transformers.integrations.sdpa_attention.repeat_kv", 0),
    ),
)
def _patch_use_gqa_in_sdpa(original: Callable[..., bool]) -> Callable[..., bool]:
    """Say yes: the translation computes the queries that share a head as rows of one product."""

    def use_gqa_in_sdpa(*_: Any, **__: Any) -> bool:
        return True

    return use_gqa_in_sdpa
