# SPDX-License-Identifier: Apache-2.0
"""Recurrences that a model writes as a Python loop over the sequence."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch

#: Steps that are unrolled. Longer chunks mean more nodes, shorter ones more work between chunks.
_CHUNK = 16
#: Doublings between chunks: sequences up to _CHUNK * 2 ** _DOUBLINGS = 131072 tokens.
_DOUBLINGS = 13

#: The state (batch, channels, state) before the first step of the next selective scan. The models start from zeros when
#: several tokens follow a state; a decoder's graph sets this, because there the same scan does all steps.
INITIAL_STATE: ContextVar[torch.Tensor | None] = ContextVar("initial_state", default=None)


def linear_recurrence(decay: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """All states of ``state[t] = decay[t] * state[t - 1] + inputs[t]`` with a zero start, for any length.

    The sequence is cut into chunks of 16. Within a chunk the steps are unrolled and all chunks advance together;
    between chunks a doubling scan (Hillis and Steele, 1986) carries the states on. Every multiplication is by a product
    of decays, so with decays in [0, 1] nothing can overflow, unlike in forms that divide by a running product.

    Args:
        decay: (batch, channels, length, state).
        inputs: The same shape.

    Returns:
        (batch, channels, length, state). Lengths above 131072 are refused when the program runs.
    """
    batch, channels, length, state = decay.shape
    torch._check(length <= _CHUNK << _DOUBLINGS)  # type: ignore[no-untyped-call]
    chunks = (length + _CHUNK - 1) // _CHUNK + 1  # never 1, which a trace would freeze
    padding = (0, 0, 0, chunks * _CHUNK - length)
    decay = F.pad(decay, padding).reshape(batch, channels, chunks, _CHUNK, state)
    inputs = F.pad(inputs, padding).reshape(batch, channels, chunks, _CHUNK, state)
    product, total = decay[:, :, :, 0], inputs[:, :, :, 0]
    products, totals = [product], [total]
    for step in range(1, _CHUNK):
        total = decay[:, :, :, step] * total + inputs[:, :, :, step]
        product = decay[:, :, :, step] * product
        products.append(product)
        totals.append(total)
    carried = states_before(product, total)
    within = torch.stack(totals, dim=3) + torch.stack(products, dim=3) * carried.unsqueeze(3)
    return within.reshape(batch, channels, chunks * _CHUNK, state)[:, :, :length]


def states_before(product: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """The state at the start of every chunk, from each chunk's decay product and end state (dimension 2)."""
    position = torch.arange(product.shape[2], device=product.device)
    for doubling in range(_DOUBLINGS):
        source = position - (1 << doubling)
        reachable = (source >= 0).reshape(1, 1, -1, 1)
        source = source.clamp(min=0)
        before = torch.where(reachable, total.index_select(2, source), 0.0)
        total = total + product * before
        product = product * torch.where(reachable, product.index_select(2, source), 1.0)
    source = (position - 1).clamp(min=0)
    return torch.where((position > 0).reshape(1, 1, -1, 1), total.index_select(2, source), 0.0)


def _scan() -> Callable[..., Any]:
    """The fault, for the reproducer."""
    from transformers.models.mamba import modeling_mamba as mamba

    def scan(inputs_embeds: torch.Tensor) -> Any:
        x = inputs_embeds.transpose(1, 2)
        decay, mixed = -torch.arange(1.0, 9.0).reshape(2, 4), x.repeat(1, 2, 1)
        skip = torch.tensor([0.5, 2.0])
        options = {"D": skip, "z": x, "delta_bias": skip, "delta_softplus": True, "return_last_state": True}
        return mamba.mamba_selective_scan(x, x, decay, mixed, mixed.flip(1), **options)

    return scan


@register_patch(
    "model",
    "transformers.models.*.modeling_*.mamba_selective_scan",
    why="the selective scan runs a Python loop over the sequence, which freezes its length and unrolls into one step "
    "per token",
    issue="https://github.com/huggingface/transformers/issues/33839",
    needed="transformers>=5.24",
    repro=Repro(_scan, lambda: (torch.rand(2, 7, 2),), dynamic=True, builds=True),
)
def _patch_selective_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compute the same states with a chunked scan."""

    def selective_scan(
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor | None = None,
        z: torch.Tensor | None = None,
        delta_bias: torch.Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **_: Any,
    ) -> Any:
        dtype = hidden_states.dtype
        if delta_bias is not None:
            dt = dt + delta_bias.to(dt.dtype)[..., None]
        if delta_softplus:
            dt = F.softplus(dt)
        step = dt.unsqueeze(-1)  # (batch, channels, length, 1)
        decay = torch.exp(A[None, :, None, :] * step)
        inputs = step * B.transpose(1, 2).unsqueeze(1).float() * hidden_states.unsqueeze(-1).float()
        start = INITIAL_STATE.get()
        if start is not None:
            INITIAL_STATE.set(None)
            first = decay[:, :, :1] * start.unsqueeze(2).to(decay.dtype)
            inputs = inputs + F.pad(first, (0, 0, 0, inputs.shape[2] - 1))
        states = linear_recurrence(decay, inputs)
        read = (states.to(dtype) * C.transpose(1, 2).unsqueeze(1)).sum(-1)
        if D is not None:
            read = read + hidden_states * D[None, :, None]
        if z is not None:
            read = read * F.silu(z)
        return (read, states[:, :, -1].to(dtype)) if return_last_state else read

    return selective_scan
