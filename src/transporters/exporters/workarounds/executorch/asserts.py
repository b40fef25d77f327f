# SPDX-License-Identifier: Apache-2.0
"""Checks that a program makes at run time and that ExecuTorch drops, too late."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_CHECKS = (torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten._assert_async.msg)


class _Unwanted(torch.nn.Module):
    """The fault, for the reproducer: checks of what nobody wants."""

    def __init__(self) -> None:
        super().__init__()
        self.cast, self.counted = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice ``x`` ``(rows, 4)``."""
        self.cast(x).to(torch.int64)
        torch.nn.functional.one_hot(self.counted(x).argmax(-1), num_classes=4)
        return x + x


@register_fx_node_fix(
    "executorch",
    ops=_CHECKS,
    why="a cast leaves a check of its input's dtype, and one_hot of its values; ExecuTorch drops them after it has "
    "looked which weights are used: those of what feeds a check alone stay in the file",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(
        _Unwanted(),
        lambda: (torch.rand(3, 4),),
        most_calls=("executorch.exir.emit._emitter._TopLevelEmitter.placeholder", 1),  # the input
    ),
)
def _fix_asserts(graph_module: GraphModule, node: Node) -> bool:
    """Drop the check, and what was computed for it alone."""
    feeding = list(node.all_input_nodes)
    graph_module.graph.erase_node(node)
    while feeding:
        candidate = feeding.pop()
        if candidate.op == "call_function" and not candidate.users and not candidate.is_impure():
            feeding.extend(candidate.all_input_nodes)
            graph_module.graph.erase_node(candidate)
    return True
