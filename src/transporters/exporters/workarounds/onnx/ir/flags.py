# SPDX-License-Identifier: Apache-2.0
"""Truth values."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ....onnx_tables import repairs
from ....registry import Repro


@repairs(
    why="ONNX Runtime cannot choose between truth values, it has no kernel of Where for them",
    issue="https://github.com/microsoft/onnxruntime/issues/9539",
    needed="onnxruntime>=1.32,<1.33",
    repro=Repro(lambda x, y: torch.where(x > 0, y > 0, y < -1), lambda: (torch.randn(3, 4), torch.randn(3, 4))),
)
def _fix_ir_where_of_flags(model: ir.Model) -> bool:
    """Choose by logic: (condition and one) or (not condition and other)."""
    changed = False
    for node in [node for node in model.graph.all_nodes() if node.op_type == "Where" and node.domain == ""]:
        chosen_from = [*node.inputs[1:], *node.outputs]
        if not any(value is not None and value.dtype == ir.DataType.BOOL for value in chosen_from):
            continue
        condition, one, other = node.inputs
        kept = _logic("And", condition, one)
        absent = _logic("Not", condition)
        left = _logic("And", absent.outputs[0], other)
        chosen = _logic("Or", kept.outputs[0], left.outputs[0])
        result, old = chosen.outputs[0], node.outputs[0]
        result.shape, result.name = old.shape, old.name
        node.append([kept, absent, left, chosen])
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        node.graph.remove(node, safe=True)  # type: ignore[union-attr]
        changed = True
    return changed


def _logic(op_type: str, *inputs: ir.Value | None) -> ir.Node:
    node = ir.Node("", op_type, inputs, num_outputs=1)
    node.outputs[0].dtype = ir.DataType.BOOL
    return node
