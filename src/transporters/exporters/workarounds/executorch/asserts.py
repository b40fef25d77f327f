# SPDX-License-Identifier: Apache-2.0
"""Checks that a program makes at run time and that ExecuTorch drops, too late."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix


class _Unwanted(torch.nn.Module):
    """The fault, for the reproducer: a cast checks the dtype of what nobody wants."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice ``x`` ``(rows, 4)``."""
        self.layer(x).to(torch.int64)
        return x + x


@register_fx_node_fix(
    "executorch",
    ops=(torch.ops.aten._assert_tensor_metadata.default,),
    why="a cast leaves a check of its input's dtype, which ExecuTorch drops after it has looked which weights are "
    "used: the weights of what feeds the check alone are in the file",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(
        _Unwanted(),
        lambda: (torch.rand(3, 4),),
        most_calls=("executorch.exir.emit._emitter._TopLevelEmitter.placeholder", 1),  # the input
    ),
)
def _fix_dtype_asserts(graph_module: GraphModule, node: Node) -> bool:
    """Drop the check, and what was computed for it alone."""
    feeding = list(node.all_input_nodes)
    graph_module.graph.erase_node(node)
    while feeding:
        candidate = feeding.pop()
        if candidate.op == "call_function" and not candidate.users and not candidate.is_impure():
            feeding.extend(candidate.all_input_nodes)
            graph_module.graph.erase_node(candidate)
    return True
