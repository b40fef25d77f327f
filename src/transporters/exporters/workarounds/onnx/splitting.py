# SPDX-License-Identifier: Apache-2.0
"""Tensors that are cut into pieces."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The fault, for the reproducer."""
    one, other = x.chunk(2, dim=1)
    return one, other


@register_fx_node_fix(
    "onnx",
    ops=(torch.ops.aten.split.Tensor,),
    why="the optimizer of onnxscript fails on a split into pieces whose size is computed, as chunk makes it",
    issue="https://github.com/microsoft/onnxscript/issues/2543",
    needed="onnxscript>=0.7",
    repro=Repro(_halves, lambda: (torch.randn(3, 10),), dynamic=True),
)
def _fix_split_by_size(graph_module: GraphModule, node: Node) -> bool:
    """Cut each piece out by itself."""
    x, size = node.args[:2]
    if not isinstance(size, Node) or not all(user.target is operator.getitem for user in node.users):
        return False
    axis = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    graph = graph_module.graph
    for user in list(node.users):
        place: Any = user.args[1]
        with graph.inserting_before(node):
            bounds = [_times(graph_module, size, place), _times(graph_module, size, place + 1)]
            piece = graph.call_function(torch.ops.aten.slice.Tensor, (x, axis, *bounds))
        piece.meta = dict(user.meta)
        name = user.name
        user.replace_all_uses_with(piece)
        graph.erase_node(user)
        piece.name = name  # the program knows its outputs by name
    graph.erase_node(node)
    return True


def _times(graph_module: GraphModule, size: Node, factor: int) -> Any:
    if factor < 2:
        return size if factor else 0
    product = graph_module.graph.call_function(operator.mul, (size, factor))
    product.meta = {**size.meta, "val": size.meta["val"] * factor}
    return product
