# SPDX-License-Identifier: Apache-2.0
"""Attention over a sparse pattern of blocks, which a model gives up for full attention when the text is short."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from ...registry import Repro, register_patch

#: The mask of tokens (batch, length) of the model that runs, else None.
_TOKENS: ContextVar[torch.Tensor | None] = ContextVar("tokens", default=None)


def block_pattern(length: Any, block: int, extra: int, device: torch.device) -> torch.Tensor:
    """What to add to the scores (length, length) so that full attention becomes attention over BigBird's blocks.

    The first and the last block see all and are seen by all; the others see themselves and their neighbours. Random
    blocks are random in training only: outside of it each of them is the first block once more. Keys that count n
    times get log(n), keys that are not seen the lowest number. Up to ``(5 + 2 * extra) * block`` tokens the models use
    full attention, where nothing is added.
    """
    position = torch.arange(length, device=device)
    count = (length + block - 1) // block
    row, column = position[:, None] // block, position[None, :] // block
    is_end_row = (row == 0) | (row == count - 1)
    is_seen = is_end_row | (column == 0) | (column == count - 1) | ((row - column).abs() <= 1)
    counted = torch.where((column == 0) & ~is_end_row, math.log(1 + extra), 0.0)
    pattern = torch.where(is_seen, counted, torch.finfo(torch.float32).min)
    return torch.where(is_sparse(length, block, extra, device), pattern, 0.0)


def is_sparse(length: Any, block: int, extra: int, device: torch.device) -> torch.Tensor:
    """Whether a text is long enough for the pattern: scalar bool."""
    return torch.scalar_tensor(length, dtype=torch.int64, device=device) > (5 + 2 * extra) * block


class _BlockSparseModel(torch.nn.Module):
    """The fault, for the reproducer: blocks of 2, which are used from 15 tokens up."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.big_bird import modeling_big_bird as big_bird

        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        more = {"vocab_size": 50, "block_size": 2, "num_random_blocks": 1, "max_position_embeddings": 128}
        config = big_bird.BigBirdConfig(**sizes, **more, attention_type="block_sparse", initializer_range=0.4)
        self.model = big_bird.BigBirdModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Hidden states (batch, length, 16) of ids from 2 up, of which 2 is no token."""
        found: torch.Tensor = self.model(input_ids, attention_mask=(input_ids != 2).long())[0]
        return found


_BLOCKS = Repro(_BlockSparseModel, lambda: (torch.randint(2, 50, (2, 17)),), dynamic=True, builds=True)


@register_patch(
    "model",
    "transformers.models.big_bird.modeling_big_bird.BigBirdModel.forward",
    "transformers.models.bigbird_pegasus.modeling_bigbird_pegasus.BigBirdPegasusEncoder.forward",
    why="the length decides in Python between full and sparse attention, and swaps the model's layers for good",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_BLOCKS,
)
def _patch_sparse_choice(original: Callable[..., Any]) -> Callable[..., Any]:
    """Go the way of full attention at any length, and hand the mask of tokens to the attention."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        if self.attention_type != "block_sparse" or getattr(self.config, "is_decoder", False):
            return NotImplemented
        mask = given.get("attention_mask")
        if mask is None:
            ids = given.get("input_ids")
            mask = torch.ones_like(ids if ids is not None else given["inputs_embeds"][..., 0])
        token = _TOKENS.set(mask)
        try:
            with _full_attention(self):
                return original(self, *args, **kwargs)
        finally:
            _TOKENS.reset(token)

    return forward


@contextmanager
def _full_attention(model: torch.nn.Module) -> Iterator[None]:
    """Let the model and its layers believe that they use full attention."""
    owners = [module for module in model.modules() if module.__dict__.get("attention_type") == "block_sparse"]
    for module in owners:
        module.__dict__["attention_type"] = "original_full"
    try:
        yield
    finally:
        for module in owners:
            module.__dict__["attention_type"] = "block_sparse"


@register_patch(
    "model",
    "transformers.models.big_bird.modeling_big_bird.BigBirdBlockSparseAttention.forward",
    "transformers.models.bigbird_pegasus.modeling_bigbird_pegasus.BigBirdPegasusBlockSparseAttention.forward",
    why="the pattern of blocks is drawn up in NumPy for one length, and parts of it are written into views",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_BLOCKS,
)
def _patch_block_sparse_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attend to everything, with the pattern added to the scores. Tokens that are none get zeros, as in the models."""

    def forward(self: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        tokens = _TOKENS.get()
        if tokens is None:
            return NotImplemented
        is_token = tokens != 0
        batch, length, _width = hidden_states.shape
        features = self.attention_head_size

        def heads(project: torch.nn.Module) -> torch.Tensor:
            projected: torch.Tensor = project(hidden_states)
            return projected.reshape(batch, length, -1, features).transpose(1, 2)

        block, extra, lowest = self.block_size, self.num_random_blocks, torch.finfo(hidden_states.dtype).min
        scores = heads(self.query) @ heads(self.key).transpose(-1, -2) / math.sqrt(features)
        scores = scores + block_pattern(length, block, extra, scores.device).to(scores.dtype).clamp(min=lowest)
        weights = scores.masked_fill(~is_token[:, None, None, :], lowest).softmax(-1)
        result = (weights @ heads(self.value)).transpose(1, 2).reshape(batch, length, -1)
        is_kept = is_token | ~is_sparse(length, block, extra, scores.device)
        return result * is_kept.unsqueeze(-1).to(result.dtype), None

    return forward
