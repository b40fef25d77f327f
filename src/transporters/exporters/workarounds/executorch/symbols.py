# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on sizes that ExecuTorch's runtime has no instruction for, or that its memory plan loses track of."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.utils._sympy.value_ranges import bound_sympy

from ...executorch_sizes import upper
from ...registry import Repro, register_fx_node_fix, register_patch


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: a part of the rows. The write makes torch trace the program anew."""
    x = x * 1
    x[:1] += 1
    return x[: math.floor(0.6 * x.shape[0])] + 1


@register_fx_node_fix(
    "executorch",
    ops=(math.floor,),
    why="where torch traces a program anew, a size that is rounded down becomes math.floor again, for which there is "
    "no executorch_prim operation",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_rounded, lambda: (torch.rand(7, 3),), dynamic=True),
)
def _fix_size_floor(graph_module: GraphModule, node: Node) -> bool:
    """Round the negated number up, and negate it back: `executorch_prim.ceil` and `.neg` exist."""
    number: Any = node.args[0]
    graph = graph_module.graph

    def call(target: Callable[..., Any], argument: Node) -> Node:
        made = graph.call_function(target, (argument,))
        made.meta = {**node.meta, "val": target(argument.meta["val"])}
        return made

    with graph.inserting_before(node):
        result = call(operator.neg, call(math.ceil, call(operator.neg, number)))
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    result.name = node.name  # the program knows its outputs by name
    return True


@register_fx_node_fix(
    "executorch",
    ops=(operator.pow,),
    why="a size that is raised to a power leaves pow in the graph, for which there is no executorch_prim operation",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(lambda x: x * x.shape[1] ** 3, lambda: (torch.rand(2, 5),), dynamic=True),
)
def _fix_size_power(graph_module: GraphModule, node: Node) -> bool:
    """Multiply as often as a whole exponent says."""
    base, exponent = node.args
    if not isinstance(base, Node) or not isinstance(exponent, int) or exponent < 1:
        return False
    graph = graph_module.graph
    result = base
    with graph.inserting_before(node):
        for _ in range(exponent - 1):
            product = graph.call_function(operator.mul, (result, base))
            product.meta = {**node.meta, "val": result.meta["val"] * base.meta["val"]}
            result = product
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    return True


@register_fx_node_fix(
    "executorch",
    ops=(operator.mod,),
    why="the remainder of a negative size has the sign of the dividend in ExecuTorch's runtime, and that of the "
    "divisor in Python",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(lambda x: F.pad(x, (0, 0, 0, -x.shape[0] % 4)) + 1, lambda: (torch.rand(7, 3),), dynamic=True),
)
def _fix_size_remainder(graph_module: GraphModule, node: Node) -> bool:
    """Subtract what the rounded quotient stands for; that rounds down in both."""
    number, divisor = node.args
    value: Any = number.meta["val"] if isinstance(number, Node) else None
    if not isinstance(value, torch.SymInt) or not _may_be_negative(value):
        return False
    graph = graph_module.graph

    def call(target: Callable[..., Any], *arguments: Any) -> Node:
        made = graph.call_function(target, arguments)
        made.meta = {**node.meta, "val": target(*(a.meta["val"] if isinstance(a, Node) else a for a in arguments))}
        return made

    with graph.inserting_before(node):
        whole = call(operator.mul, call(operator.floordiv, number, divisor), divisor)
        result = call(operator.sub, number, whole)
    result.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    result.name = node.name  # the program knows its outputs by name
    return True


def _may_be_negative(size: torch.SymInt) -> bool:
    return bool(bound_sympy(size.node.expr, size.node.shape_env.var_to_range).lower < 0)


def _per_pair(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: more elements for 3 rows than for the sample of 7."""
    return torch.ones(4 * x.shape[0] // (x.shape[0] // 2)) * x.sum()


@register_patch(
    "executorch",
    "executorch.exir.sym_util.eval_upper_bound",
    "executorch.exir.passes.sym_shape_eval_pass.eval_upper_bound",
    why="for a size that is divided by what could be 0 torch knows no largest value, and ExecuTorch plans the memory "
    "for the sample's size instead, without a word",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_per_pair, lambda: (torch.rand(7, 3),), dynamic=True),
)
def _patch_upper_bound(original: Callable[..., int]) -> Callable[..., Any]:
    """Look at the size as a whole: a divisor of a size is never 0 when a program runs."""

    def eval_upper_bound(maybe_symint: int | torch.SymInt) -> Any:
        if isinstance(maybe_symint, int) or _is_bounded(maybe_symint):
            return NotImplemented
        most = upper(maybe_symint)
        return NotImplemented if most is None else most

    return eval_upper_bound


def _is_bounded(size: torch.SymInt) -> bool:
    """Whether torch itself knows a largest value."""
    return bool(bound_sympy(size.node.expr, size.node.shape_env.var_to_range).upper.is_Integer)
