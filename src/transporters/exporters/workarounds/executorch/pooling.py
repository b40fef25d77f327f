# SPDX-License-Identifier: Apache-2.0
"""Pools over an axis."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix


@register_fx_node_fix(
    "executorch",
    ops=(torch.ops.aten.max_pool2d.default,),
    why="XNNPACK's check of a pool reads its stride, and fails on one that leaves it out",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(lambda x: torch.nn.functional.max_pool2d(x, 2), lambda: (torch.rand(2, 3, 8, 6),)),
)
def _fix_pool_stride(graph_module: GraphModule, node: Node) -> bool:
    """Write down the stride, which is the window's size where none is given."""
    if len(node.args) > 2 and node.args[2]:
        return False
    image, window, *others = node.args
    node.args = (image, window, window, *others[1:])
    return True
