# SPDX-License-Identifier: Apache-2.0
"""Activations of which a delegate knows another variety."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_aten = torch.ops.aten


@register_fx_node_fix(
    "executorch",
    ops=(_aten.gelu.default,),
    why="XNNPACK takes every GELU for the exact one, and the approximation by tanh comes out wrong by 0.0005",
    issue="https://github.com/pytorch/executorch/pull/22851",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(lambda x: F.gelu(x, approximate="tanh"), lambda: (3 * torch.randn(5, 7),), dynamic=True),
)
def _fix_gelu_tanh(graph_module: GraphModule, node: Node) -> bool:
    """Write the approximation out: x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""
    if node.kwargs.get("approximate", "none") != "tanh":
        return False
    x: Any = node.args[0]
    graph = graph_module.graph

    def call(target: Any, *arguments: Any) -> Node:
        made = graph.call_function(target, arguments)
        made.meta = dict(node.meta)  # every step has the shape and dtype of the result
        return made

    with graph.inserting_before(node):
        cube = call(_aten.mul.Tensor, call(_aten.mul.Tensor, x, x), x)
        inner = call(_aten.add.Tensor, call(_aten.mul.Tensor, cube, 0.044715), x)
        bent = call(_aten.tanh.default, call(_aten.mul.Tensor, inner, math.sqrt(2 / math.pi)))
        result = call(_aten.mul.Tensor, call(_aten.mul.Tensor, x, 0.5), call(_aten.add.Tensor, bent, 1.0))
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    result.name = node.name  # the program knows its outputs by name
    return True
