# SPDX-License-Identifier: Apache-2.0
"""Which part of a lowered graph the delegate has, in operations and in multiply-adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from .executorch_sizes import upper

#: How many multiply-adds an output element takes: by the operation's name, the size of an argument along these axes.
_INNER: dict[str, tuple[int, tuple[int, ...]]] = {
    "mm.default": (0, (-1,)),
    "bmm.default": (0, (-1,)),
    "addmm.default": (1, (-1,)),
    "linear.default": (0, (-1,)),
}


def shares(program: ExportedProgram) -> dict[str, Any]:
    """Nodes and multiply-adds at the largest sizes: in all, and the delegates' part.

    Returns:
        ``delegates``: number of subgraphs by delegate; ``operators``: those that are left to the kernels, with how
        often; ``nodes`` and ``multiply_adds``: ``total``, ``delegated`` and ``share``.
    """
    totals = {"nodes": [0, 0], "multiply_adds": [0, 0]}
    left: Counter[str] = Counter()
    delegates: Counter[str] = Counter()
    for node, delegate in _operations(program.graph_module):
        for key, count in (("nodes", 1), ("multiply_adds", multiply_adds(node))):
            totals[key][0] += count
            totals[key][1] += count if delegate else 0
        if not delegate:
            left[_name(node)] += 1
    for _, module in lowered_modules(program.graph_module):
        delegates[module.backend_id] += 1
    return {
        "delegates": dict(sorted(delegates.items())),
        "operators": dict(sorted(left.items())),
        **{key: _share(*counts) for key, counts in totals.items()},
    }


def multiply_adds(node: Node) -> int:
    """Of one operation at the largest sizes; 0 for those that do not multiply matrices or convolve."""
    value = node.meta.get("val")
    name = _name(node)
    if not isinstance(value, torch.Tensor):
        return 0
    elements = prod(upper(size) or 0 for size in value.shape)
    if name in _INNER:
        position, axes = _INNER[name]
        shape = _shape(node.args[position])
        return elements * prod(upper(shape[axis]) or 0 for axis in axes)
    if name == "convolution.default":
        weight = _shape(node.args[1])
        transposed = bool(node.args[6])
        per_element = prod(weight[1:]) if not transposed else prod(weight[2:]) * weight[0] // int(str(node.args[8]))
        return int(elements * per_element)
    return 0


def lowered_modules(graph_module: torch.fx.GraphModule) -> Iterator[tuple[str, Any]]:
    """Every subgraph that a delegate took, by name."""
    for name, module in graph_module.named_modules():
        if hasattr(module, "backend_id") and hasattr(module, "original_module"):
            yield name, module


def _operations(graph_module: torch.fx.GraphModule) -> Iterator[tuple[Node, bool]]:
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and _computes(node):
            yield node, False
    for _, module in lowered_modules(graph_module):
        for node in module.original_module.graph.nodes:
            if node.op == "call_function" and _computes(node):
                yield node, True


def _computes(node: Node) -> bool:
    """Whether a node is an operation on tensors, and not arithmetic on sizes or the call of a delegate."""
    return "." in _name(node) and not _name(node).startswith(("sym_", "_assert")) and "delegate" not in str(node.target)


def _name(node: Node) -> str:
    """``mm.default`` of any dialect's ``aten.mm.default``."""
    return ".".join(str(getattr(node.target, "__name__", node.target)).split(".")[-2:])


def _shape(argument: Any) -> Any:
    return argument.meta["val"].shape


def _share(total: int, delegated: int) -> dict[str, Any]:
    return {"total": total, "delegated": delegated, "share": round(delegated / total, 4) if total else None}
