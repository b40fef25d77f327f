# SPDX-License-Identifier: Apache-2.0
"""Complex numbers, which ONNX knows only as pairs of real ones in a last axis of two."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_ATEN = torch.ops.aten


def _turn(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: rotary positions as a complex product."""
    angles = torch.arange(x.shape[1])[:, None] * torch.arange(x.shape[3] // 2) * 0.1
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2)


@register_fx_node_fix(
    "onnx",
    ops=(_ATEN.unsqueeze.default, _ATEN.select.int, _ATEN.expand.default, _ATEN.index.Tensor),
    why="there is no translation of an operation that only moves values when the values are complex",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_turn, lambda: (torch.randn(2, 5, 3, 8),), dynamic=True),
)
def _fix_complex_movement(graph_module: GraphModule, node: Node) -> bool:
    """Move the pairs of real numbers instead."""
    value = node.args[0]
    if not isinstance(value, Node) or not value.meta["val"].is_complex():
        return False
    with graph_module.graph.inserting_before(node):
        pairs = _call(graph_module, _ATEN.view_as_real.default, value)
        moved = _call(graph_module, node.target, pairs, *_for_pairs(node))
        made = _call(graph_module, _ATEN.view_as_complex.default, moved)
    made.meta = {**node.meta, "val": made.meta["val"]}
    _take_over(node, made)
    return True


def _take_over(node: Node, made: Node) -> None:
    """Put a node in another's place, under its name: the program knows its outputs by name."""
    name = node.name
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    made.name = name


def _for_pairs(node: Node) -> tuple[Any, ...]:
    """The operation's arguments, with axes counted past the pair."""
    first, *rest = node.args[1:]
    if node.target is _ATEN.expand.default:
        return ([*first, 2], *rest)  # type: ignore[misc]
    if node.target is _ATEN.index.Tensor:
        return (first, *rest)
    return (first - 1 if isinstance(first, int) and first < 0 else first, *rest)


def _convolve(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer."""
    n = 2 * x.shape[1]
    made: torch.Tensor = torch.fft.irfft(torch.fft.rfft(x, n=n) * torch.fft.rfft(x.flip(1), n=n), n=n)
    return made


@register_fx_node_fix(
    "onnx",
    ops=(_ATEN._fft_c2r.default,),
    why="the default asks for an inverse transform from half a spectrum, whose length ONNX Runtime gets wrong",
    issue="unreported",
    needed="onnxscript>=0.7",
    repro=Repro(_convolve, lambda: (torch.randn(2, 12) / 8,), dynamic=True),
)
def _fix_real_inverse_transform(graph_module: GraphModule, node: Node) -> bool:
    """Complete the spectrum, whose other half mirrors the first, and transform it as it is."""
    half, dims, norm, size = node.args
    assert isinstance(half, Node)
    assert isinstance(dims, (list, tuple))
    axis: Any = dims[-1]
    with graph_module.graph.inserting_before(node):
        if len(dims) > 1:
            half = _call(graph_module, _ATEN._fft_c2c.default, half, list(dims[:-1]), norm, False)
        end: Any = size // 2 if isinstance(size, int) else _call(graph_module, operator.floordiv, size, 2)
        both_int = isinstance(size, int) and isinstance(end, int)
        stop: Any = size - end if both_int else _call(graph_module, operator.sub, size, end)
        inner = _call(graph_module, _ATEN.slice.Tensor, half, axis, 1, stop)
        mirrored = _call(graph_module, _ATEN.flip.default, inner, [axis])
        mirrored = _conjugate(graph_module, mirrored)
        spectrum = _call(graph_module, _ATEN.cat.default, [half, mirrored], axis)
        whole = _call(graph_module, _ATEN._fft_c2c.default, spectrum, [axis], norm, False)
        pairs = _call(graph_module, _ATEN.view_as_real.default, whole)
        made = _call(graph_module, _ATEN.select.int, pairs, -1, 0)
    made.meta = {**node.meta, "val": made.meta["val"]}
    _take_over(node, made)
    return True


def _conjugate(graph_module: GraphModule, value: Node) -> Node:
    """The conjugate; a fake tensor that only notes it cannot be joined with others, so the shape is the value's own."""
    node = graph_module.graph.call_function(_ATEN._conj.default, (value,))
    node.meta["val"] = value.meta["val"]
    return node


def _call(graph_module: GraphModule, target: Any, *args: Any) -> Node:
    """A new node with the shape that its operation gives."""
    node = graph_module.graph.call_function(target, args)
    values = torch.fx.map_arg(args, lambda arg: arg.meta["val"])
    # A transform keeps the shape. Asked for it, it fails on some fake tensors ("tried to directly modify sizes").
    node.meta["val"] = values[0] if target is _ATEN._fft_c2c.default else target(*values)
    return node
