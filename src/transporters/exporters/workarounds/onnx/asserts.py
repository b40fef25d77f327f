# SPDX-License-Identifier: Apache-2.0
"""Checks that a program makes at run time and that ONNX cannot express."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_CHECKS = (
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_tensor_metadata.default,
)


def _checked_values(values: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer."""
    torch._check_tensor_all(values == expected)  # type: ignore[no-untyped-call]
    return values * 2


@register_fx_node_fix(
    "onnx",
    ops=_CHECKS,
    why="torch drops a check of values but not the operations that feed it, and these have no translation",
    issue="unreported",
    needed="torch>=2.13",
    repro=Repro(_checked_values, lambda: (torch.ones(3), torch.ones(3))),
)
def _fix_asserts(graph_module: GraphModule, node: Node) -> bool:
    """Drop the check, and what was computed for it alone."""
    feeding = list(node.all_input_nodes)
    graph_module.graph.erase_node(node)
    while feeding:
        candidate = feeding.pop()
        if not candidate.users and candidate.op == "call_function":
            feeding.extend(candidate.all_input_nodes)
            graph_module.graph.erase_node(candidate)
    return True
