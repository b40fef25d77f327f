# SPDX-License-Identifier: Apache-2.0
"""Views that work for all sizes but none."""

from __future__ import annotations

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_ATEN = torch.ops.aten


def _pairs_in_later_rows(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: eager has a way of its own when there is a single row."""
    later = x[1:, None] * torch.arange(6.0)
    pairs = later.view(later.shape[0], -1, 2) if later.shape[0] else later.view(0, 3, 2)
    return pairs.sum(0) + x[0]


@register_fx_node_fix(
    "dynamo",
    ops=(_ATEN.view.default, _ATEN.reshape.default),
    why="a size of -1 is ambiguous in a view of no elements, and the trace leaves it there although it knows the "
    "number: what is left over of an axis (the encoder's states that a decoder did not keep) may be nothing",
    issue="unreported",
    needed="torch>=2.13",
    repro=Repro(_pairs_in_later_rows, lambda: (torch.rand(5),), dynamic=True),
)
def _fix_view_of_nothing(graph_module: GraphModule, node: Node) -> bool:
    """Write the number in the place of -1, where another size is a difference, which may be 0."""
    shape, sizes = node.args[1], node.meta["val"].shape
    if not isinstance(shape, (list, tuple)) or -1 not in [size for size in shape if isinstance(size, int)]:
        return False
    at = next(place for place, size in enumerate(shape) if isinstance(size, int) and size == -1)
    if not isinstance(sizes[at], int) or not any(map(_is_difference, sizes)):
        return False
    node.args = (node.args[0], [*shape[:at], sizes[at], *shape[at + 1 :]])
    return True


def _is_difference(size: int | torch.SymInt) -> bool:
    if isinstance(size, int):
        return False
    return any(term.could_extract_minus_sign() for term in sympy.Add.make_args(size.node.expr))
