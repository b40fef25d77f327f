# SPDX-License-Identifier: Apache-2.0
"""Recurrences that a model computes in chunks, whose number and padding are asked in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch
from .scans import states_before

#: Tokens in a chunk. A graph computes whole chunks for a single token, too, so they are shorter than the models' own.
_CHUNK = 16
#: Doublings between chunks: up to _CHUNK * (2 ** _DOUBLINGS - 1) = 131056 tokens at once.
_DOUBLINGS = 13


def _chunked(states: torch.Tensor, chunks: Any) -> torch.Tensor:
    """(batch, length, heads, …) as (batch, heads, chunks, _CHUNK, …), zeros behind the end."""
    last = states.ndim - 2
    padded = F.pad(states, (0, 0) * last + (0, chunks * _CHUNK - states.shape[1]))
    cut = padded.reshape(states.shape[0], chunks, _CHUNK, *states.shape[2:])
    return cut.movedim(3, 1)


def _decays(logs: torch.Tensor) -> torch.Tensor:
    """Decay from each place of a chunk to each later one: (…, _CHUNK, _CHUNK) of summed logarithms (…, _CHUNK)."""
    later = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool, device=logs.device).triu(1)
    return (logs.unsqueeze(-1) - logs.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()


def _first_of(chunks: Any, value: torch.Tensor) -> torch.Tensor:
    """``value`` (batch, heads, …) in the first of ``chunks`` (batch, heads, chunks, …), zeros in the others."""
    return F.pad(value.unsqueeze(2), (0, 0) * (value.ndim - 2) + (0, chunks - 1))


def _mamba2_scan() -> Callable[..., Any]:
    """The fault, for the reproducer: heads of 2, states of 3, and chunks of 4."""
    from transformers.models.mamba2 import modeling_mamba2 as mamba2

    def scan(inputs_embeds: torch.Tensor) -> Any:
        batch, length, _ = inputs_embeds.shape
        steps, mixed = inputs_embeds[..., :2], inputs_embeds[..., :3].reshape(batch, length, 1, 3)
        decay, states = -torch.arange(1.0, 3.0), inputs_embeds.reshape(batch, length, 2, 2)
        options: dict[str, Any] = {"dt_softplus": True, "dt_bias": decay, "return_final_states": True}
        start = inputs_embeds.sum(dim=1).reshape(batch, 2, 2, 1).repeat(1, 1, 1, 3)
        return mamba2.mamba2_chunk_scan(
            states, steps, decay, mixed, mixed.flip(1), 4, D=decay, initial_states=start, **options
        )

    return scan


@register_patch(
    "model",
    "transformers.models.*.modeling_*.mamba2_chunk_scan",
    why="the number of chunks, and whether the last one is filled up, is asked in Python, so that the program takes "
    "only lengths of as many chunks as its sample has",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_mamba2_scan, lambda: (torch.rand(2, 3, 4),), dynamic=True, builds=True),
)
def _patch_chunk_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """Chunks of 16, always one more than needed, and a doubling scan between them."""

    def chunk_scan(
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        chunk_size: int,
        D: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        initial_states: torch.Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **_: Any,
    ) -> Any:
        batch, length, heads, width = hidden_states.shape
        dt = dt + dt_bias.to(dt.dtype) if dt_bias is not None else dt
        dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit).float()
        chunks = (length + _CHUNK - 1) // _CHUNK + 1  # never 1, which a trace would freeze
        torch._check(chunks <= 1 << _DOUBLINGS)  # type: ignore[no-untyped-call]
        of_heads = (
            states.float().repeat_interleave(heads // states.shape[2], 2, output_size=heads) for states in (B, C)
        )
        keys, queries = (_chunked(states, chunks) for states in of_heads)  # (batch, heads, chunks, _CHUNK, state)
        values = _chunked(hidden_states.float() * dt.unsqueeze(-1), chunks)
        logs = _chunked(A.float() * dt, chunks).cumsum(-1)
        within = (queries @ keys.transpose(-1, -2) * _decays(logs)) @ values
        to_end = (logs[..., -1:] - logs).exp().unsqueeze(-1)
        added = (values.transpose(-1, -2) @ (keys * to_end)).flatten(3)  # (batch, heads, chunks, width * state)
        product = logs[..., -1:].exp()
        if initial_states is None:
            initial_states = added.new_zeros(batch, heads, width, keys.shape[-1])
        start = _first_of(chunks, initial_states.to(added.dtype).flatten(2))
        before = states_before(product, added + product * start) + start
        carried = (queries * logs.exp().unsqueeze(-1)) @ before.reshape(batch, heads, chunks, width, -1).transpose(
            -1, -2
        )
        output = (within + carried).movedim(1, 3).reshape(batch, chunks * _CHUNK, heads, width)
        output = output.narrow(1, 0, length).contiguous()  # callers view it in another shape
        output = output if D is None else output + D[..., None] * hidden_states.float()
        final = (product[:, :, -1] * before[:, :, -1] + added[:, :, -1]).reshape(batch, heads, width, -1)
        return (output, final) if return_final_states else output

    return chunk_scan


def _delta_rule() -> Callable[..., Any]:
    """The fault, for the reproducer: two heads of 2, and chunks of 4."""
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

    def rule(inputs_embeds: torch.Tensor) -> Any:
        states = inputs_embeds.reshape(*inputs_embeds.shape[:2], 2, 2)
        decay, start = -inputs_embeds[..., :2], states.sum(dim=1).unsqueeze(-1).repeat(1, 1, 1, 2)
        options: dict[str, Any] = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        return qwen3_next.torch_chunk_gated_delta_rule(
            states, states.flip(1), states + 1, decay, decay.exp(), chunk_size=4, initial_state=start, **options
        )

    return rule


@register_patch(
    "model",
    "transformers.models.*.modeling_*.torch_chunk_gated_delta_rule",
    why="the scan over chunks is a Python loop, so that the program takes only lengths of as many chunks of 64 as its "
    "sample has",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_delta_rule, lambda: (torch.rand(2, 7, 4),), dynamic=True, builds=True),
)
def _patch_gated_delta_rule(original: Callable[..., Any]) -> Callable[..., Any]:
    """Chunks of 16, always one more than needed, and a doubling scan of their state matrices between them."""

    def gated_delta_rule(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        chunk_size: int = 64,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> Any:
        dtype, (batch, length, heads, width) = query.dtype, value.shape
        chunks = (length + _CHUNK - 1) // _CHUNK + 1  # never 1, which a trace would freeze
        torch._check(chunks <= 1 << _DOUBLINGS)  # type: ignore[no-untyped-call]
        query, key = (_unit(states.float()) if use_qk_l2norm_in_kernel else states.float() for states in (query, key))
        query = query * query.shape[-1] ** -0.5
        query, key = (s.repeat_interleave(heads // s.shape[2], 2, output_size=heads) for s in (query, key))
        query, key, value, scale, logs = (_chunked(s.float(), chunks) for s in (query, key, value, beta, g))
        logs = logs.cumsum(-1)
        scaled = key * scale.unsqueeze(-1)
        decays = _decays(logs)
        solved = _inverse((scaled @ key.transpose(-1, -2)) * decays)
        values = solved @ (value * scale.unsqueeze(-1))
        reads = solved @ (scaled * logs.exp().unsqueeze(-1))
        writes = (key * (logs[..., -1:] - logs).exp().unsqueeze(-1)).transpose(-1, -2)
        identity = torch.eye(key.shape[-1], device=key.device)
        product = identity * logs[..., -1:].exp().unsqueeze(-1) - writes @ reads
        product, total = _composed(product, writes @ values, identity)
        if initial_state is None:
            initial_state = total.new_zeros(batch, heads, key.shape[-1], width)
        start = initial_state.to(total.dtype).unsqueeze(2)
        after = product @ start + total
        before = torch.cat([start, after[:, :, :-1]], dim=2)
        read = (query * logs.exp().unsqueeze(-1)) @ before
        output = read + ((query @ key.transpose(-1, -2)) * decays) @ (values - reads @ before)
        output = output.movedim(1, 3).reshape(batch, chunks * _CHUNK, heads, width).narrow(1, 0, length).to(dtype)
        return output, after[:, :, -1] if output_final_state else None

    return gated_delta_rule


def _unit(states: torch.Tensor) -> torch.Tensor:
    return states * torch.rsqrt((states * states).sum(dim=-1, keepdim=True) + 1e-6)


def _inverse(lower: torch.Tensor) -> torch.Tensor:
    """Inverse of the identity plus what is strictly below the diagonal of (…, _CHUNK, _CHUNK), row after row."""
    identity = torch.eye(_CHUNK, dtype=lower.dtype, device=lower.device)
    rows = lower[..., :1, :] * 0 + identity[:1]
    for row in range(1, _CHUNK):
        rows = torch.cat([rows, identity[row] - lower[..., row : row + 1, :row] @ rows], dim=-2)
    return rows


def _composed(product: torch.Tensor, total: torch.Tensor, identity: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All steps up to each chunk as one: ``state -> product @ state + total``, for (batch, heads, chunks, …)."""
    place = torch.arange(product.shape[2], device=product.device)
    for doubling in range(_DOUBLINGS):
        source = place - (1 << doubling)
        reachable, source = (source >= 0).reshape(1, 1, -1, 1, 1), source.clamp(min=0)
        total = total + product @ torch.where(reachable, total.index_select(2, source), 0.0)
        product = product @ torch.where(reachable, product.index_select(2, source), identity)
    return product, total
