# SPDX-License-Identifier: Apache-2.0
"""Numbers beside tensors: plain ones, and ones that are computed from sizes."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_aten = torch.ops.aten


def _stretched(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The fault, for the reproducer: as positions are stretched from one grid to another."""
    ratio = x.shape[1] / x.shape[0]
    whole = (x * 9).long()
    return _aten.mul.Scalar(whole, ratio), x * ratio, _aten.sub.Scalar(whole, ratio) + x, whole * ratio, whole - ratio


@register_fx_node_fix(
    "onnx",
    ops=(_aten.mul.Scalar, _aten.mul.Tensor, _aten.sub.Scalar, _aten.sub.Tensor),
    why="torch.onnx takes the factor for a plain number, and one that is computed from sizes is none",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(_stretched, lambda: (torch.rand(3, 4),), dynamic=True),
)
def _fix_computed_number(graph_module: GraphModule, node: Node) -> bool:
    """Make a tensor of the number."""
    tensor, number = node.args[:2]
    if not isinstance(number, Node) or len(node.args) > 2 or node.kwargs or not isinstance(tensor, Node):
        return False
    values = tensor.meta.get("val"), number.meta.get("val")
    if not isinstance(values[0], torch.Tensor) or isinstance(values[1], torch.Tensor):
        return False
    dtype = node.meta["val"].dtype
    graph = graph_module.graph
    with graph.inserting_before(node):
        made = graph.call_function(_aten.scalar_tensor.default, (number,), {"dtype": dtype})
        cast = graph.call_function(_aten._to_copy.default, (tensor,), {"dtype": dtype})
    with node.meta["val"].fake_mode:
        made.meta = {**node.meta, "val": torch.empty((), dtype=dtype)}
    cast.meta = {**node.meta, "val": values[0].to(dtype)}
    node.target = _aten.mul.Tensor if node.target in (_aten.mul.Scalar, _aten.mul.Tensor) else _aten.sub.Tensor
    node.args = (cast, made)
    return True


@register_fx_node_fix(
    "onnx",
    ops=(_aten.sub.Tensor,),
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
        cast = graph.call_function(_aten._to_copy.default, (tensor,), {"dtype": node.meta["val"].dtype})
        cast.meta = {**node.meta, "val": value.to(node.meta["val"].dtype)}
        negative = graph.call_function(_aten.neg.default, (cast,))
        negative.meta = dict(cast.meta)
    node.target, node.args = _aten.add.Tensor, (negative, number)
    return True
