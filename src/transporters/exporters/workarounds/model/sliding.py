# SPDX-License-Identifier: Apache-2.0
"""Attention in a sliding window with a few global tokens, written over overlapping views and lists of indices."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch

#: Whether the model that runs was given a mask of global tokens.
_SOME_GLOBAL: ContextVar[bool] = ContextVar("some_global", default=False)

#: Names of what is padded to whole windows, in the order in which the models want it back, with the filler.
_PADDED = {"input_ids": "token", "attention_mask": 0, "token_type_ids": 0, "position_ids": "token", "inputs_embeds": ""}


class _Padding:
    """A number of filler tokens at the end that may turn out to be 0 when the program runs.

    The models ask whether there are any, which is always answered with yes, and cut them off: by a length without
    them, or as ``[:-padding]``, which for 0 would leave nothing, so that the negative is the length without them.
    """

    def __init__(self, size: Any, length: Any) -> None:
        self._size, self._length = size, length

    def __gt__(self, _: int) -> bool:
        return True

    def __neg__(self) -> Any:
        return self._length

    def __rsub__(self, other: Any) -> Any:
        return other - self._size


def with_neighbours(states: torch.Tensor, window: int) -> torch.Tensor:
    """Each block of ``window`` positions with the blocks before and after it; zeros stand beyond the ends.

    Args:
        states: (batch, heads, length, features), the length in whole windows.
        window: Positions in a block.

    Returns:
        (batch, heads, blocks, 3 * window, features).
    """
    batch, heads, length, features = states.shape
    count = length // window
    blocks = F.pad(states.reshape(batch, heads, count, window, features), (0, 0, 0, 0, 1, 1))
    return torch.cat([blocks.narrow(2, start, count) for start in range(3)], dim=3)


def _local_scores(query: torch.Tensor, key: torch.Tensor, open_keys: torch.Tensor, window: int) -> torch.Tensor:
    """Scores (batch, heads, blocks, window, 3 * window) of keys at most ``window`` away and open (batch, length)."""
    batch, heads, length, features = query.shape
    blocks = query.reshape(batch, heads, length // window, window, features)
    scores = blocks @ with_neighbours(key, window).transpose(-1, -2)
    row = torch.arange(window, device=query.device)[:, None]
    column = torch.arange(3 * window, device=query.device)[None, :]
    near = (column >= row) & (column <= row + 2 * window)
    is_open = with_neighbours(open_keys[:, None, :, None].to(query.dtype), window).squeeze(-1).unsqueeze(-2) > 0
    return scores.masked_fill(~(near & is_open), torch.finfo(query.dtype).min)


class _SlidingModel(torch.nn.Module):
    """The fault, for the reproducer: windows of 4, every third token global, and 16 positions, so that the sample of
    whole windows cannot be traced at twice its size."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.longformer import modeling_longformer as longformer

        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        more = {"vocab_size": 50, "attention_window": 4, "max_position_embeddings": 18, "initializer_range": 0.4}
        self.model = longformer.LongformerModel(longformer.LongformerConfig(**sizes, **more))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Hidden states (batch, length, 16) of ids from 2 up, of which 2 is no token."""
        is_global = (input_ids % 3 == 0).long()
        mask = (input_ids != 2).long()
        found: torch.Tensor = self.model(input_ids, attention_mask=mask, global_attention_mask=is_global)[0]
        return found


_SLIDING = Repro(_SlidingModel, lambda: (torch.randint(2, 50, (2, 8)),), dynamic=True, builds=True)


@register_patch(
    "model",
    "transformers.models.longformer.modeling_longformer.LongformerModel._pad_to_window_size",
    "transformers.models.led.modeling_led.LEDEncoder._pad_to_window_size",
    why="tokens are padded to whole windows only under an `if`, so that a program takes either lengths that need "
    "padding or lengths that need none",
    issue="https://github.com/pytorch/pytorch/issues/136216",
    needed="transformers>=5.24",
    repro=_SLIDING,
)
def _patch_window_padding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pad always, by an amount that may be 0, which the caller takes off again."""

    def pad_to_window_size(self: Any, *, pad_token_id: int, **tensors: Any) -> Any:
        window = self.config.attention_window
        window = window if isinstance(window, int) else max(window)
        ids, embedded = tensors["input_ids"], tensors["inputs_embeds"]
        length = (ids if ids is not None else embedded).shape[1]
        missing = (length + window - 1) // window * window - length
        padded: list[Any] = []
        for name, filler in _PADDED.items():
            tensor = tensors.get(name)
            if tensor is not None and name == "inputs_embeds":
                embed = getattr(self, "embeddings", None) or self.embed_tokens
                fillers = embed(tensor.new_full((tensor.shape[0], window), pad_token_id, dtype=torch.long))
                tensor = torch.cat([tensor, fillers], dim=1)[:, : length + missing]
            elif tensor is not None:
                tensor = F.pad(tensor, (0, missing), value=pad_token_id if filler == "token" else 0)
            padded += [tensor] if name in tensors else []
        return _Padding(missing, length), *padded

    return pad_to_window_size


