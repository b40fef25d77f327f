# SPDX-License-Identifier: Apache-2.0
"""Views that hold for the memory layout of one kernel, and not for that of its decomposition."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_SDPA = torch.ops.aten.scaled_dot_product_attention.default


def _attend(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: heads of (batch, rows, 8), attended to, put side by side, and seen as one list."""
    heads = x.view(*x.shape[:2], 2, 4).transpose(1, 2)
    states = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(*x.shape)
    return states.view(-1, 8) * 2


@register_fx_node_fix(
    "executorch",
    ops=(torch.ops.aten.view.default,),
    why="attention lies in memory in another way once it is decomposed, and a view of it that held in the trace fails",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_attend, lambda: (torch.rand(2, 5, 8),), dynamic=True),
)
def _fix_view_of_attention(graph_module: GraphModule, node: Node) -> bool:
    """Reshape, which copies where a view cannot be; acts before the decomposition only."""
    graph = graph_module.graph
    reshapes = graph.find_nodes(op="call_function", target=torch.ops.aten.reshape.default, sort=False)
    if not reshapes or not graph.find_nodes(op="call_function", target=_SDPA, sort=False):
        return False
    node.target = torch.ops.aten.reshape.default
    return True
