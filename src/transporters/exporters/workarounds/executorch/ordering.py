# SPDX-License-Identifier: Apache-2.0
"""Order among values, for which the runtime has few kernels."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...registry import Repro, register_fx_node_fix

_aten = torch.ops.aten


def _in_order(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: sorted along the first axis, and the last columns first."""
    values, places = torch.sort(x, dim=0, stable=True)
    return values + places + torch.argsort(x, dim=-1, descending=True, stable=True)


@register_fx_node_fix(
    "executorch",
    ops=(_aten.sort.default, _aten.sort.stable),
    why="ExecuTorch's runtime has no kernel that sorts",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_in_order, lambda: (torch.randn(5, 4),), dynamic=True),
)
def _fix_sort(graph_module: GraphModule, node: Node) -> bool:
    """Take the largest or smallest, all of them; then sort the places by the values' ranks, in which equals are equal.

    Places are below 2**31, so that a rank times that plus a place sorts by the rank and then by the place.
    """
    arguments: dict[str, Any] = {**dict(zip(_names(node), node.args)), **node.kwargs}
    x = arguments["self"]
    if x.meta["val"].dim() == 0:
        return False
    axis = arguments.get("dim", -1) % x.meta["val"].dim()  # the runtime ends the process over a negative one
    graph = graph_module.graph
    values, places = node.meta["val"]

    def call(target: Any, *given: Any, like: Any = places, **more: Any) -> Node:
        made = graph.call_function(target, given, more)
        made.meta = {**node.meta, "val": like}
        return made

    with graph.inserting_before(node):
        size = x.meta["val"].shape[axis]
        count = call(_aten.sym_size.int, x, axis, like=size) if isinstance(size, torch.SymInt) else size
        largest = arguments.get("descending", False)
        both = call(_aten.topk.default, x, count, axis, largest, True, like=(values, places))
        found = call(operator.getitem, both, 0, like=values)
        taken = call(operator.getitem, both, 1)
        before = call(_aten.roll.default, found, [1], [axis], like=values)
        is_new = call(_aten.ne.Tensor, found, before, like=places.new_empty(places.shape, dtype=torch.bool))
        rank = call(_aten.cumsum.default, is_new, axis, dtype=torch.int64)
        key = call(_aten.add.Tensor, call(_aten.mul.Scalar, rank, 1 << 31), taken)
        sorted_keys = call(_aten.topk.default, key, count, axis, False, True, like=(places, places))
        in_order = call(_aten.remainder.Scalar, call(operator.getitem, sorted_keys, 0), 1 << 31)
    for user in list(node.users):
        result = in_order if user.args[1] else found
        user.replace_all_uses_with(result)
        graph.erase_node(user)
        result.name = user.name  # the program knows its outputs by name
    graph.erase_node(node)
    return True


def _names(node: Node) -> list[str]:
    schema: Any = node.target._schema  # type: ignore[union-attr]
    return [argument.name for argument in schema.arguments if not argument.kwarg_only]


def _among(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: places of each row among fixed edges and in the row itself, from both sides."""
    edges = torch.tensor([-1.0, 0.0, 0.5, 1.0])
    x = x.round()
    steps = x.cumsum(1)
    steps = (steps.abs() + 1).cumsum(1)
    return torch.bucketize(x, edges) + 10 * torch.searchsorted(steps, x.abs(), right=True)


@register_fx_node_fix(
    "executorch",
    ops=(_aten.bucketize.Tensor, _aten.searchsorted.Tensor),
    why="ExecuTorch's runtime has no kernel that finds values in a sequence",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_among, lambda: (2 * torch.randn(5, 4),), dynamic=True),
)
def _fix_search(graph_module: GraphModule, node: Node) -> bool:
    """Count what does not lie beyond each value."""
    if node.kwargs.get("sorter") is not None:
        return False
    sequence, x = (node.args[1], node.args[0]) if node.target is _aten.bucketize.Tensor else node.args[:2]
    assert isinstance(x, Node), "both operations take two tensors"
    assert isinstance(sequence, Node), "both operations take two tensors"
    graph = graph_module.graph
    value, steps, dtype = x.meta["val"], sequence.meta["val"], node.meta["val"].dtype

    def call(target: Any, arguments: tuple[Any, ...], shape: Any, kind: torch.dtype, **more: Any) -> Node:
        made = graph.call_function(target, arguments, more)
        made.meta = {**node.meta, "val": value.new_empty(tuple(shape), dtype=kind)}
        return made

    pairs = (*value.shape, steps.shape[-1])
    from_right = node.kwargs.get("right") or node.kwargs.get("side") == "right"
    with graph.inserting_before(node):
        column = call(_aten.unsqueeze.default, (x, -1), (*value.shape, 1), value.dtype)
        if steps.dim() > 1:
            shape = (*steps.shape[:-1], 1, steps.shape[-1])
            sequence = call(_aten.unsqueeze.default, (sequence, -2), shape, steps.dtype)
        beyond = _aten.gt.Tensor if from_right else _aten.ge.Tensor
        are_beyond = call(beyond, (sequence, column), pairs, torch.bool)
        are_before = call(_aten.logical_not.default, (are_beyond,), pairs, torch.bool)
        result = call(_aten.sum.dim_IntList, (are_before, [-1]), value.shape, dtype, dtype=dtype)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    result.name = node.name  # the program knows its outputs by name
    return True
