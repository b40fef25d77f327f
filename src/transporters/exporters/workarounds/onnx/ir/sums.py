# SPDX-License-Identifier: Apache-2.0
"""Sums of integers."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ....onnx_tables import repairs
from ....registry import Repro

#: A sum of 32-bit halves stays below 2**53, up to where doubles hold every integer, for two million terms.
_HALF = 2**32

#: Of these a sum cannot come near 2**53.
_SMALL = frozenset(
    [ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.FLOAT16]
)


@repairs(
    why="ONNX Runtime adds int64 values up as doubles, so that sums above 2**53 are rounded",
    issue="unreported",
    needed="onnxruntime>=1.32,<1.33",
    repro=Repro(lambda x: (x.sum(), x.sum(1)), lambda: (torch.randint(2**53, 2**53 + 9, (3, 4)),)),
)
def _fix_ir_sums_of_integers(model: ir.Model) -> bool:
    """Add up the two halves of the values on their own. Sums of what was counted or is known to be small stay."""
    changed = False
    for node in [node for node in model.graph.all_nodes() if node.op_type == "ReduceSum" and node.domain == ""]:
        values = node.inputs[0]
        if values is None or ir.DataType.INT64 not in (values.dtype, node.outputs[0].dtype) or _is_small(values):
            continue
        if values.dtype not in (None, ir.DataType.INT64):
            continue
        half = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(_HALF, dtype=ir.DataType.INT64))])
        low = ir.Node("", "Mod", [values, half.outputs[0]])  # from 0 on, whatever the sign
        rest = ir.Node("", "Sub", [values, low.outputs[0]])
        high = ir.Node("", "Div", [rest.outputs[0], half.outputs[0]])
        sums = [_sum_like(node, part.outputs[0]) for part in (low, high)]
        scaled = ir.Node("", "Mul", [sums[1].outputs[0], half.outputs[0]])
        total = ir.Node("", "Add", [scaled.outputs[0], sums[0].outputs[0]])
        added = [half, low, rest, high, *sums, scaled, total]
        for new in added:
            new.outputs[0].dtype = ir.DataType.INT64
        result, old = total.outputs[0], node.outputs[0]
        result.shape, result.name = old.shape, old.name
        node.append(added)
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        node.graph.remove(node, safe=True)  # type: ignore[union-attr]
        changed = True
    return changed


def _is_small(value: ir.Value) -> bool:
    """Whether the values were made from a type of few bits, or are sizes."""
    producer = value.producer()
    if producer is None:
        return False
    if producer.op_type in ("Shape", "Size"):
        return True
    source = producer.inputs[0] if producer.op_type == "Cast" else None
    return source is not None and source.dtype in _SMALL


def _sum_like(node: ir.Node, values: ir.Value) -> ir.Node:
    return ir.Node("", "ReduceSum", [values, *node.inputs[1:]], list(node.attributes.values()))
