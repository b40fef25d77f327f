# SPDX-License-Identifier: Apache-2.0
"""The order of values."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ....onnx_tables import repairs
from ....registry import Repro


@repairs(
    why="without the demand for an order ONNX Runtime gives the largest values in the order of its heap",
    issue="by-design",
    needed="onnxruntime>=1.32",
    repro=Repro(lambda x: tuple(torch.topk(x, 4, sorted=False)), lambda: (torch.randn(2, 400),)),
)
def _fix_ir_topk_sorted(model: ir.Model) -> bool:
    """Demand an order, which torch gives as well for few values out of many, whether asked for it or not."""
    changed = False
    for node in model.graph.all_nodes():
        asked = node.attributes.get("sorted")
        if node.op_type == "TopK" and asked is not None and not asked.as_int():
            node.attributes["sorted"] = ir.AttrInt64("sorted", 1)
            changed = True
    return changed
