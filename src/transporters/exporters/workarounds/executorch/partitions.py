# SPDX-License-Identifier: Apache-2.0
"""Partitions that are cut out of a graph one by one, with the whole graph rebuilt after each."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_patch

_aten = torch.ops.aten

#: What computes and asserts sizes goes before everything else that could come next.
_FIRST = {
    *(operator.add, operator.mul, operator.sub, operator.floordiv, operator.truediv, operator.mod),
    *(operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne),
    *(_aten.sym_constrain_range.default, _aten.sym_constrain_range_for_size.default, _aten._assert_async.msg),
    *(_aten.scalar_tensor.default, _aten._assert_scalar.default),
}


def _alternating(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: (rows, 4), by turns through what XNNPACK takes and what it does not."""
    for _ in range(24):
        x = torch.erf(x * 2) + x
    return x


@register_patch(
    "executorch",
    "executorch.exir.lowered_backend_module.legalize_graph",
    why="after each partition that a delegate takes the graph is copied node by node, and it and all partitions so far "
    "are compiled anew: the time grows with the square of a model's depth",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(
        _alternating,
        lambda: (torch.rand(3, 4),),
        most_calls=("torch.fx.graph_module.GraphModule.recompile", 800),
    ),
)
def _patch_order_of_nodes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Bring the nodes into the same order where they are."""

    def legalize(graph_module: GraphModule) -> GraphModule:
        nodes = _ordered(list(graph_module.graph.nodes))
        if len(nodes) < len(graph_module.graph.nodes):
            original(graph_module)  # which says where the cycle is
        end = graph_module.graph._root
        for node in nodes:
            end.prepend(node)
            node.users.clear()
        for node in nodes:  # as in a graph that is made in this order, for the next time goes by the order of users
            for source in node.all_input_nodes:
                source.users[node] = None
        return graph_module

    return legalize


def _ordered(nodes: list[Node]) -> list[Node]:
    """Every node after those that it needs, breadth first; without the nodes of a cycle."""
    missing = dict.fromkeys(nodes, 0)
    for node in nodes:
        for user in node.users:
            missing[user] += 1
    waiting = deque(node for node in nodes if not missing[node])
    done = []
    while waiting:
        node = waiting.popleft()
        done.append(node)
        for user in node.users:
            missing[user] -= 1
            if not missing[user]:
                if user.op == "call_function" and user.target in _FIRST:
                    waiting.appendleft(user)
                else:
                    waiting.append(user)
    return done
