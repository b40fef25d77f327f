# SPDX-License-Identifier: Apache-2.0
"""Normalizations that a delegate writes as convolutions."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_aten = torch.ops.aten


class _Norm(torch.nn.Module):
    """The fault, for the reproducer: batch and length of the normalized rows are both dynamic."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.norm.running_mean = torch.tensor([0.5, -1.0, 2.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize (batch, length, 3) along its last axis."""
        result: torch.Tensor = self.norm(torch.sigmoid(x).transpose(1, 2))
        return torch.sigmoid(result)


@register_fx_node_fix(
    "executorch",
    ops=(_aten._native_batch_norm_legit_no_training.default,),
    why="XNNPACK claims a batch norm over one axis, writes it as a convolution, adds an axis to its input by a "
    "reshape, and then refuses it when both batch and length are dynamic",
    issue="https://github.com/pytorch/executorch/issues/11449",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_Norm(), lambda: (torch.randn(2, 9, 3),), dynamic=True),
)
def _fix_batch_norm1d(graph_module: GraphModule, node: Node) -> bool:
    """Normalize over two axes, the second of size 1; behind a convolution that has it already, with which it fuses."""
    x: Any = node.args[0]
    sizes = x.meta["val"].shape
    if len(sizes) != 3 or sum(isinstance(size, torch.SymInt) for size in sizes) < 2:
        return False
    graph = graph_module.graph
    value, *statistics = node.meta["val"]
    with graph.inserting_before(node):
        wide = _before_squeeze(x) or graph.call_function(_aten.unsqueeze.default, (x, -1))
    wide.meta.setdefault("val", x.meta["val"].unsqueeze(-1))
    node.args = (wide, *node.args[1:])
    node.meta = {**node.meta, "val": (value.unsqueeze(-1), *statistics)}
    for result in [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]:
        result.meta = {**result.meta, "val": node.meta["val"][0]}
        with graph.inserting_after(result):
            narrow = graph.call_function(_aten.squeeze.dim, (result, -1))
        narrow.meta = {**result.meta, "val": value}
        result.replace_all_uses_with(narrow, delete_user_cb=functools.partial(operator.is_not, narrow))
        result.name, narrow.name = narrow.name, result.name  # the program knows its outputs by name
    return True


def _before_squeeze(node: Node) -> Node | None:
    """What a last axis of size 1 was taken from."""
    if node.target is not _aten.squeeze.dim or node.args[1] != -1 or not isinstance(node.args[0], Node):
        return None
    return node.args[0] if node.args[0].meta["val"].dim() == 4 else None