@register_patch(
    "model",
    "transformers.models.longformer.modeling_longformer.LongformerModel.forward",
    "transformers.models.led.modeling_led.LEDEncoder.forward",
    why="whether any token is global is asked of the mask's values; a program has to know it beforehand",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_SLIDING,
)
def _patch_global_question(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let the attention know whether there is a mask of global tokens at all."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments.get("global_attention_mask")
        token = _SOME_GLOBAL.set(given is not None)
        try:
            return original(self, *args, **kwargs)
        finally:
            _SOME_GLOBAL.reset(token)

    return forward


@register_patch(
    "model",
    "transformers.models.longformer.modeling_longformer.LongformerSelfAttention.forward",
    "transformers.models.led.modeling_led.LEDEncoderSelfAttention.forward",
    why="windows are cut as overlapping strided views whose number goes through a tensor, and global tokens are "
    "gathered into a list as long as the mask says",
    issue="https://github.com/huggingface/transformers/pull/46169",
    needed="transformers>=5.24",
    repro=_SLIDING,
)
def _patch_sliding_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attend to blocks and their neighbours; with a mask of global tokens also to every token, and pick by the mask.

    A 2 in ``attention_mask`` itself, which eager takes for a global token, is one only beside a mask of global tokens.
    """

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor,
        is_index_masked: torch.Tensor,
        is_index_global_attn: torch.Tensor,
        is_global_attn: Any = None,
        output_attentions: bool = False,
    ) -> Any:
        if output_attentions:
            return NotImplemented
        batch, length, width = hidden_states.shape
        window, features = self.one_sided_attn_window_size, self.head_dim
        heads = functools.partial(_heads, hidden_states, features)
        query, key, value = heads(self.query) / math.sqrt(features), heads(self.key), heads(self.value)
        scores = _local_scores(query, key, attention_mask == 0, window)
        if _SOME_GLOBAL.get():
            shape = (*scores.shape[:-1], length)
            to_global = (query @ key.transpose(-1, -2)).masked_fill(
                ~is_index_global_attn[:, None, None, :], torch.finfo(query.dtype).min
            )
            scores = torch.cat([to_global.reshape(shape), scores], dim=-1)
        hidden_rows = is_index_masked.reshape(batch, 1, length // window, window, 1)
        weights = scores.softmax(-1, dtype=torch.float32).masked_fill(hidden_rows, 0.0).type_as(scores)
        local = weights.narrow(-1, weights.shape[-1] - 3 * window, 3 * window) @ with_neighbours(value, window)
        result = local.reshape(batch, -1, length, features)
        if _SOME_GLOBAL.get():
            of_global = weights.narrow(-1, 0, length).reshape(batch, -1, length, length)
            result = result + of_global @ value
        result = result.transpose(1, 2).reshape(batch, length, width)
        if _SOME_GLOBAL.get():
            result = torch.where(is_index_global_attn[..., None], _of_all(self, heads, is_index_masked), result)
        return (result,)

    return forward


def _heads(states: torch.Tensor, features: int, project: torch.nn.Module) -> torch.Tensor:
    """Projected states as (batch, heads, length, features)."""
    projected: torch.Tensor = project(states)
    return projected.reshape(*states.shape[:2], -1, features).transpose(1, 2)


def _of_all(attention: Any, heads: Callable[..., torch.Tensor], is_masked: torch.Tensor) -> torch.Tensor:
    """What every token (batch, length, width) would see if it were global."""
    query = heads(attention.query_global) / math.sqrt(attention.head_dim)
    scores = query @ heads(attention.key_global).transpose(-1, -2)
    scores = scores.masked_fill(is_masked[:, None, None, :], torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).type_as(scores)
    return (weights @ heads(attention.value_global)).transpose(1, 2).flatten(2)
