# SPDX-License-Identifier: Apache-2.0
"""Numbers from which tensors are subtracted."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix


@register_fx_node_fix(
    "onnx",
    ops=(torch.ops.aten.sub.Tensor,),
    why="torch.onnx finds no overload for a float minus a tensor of integers, as an inverted mask is",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(lambda x: (1.0 - x) * 2.5, lambda: (torch.randint(0, 2, (3, 4)),), dynamic=True),
)
def _fix_number_minus_tensor(graph_module: GraphModule, node: Node) -> bool:
    """Add the negative tensor to the number."""
    number, tensor = node.args
    if isinstance(number, Node) or node.kwargs or not isinstance(tensor, Node):
        return False
    value = tensor.meta.get("val")
    if not isinstance(number, float) or not isinstance(value, torch.Tensor) or value.dtype.is_floating_point:
        return False
    graph = graph_module.graph
    with graph.inserting_before(node):
        cast = graph.call_function(torch.ops.aten._to_copy.default, (tensor,), {"dtype": node.meta["val"].dtype})
        cast.meta = {**node.meta, "val": value.to(node.meta["val"].dtype)}
        negative = graph.call_function(torch.ops.aten.neg.default, (cast,))
        negative.meta = dict(cast.meta)
    node.target, node.args = torch.ops.aten.add.Tensor, (negative, number)
    return True
