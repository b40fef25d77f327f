# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on sizes that a program cannot be saved with."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix


@register_fx_node_fix(
    "dynamo",
    ops=(math.ceil, math.floor),
    why="a size that is rounded (an expert's capacity as a fraction of the tokens) leaves math.ceil in the graph, "
    "which "
    "torch.export.save refuses",
    issue="https://github.com/pytorch/pytorch/issues/115209",
    needed="torch>=2.13,<2.14",
    repro=Repro(lambda x: x[: math.ceil(0.6 * x.shape[0])] + 1, lambda: (torch.rand(7, 3),), dynamic=True),
)
def _fix_size_rounding(graph_module: GraphModule, node: Node) -> bool:
    """Write it with floor division and truncation, which can be saved."""
    (number,) = node.args
    if not isinstance(number, Node):
        return False
    graph = graph_module.graph
    up = node.target is math.ceil
    with graph.inserting_before(node):
        value: Node = number
        for target, arguments in _steps(up):
            value = _call(graph, target, (value, *arguments))
    value.meta.update({k: v for k, v in node.meta.items() if k != "val"})
    value.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(value)
    graph.erase_node(node)
    return True


def _steps(up: bool) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    floor: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [(operator.floordiv, (1,))]
    return [*([(operator.neg, ()), *floor, (operator.neg, ())] if up else floor), (math.trunc, ())]


def _call(graph: torch.fx.Graph, target: Callable[..., Any], arguments: tuple[Any, ...]) -> Node:
    made = graph.call_function(target, arguments)
    made.meta["val"] = target(*(a.meta["val"] if isinstance(a, Node) else a for a in arguments))
    return made
