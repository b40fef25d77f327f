# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on sizes that ExecuTorch's runtime has no instruction for."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix


@register_fx_node_fix(
    "executorch",
    ops=(math.floor,),
    why="a size that is rounded down leaves math.floor in the graph, for which there is no executorch_prim operation",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(lambda x: x[: math.floor(0.6 * x.shape[0])] + 1, lambda: (torch.rand(7, 3),), dynamic=True),
)
def _fix_size_floor(graph_module: GraphModule, node: Node) -> bool:
    """Round the negated number up, and negate it back: `executorch_prim.ceil` and `.neg` exist."""
    number: Any = node.args[0]
    graph = graph_module.graph

    def call(target: Callable[..., Any], argument: Node) -> Node:
        made = graph.call_function(target, (argument,))
        made.meta = {**node.meta, "val": target(argument.meta["val"])}
        return made

    with graph.inserting_before(node):
        result = call(operator.neg, call(math.ceil, call(operator.neg, number)))
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    result.name = node.name  # the program knows its outputs by name
    return True


@register_fx_node_fix(
    "executorch",
    ops=(operator.pow,),
    why="a size that is raised to a power leaves pow in the graph, for which there is no executorch_prim operation",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(lambda x: x * x.shape[1] ** 3, lambda: (torch.rand(2, 5),), dynamic=True),
)
def _fix_size_power(graph_module: GraphModule, node: Node) -> bool:
    """Multiply as often as a whole exponent says."""
    base, exponent = node.args
    if not isinstance(base, Node) or not isinstance(exponent, int) or exponent < 1:
        return False
    graph = graph_module.graph
    result = base
    with graph.inserting_before(node):
        for _ in range(exponent - 1):
            product = graph.call_function(operator.mul, (result, base))
            product.meta = {**node.meta, "val": result.meta["val"] * base.meta["val"]}
            result = product
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    return True
