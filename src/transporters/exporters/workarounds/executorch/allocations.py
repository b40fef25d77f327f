# SPDX-License-Identifier: Apache-2.0
"""Tensors that are made without values."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_aten = torch.ops.aten


def _filled(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: written into the halves of a tensor."""
    rows, columns = x.shape
    result = x.new_empty(rows, 2 * columns)
    result[:, :columns] = x
    result[:, columns:] = x + 1
    return torch.sigmoid(result)


@register_fx_node_fix(
    "executorch",
    ops=(_aten.empty.memory_format,),
    why="ExecuTorch's own `empty` takes no symbolic sizes: the lowering fixes them to those of the sample, in the "
    "whole program",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_filled, lambda: (torch.randn(5, 3),), dynamic=True),
)
def _fix_empty(graph_module: GraphModule, node: Node) -> bool:
    """Fill it with zeros, which takes them."""
    if not any(isinstance(size, (Node, torch.SymInt)) for size in node.meta["val"].shape):
        return False
    node.target = _aten.full.default
    node.args = (node.args[0], 0)
    node.kwargs = {"dtype": node.meta["val"].dtype, "device": node.meta["val"].device}
    return True
