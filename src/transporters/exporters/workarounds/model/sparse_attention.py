# SPDX-License-Identifier: Apache-2.0
"""Attention over a choice of positions, how many of which the logarithm of the length says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


def counted(count: torch.Tensor, *, most: Any) -> Any:
    """A number of positions that a tensor (one integer) holds, from 0 up to ``most``, as a size."""
    size: Any = count.item()
    torch._check(size >= 0)  # type: ignore[no-untyped-call]
    torch._check(size <= most)  # type: ignore[no-untyped-call]
    return size


def _length(size: Any) -> torch.Tensor:
    return torch.scalar_tensor(size, dtype=torch.float64)


def _by_head(module: Any, states: torch.Tensor) -> torch.Tensor:
    """(batch, length, heads * width) to (batch * heads, length, width)."""
    return states.view(*states.shape[:2], module.num_heads, module.head_dim).transpose(1, 2).flatten(0, 1)


def _split(module: Any, states: torch.Tensor) -> torch.Tensor:
    """(batch * heads, length, width) to (batch, heads, length, width)."""
    return states.view(-1, module.num_heads, *states.shape[1:])


def _keys_and_values(module: Any, states: torch.Tensor, source: Any, cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (batch * heads, length, width), through a cache where there is one."""
    from transformers import EncoderDecoderCache

    held, layer = cache, module.layer_idx
    if isinstance(cache, EncoderDecoderCache):
        held = cache.self_attention_cache if source is None else cache.cross_attention_cache
        if source is not None and cache.is_updated.get(layer):
            return held.layers[layer].keys.flatten(0, 1), held.layers[layer].values.flatten(0, 1)
        if source is not None:
            cache.is_updated[layer] = True
    states = states if source is None else source
    keys, values = _by_head(module, module.k_proj(states)), _by_head(module, module.v_proj(states))
    if held is None:
        return keys, values
    kept = held.update(_split(module, keys), _split(module, values), layer)
    return kept[0].flatten(0, 1), kept[1].flatten(0, 1)


def _joined(module: Any, states: torch.Tensor) -> torch.Tensor:
    """Inverse of `_by_head`, through the last projection."""
    projected: torch.Tensor = module.out_proj(_split(module, states).transpose(1, 2).flatten(2))
    return projected


class _Probable(torch.nn.Module):
    """The fault, for the reproducer: the queries that attend are few, and their number depends on the length."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.informer import modeling_informer as informer

        # As many keys are drawn as there are, so that what is drawn at random matters little: all of one value.
        self.attention = informer.InformerProbSparseAttention(8, 2, sampling_factor=2, is_decoder=True)
        torch.nn.init.zeros_(self.attention.k_proj.weight)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States (batch, length, 8)."""
        found: torch.Tensor = self.attention(states)[0]
        return found


@register_patch(
    "model",
    "transformers.models.informer.modeling_informer.InformerProbSparseAttention.forward",
    why="how many queries attend is worked out by `math.log1p` of the length, which freezes it",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Probable, lambda: (torch.rand(2, 9, 8),), dynamic=True, builds=True),
)
def _patch_probable_queries(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work the numbers out on tensors."""

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        cache: Any = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.training:
            return NotImplemented
        queries = _by_head(self, self.q_proj(hidden_states) * self.scaling)
        keys, values = _keys_and_values(self, hidden_states, key_value_states, cache)
        _, asked, width = queries.shape
        length = keys.shape[1]
        drawn = self.factor * asked * _length(length).log1p().ceil()
        drawn = counted(torch.minimum(drawn, _length(length)).long(), most=length)
        torch._check(drawn >= 1)  # type: ignore[no-untyped-call]
        few = self.factor * _length(asked).log1p().ceil()
        few = counted(torch.minimum(few, _length(asked)).long(), most=asked)
        products = torch.bmm(queries, keys[:, torch.randint(0, length, (drawn,))].transpose(1, 2))
        sparsity = products.max(dim=-1)[0] - products.sum(dim=-1) / length
        chosen = sparsity.topk(few, sorted=False)[1]
        places = chosen[:, :, None].expand(-1, -1, width)
        weights = torch.bmm(queries.gather(1, places), keys.transpose(1, 2))
        if attention_mask is not None:
            mask = attention_mask.expand(-1, self.num_heads, asked, length).flatten(0, 1)
            weights = weights + mask.gather(1, chosen[:, :, None].expand(-1, -1, length))
        weights = weights.softmax(dim=-1)
        if self.is_decoder:
            context = values.cumsum(dim=-2, dtype=torch.float32).to(values.dtype)
        else:
            context = values.mean(dim=-2)[:, None].expand(-1, asked, -1)
        return _joined(self, context.scatter(1, places, torch.bmm(weights, values))), weights

    return forward


class _Correlated(torch.nn.Module):
    """The fault, for the reproducer: series are joined at a few delays, and their number depends on the length."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.autoformer import modeling_autoformer as autoformer

        self.attention = autoformer.AutoformerAttention(8, 2, autocorrelation_factor=2)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States (batch, length, 8)."""
        found: torch.Tensor = self.attention(states)[0]
        return found


@register_patch(
    "model",
    "transformers.models.autoformer.modeling_autoformer.AutoformerAttention.forward",
    why="how many delays are looked at is worked out by `math.log` of the length, which freezes it, and a Python loop "
    "goes through them",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Correlated, lambda: (torch.rand(2, 9, 8),), dynamic=True, builds=True),
)
def _patch_correlated_delays(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work the number out on a tensor, and look at all delays at once."""

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        cache: Any = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.training or attention_mask is not None:
            return NotImplemented
        queries = _by_head(self, self.q_proj(hidden_states))
        keys, values = _keys_and_values(self, hidden_states, key_value_states, cache)
        asked = queries.shape[1]
        # More queries than keys: the model keeps as many queries as there are too many, and fills up with zeros.
        missing = _length(asked) - _length(values.shape[1])
        kept = torch.where(missing > 0, missing, _length(asked)).to(queries.device)
        queries = torch.where((torch.arange(asked, device=queries.device) < kept)[:, None], queries, 0.0)
        keys, values = (F.pad(states, (0, 0, 0, asked)).narrow(1, 0, asked) for states in (keys, values))
        products = torch.fft.rfft(queries, n=asked, dim=1) * torch.conj(torch.fft.rfft(keys, n=asked, dim=1))
        weights = torch.fft.irfft(products, n=asked, dim=1)
        length, width = values.shape[1:]
        count = counted((self.autocorrelation_factor * _length(length).log()).long(), most=asked)
        means = _split(self, weights).mean(dim=(1, -1))
        shares, delays = means.topk(count, dim=1)
        # The model repeats the rows of the batch as a whole for its heads, though the heads of a row lie side by side.
        shares, delays = (value.repeat(self.num_heads, 1) for value in (shares.softmax(dim=-1), delays))
        places = (delays[:, :, None] + torch.arange(length, device=delays.device)).flatten(1)
        rolled = values.repeat(1, 2, 1).gather(1, places[:, :, None].expand(-1, -1, width))
        rolled = rolled.view(rolled.shape[0], count, length, width)
        return _joined(self, (rolled.float() * shares[:, :, None, None]).sum(dim=1)), weights

    return forward
