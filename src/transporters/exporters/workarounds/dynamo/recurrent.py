# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of torch, which a trace unrolls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.scan import scan_op

from ...registry import Repro, register_patch


def _step(state: torch.Tensor, cell: torch.Tensor, gates: torch.Tensor, recurrent: torch.Tensor) -> list[torch.Tensor]:
    """One step of an LSTM.

    Args:
        state: (batch, hidden).
        cell: (batch, hidden).
        gates: (batch, 4 * hidden): what the input and the biases add.
        recurrent: (4 * hidden, hidden): weights of the state.

    Returns:
        The next state, the next cell, and both in one tensor, because an output may not be a state itself.
    """
    enters, forgets, new, leaves = (gates + F.linear(state, recurrent)).chunk(4, -1)
    cell = forgets.sigmoid() * cell + enters.sigmoid() * new.tanh()
    state = leaves.sigmoid() * cell.tanh()
    return [state, cell, torch.cat([state, cell], dim=-1)]


def _run(inputs: torch.Tensor, state: torch.Tensor, cell: torch.Tensor, layer: Any, suffix: str) -> list[torch.Tensor]:
    """One direction of one layer over inputs (length, batch, width): last state, last cell, and all outputs."""
    gates = F.linear(inputs, getattr(layer, f"weight_ih_{suffix}"), getattr(layer, f"bias_ih_{suffix}", None))
    if layer.bias:
        gates = gates + getattr(layer, f"bias_hh_{suffix}")
    weights = getattr(layer, f"weight_hh_{suffix}")
    backwards = suffix.endswith("_reverse")
    state, cell, both = scan_op(_step, [state, cell], [gates.flip(0) if backwards else gates], (weights,))
    outputs = both.narrow(-1, 0, layer.hidden_size)
    return [state, cell, outputs.flip(0) if backwards else outputs]


class _Layers(torch.nn.Module):
    """The fault, for the reproducer: two layers in one direction, and one in both."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = torch.nn.LSTM(3, 4, num_layers=2, batch_first=True)
        self.both = torch.nn.LSTM(4, 2, bias=False, bidirectional=True)

    def forward(self, inputs_embeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs and last states for inputs (batch, length, 3)."""
        states, (last, _) = self.forwards(inputs_embeds)
        given = (last[:, :, :2].contiguous(), last[:, :, 2:].contiguous())
        again, _ = self.both(states.transpose(0, 1), given)
        return states, last, again


@register_patch(
    "dynamo",
    "torch.nn.LSTM.forward",
    why="an LSTM is unrolled into one step per element of the sequence, which freezes its length",
    issue="https://github.com/pytorch/pytorch/issues/115092",
    needed="torch>=2.13,<2.14",
    repro=Repro(_Layers, lambda: (torch.rand(3, 5, 3),), dynamic=True, builds=True),
)
def _patch_lstm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Scan the sequence."""

    signature = inspect.signature(original)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        inputs, hx = given["input"], given.get("hx")
        if not isinstance(inputs, torch.Tensor) or inputs.ndim != 3 or self.proj_size:
            return NotImplemented
        if not isinstance(inputs.shape[int(self.batch_first)], torch.SymInt) or (self.training and self.dropout):
            return NotImplemented
        suffixes = ["", "_reverse"] if self.bidirectional else [""]
        outputs = inputs.transpose(0, 1) if self.batch_first else inputs
        shape = (self.num_layers * len(suffixes), outputs.shape[1], self.hidden_size)
        first, cells = hx if hx is not None else (outputs.new_zeros(shape), outputs.new_zeros(shape))
        last = []
        for layer in range(self.num_layers):
            start = layer * len(suffixes)
            found = [
                _run(outputs, first[start + n], cells[start + n], self, f"l{layer}{suffix}")
                for n, suffix in enumerate(suffixes)
            ]
            last += [pair[:2] for pair in found]
            outputs = torch.cat([each[2] for each in found], dim=-1)
        states, cells = (torch.stack(each) for each in zip(*last))
        return outputs.transpose(0, 1) if self.batch_first else outputs, (states, cells)

    return forward
