# SPDX-License-Identifier: Apache-2.0
"""Relative positions that are worked out on Python lists as long as the sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...registry import Repro, register_patch


@dataclass(frozen=True)
class Progression:
    """Positions ``first, first + step, …``; a stand-in for the list of them whose length may be symbolic."""

    first: int
    step: int
    count: Any

    @property
    def last(self) -> Any:
        """The last position."""
        return self.first + (self.count - 1) * self.step

    def pooled(self, separate_first: bool, truncated: bool) -> Progression:
        """Every second position.

        Args:
            separate_first: The first position stands for itself, one doubled step before the second.
            truncated: In that case the last position is dropped.
        """
        if not separate_first:
            return Progression(self.first, 2 * self.step, (self.count + 1) // 2)
        rest = self.count - 2 if truncated else self.count - 1
        second = self.first + self.step
        return Progression(second - 2 * self.step, 2 * self.step, 1 + (rest + 1) // 2)

    def relative_to(self, pooled: Progression, stride: int, shift: int, device: Any) -> torch.Tensor:
        """All distances from pooled positions to these, the largest first; (distances,) int64."""
        largest = pooled.first - self.first + shift * pooled.count * stride
        return torch.arange(largest, pooled.first - self.last - 1, -stride, dtype=torch.long, device=device)


class _Structure(torch.nn.Module):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.funnel import modeling_funnel as funnel

        self.structure = funnel.FunnelAttentionStructure(funnel.FunnelConfig(d_model=8, block_sizes=[1, 1, 1]))
        self.structure.eval()

    def forward(self, states: torch.Tensor) -> list[torch.Tensor]:
        """Embeddings of the relative positions of states (batch, length, 8), per block."""
        found = self.structure.get_position_embeds(states.shape[1], states.dtype, states.device)
        return [embedding for block in found for embedding in block if embedding is not None]


@register_patch(
    "model",
    "transformers.models.funnel.modeling_funnel.FunnelAttentionStructure.get_position_embeds",
    why="a Python list as long as the sequence is made and sliced, which freezes the length",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Structure, lambda: (torch.rand(2, 9, 8),), dynamic=True, builds=True),
)
def _patch_listed_positions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work out the same from the first position, the step and the count."""

    def get_position_embeds(self: Any, seq_len: Any, dtype: torch.dtype, device: torch.device) -> Any:
        if self.config.attention_type == "factorized":
            return NotImplemented
        width = self.config.d_model
        frequencies = torch.arange(0, width // 2, dtype=torch.int64, device=device).to(dtype)
        angles = torch.arange(-seq_len * 2, seq_len * 2, dtype=torch.int64, device=device).to(dtype)[:, None]
        angles = angles * (1 / (10000 ** (frequencies / (width // 2))))[None]
        table = torch.cat([self.sin_dropout(torch.sin(angles)), self.cos_dropout(torch.cos(angles))], dim=-1)

        def embeddings(distances: torch.Tensor) -> torch.Tensor:
            return table.index_select(0, distances + seq_len * 2)

        positions = Progression(0, 1, seq_len)
        found = []
        for block in range(self.config.num_blocks):
            pooling = None
            if block:
                pooled = positions.pooled(self.config.separate_cls, self.config.truncate_seq)
                pooling = embeddings(positions.relative_to(pooled, 2 ** (block - 1), 2, device))
                positions = pooled
            found.append([embeddings(positions.relative_to(positions, 2**block, 1, device)), pooling])
        return found

    return get_position_embeds


class _AxialTable(torch.nn.Module):
    """The fault, for the reproducer: positions of a grid, looked up row by row of the batch."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.reformer import modeling_reformer as reformer

        config = reformer.ReformerConfig(axial_pos_shape=[8, 16], axial_pos_embds_dim=[4, 4], hidden_size=8)
        self.embeddings = reformer.AxialPositionEmbeddings(config).eval()

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings of positions (batch, length)."""
        result: torch.Tensor = self.embeddings(position_ids)
        return result


@register_patch(
    "model",
    "transformers.models.reformer.modeling_reformer.AxialPositionEmbeddings.forward",
    why="a Python loop over the rows of the batch looks their positions up, which freezes the batch",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_AxialTable, lambda: (torch.arange(12).reshape(2, 6),), dynamic=True, builds=True),
)
def _patch_axial_lookup(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look all of them up in one table. In training the model drops whole columns, which is left to its own code."""

    def forward(self: Any, position_ids: torch.Tensor) -> Any:
        if self.training:
            return NotImplemented
        tables = [weight.expand(*self.axial_pos_shape, weight.shape[-1]) for weight in self.weights]
        return torch.nn.functional.embedding(position_ids, torch.cat(tables, dim=-1).flatten(0, 1))

    return forward


class _PromptMask(torch.nn.Module):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.cpmant import modeling_cpmant as cpmant

        self.owner, self.prompt_length = cpmant.CpmAntModel, 2

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The attention mask of token ids (batch, length), behind a prompt of two."""
        zeros = torch.zeros_like(input_ids)
        length = torch.full((input_ids.shape[0],), 3)
        mask: torch.Tensor = self.owner._prepare_attention_mask(self, input_ids, zeros, zeros.bool(), length)
        return mask


@register_patch(
    "model",
    "transformers.models.cpmant.modeling_cpmant.CpmAntModel._prepare_attention_mask",
    why="a Python list as long as the sequence is made and turned round, which freezes the length",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_PromptMask, lambda: (torch.ones(2, 7, dtype=torch.int64),), dynamic=True, builds=True),
)
def _patch_prompt_mask(original: Callable[..., Any]) -> Callable[..., Any]:
    """Count from the end as a tensor."""

    def prepare_attention_mask(
        self: Any, input_ids: torch.Tensor, span: torch.Tensor, context: torch.Tensor, length: torch.Tensor
    ) -> torch.Tensor:
        count = input_ids.shape[1]
        place = torch.arange(count, device=input_ids.device)
        seen = context[:, None, :] | (context[:, :, None].logical_not() & (place <= place.view(-1, 1)))
        seen = seen & (span[:, None, :] == span[:, :, None])
        prompt = place < self.prompt_length
        real = prompt | (count - 1 - place < length[:, None])  # texts are padded between the prompt and themselves
        mask: torch.Tensor = real[:, :, None] & real[:, None, :] & seen
        return mask

    return prepare_attention_mask
