# SPDX-License-Identifier: Apache-2.0
"""torch's pass that writes the casts out which an operation makes of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ...registry import Repro, register_patch


class _Chain(torch.nn.Module):
    """The fault, for the reproducer: arithmetic whose dtypes are known, and a cast among it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Nine operations on (rows, columns), one of them between integers and floating-point numbers."""
        for _ in range(4):
            x = torch.sigmoid(x) * x
        return x * torch.arange(x.shape[1])


@register_patch(
    "onnx",
    "torch.onnx._internal.fx.passes.type_promotion._TypePromotionInterpreter.run_node",
    why="torch runs the whole program again to see which arguments an operation casts, although all dtypes are on "
    "record: a tenth of an export's time",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(
        _Chain(),
        lambda: (torch.rand(3, 4),),
        dynamic=True,
        most_calls=("torch.fx.interpreter.Interpreter.call_function", 4),
    ),
)
def _patch_type_promotion(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run what is cast or has no value on record, and nothing else."""
    from torch.onnx._internal.fx.passes.type_promotion import get_type_promotion_rule

    def run_node(self: Any, node: Node) -> Any:
        if node.op != "call_function":
            return NotImplemented
        rule = get_type_promotion_rule(node, self.type_promotion_table)
        if rule is not None:
            with self._set_current_node(node):
                self._maybe_promote_node(node, rule)
        return node.meta.get("val", NotImplemented)

    return run_node
