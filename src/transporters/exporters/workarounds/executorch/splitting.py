# SPDX-License-Identifier: Apache-2.0
"""Tensors that are cut into pieces."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_aten = torch.ops.aten


def _second_half(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer."""
    pieces: list[torch.Tensor] = _aten.split_copy.Tensor(x, (x.shape[1] + 1) // 2, 1)
    return pieces[1] * 2


@register_fx_node_fix(
    "executorch",
    ops=(_aten.split_copy.Tensor,),
    why="a split that copies is planned without room for its pieces, so that the program fails when it runs",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_second_half, lambda: (torch.rand(2, 8),), dynamic=True),
)
def _fix_split_copy(graph_module: GraphModule, node: Node) -> bool:
    """Split without the demand for copies; there are no views to be had in a program anyway."""
    node.target = _aten.split.Tensor
    return True
