# SPDX-License-Identifier: Apache-2.0
"""Guards that a program carries and that forbid more than they should."""

from __future__ import annotations

import operator

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ...guards import forbids_only_small_sizes
from ...registry import Repro, register_fx_node_fix, register_fx_program_fix


class _AsksForOne(torch.nn.Module):
    """The fault, for the reproducer: a branch on size 1 in which both sides compute the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice ``x``."""
        return x + x if x.shape[0] != 1 else 2 * x


@register_fx_program_fix(
    "dynamo",
    why="a model that asks whether a length is 1 (to skip a mask) leaves a guard, so that the program refuses a "
    "batch or "
    "a length of 1; torch drops such guards on plain input sizes and keeps them on sizes computed from those",
    issue="https://github.com/pytorch/pytorch/issues/180202",
    needed="torch>=2.13,<2.14",
    repro=Repro(_AsksForOne(), lambda: (torch.rand(3, 2),), dynamic=True),
)
def _fix_size_one_guards(program: ExportedProgram) -> bool:
    """Drop guards that hold whenever every size is 2 or more; verification runs the program at size 1."""
    kept = [guard for guard in program._guards_code if not forbids_only_small_sizes(guard)]
    changed = len(kept) != len(program._guards_code)
    program._guards_code = kept
    return changed


class _TokensPerRow(torch.nn.Module):
    """The fault, for the reproducer: one token is taken from each row, by a mask."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Twice the last of the tokens (batch, length, 2), per row."""
        states = states + states if states.shape[0] > 1 else 2 * states
        batch, length, _ = states.shape
        taken = states[(torch.arange(length) == length - 1).expand(batch, length)]
        torch._check(taken.shape[0] // states.shape[0] >= 1)  # type: ignore[no-untyped-call]
        return taken.view(states.shape[0], -1, 2)[:, -1]


@register_fx_node_fix(
    "dynamo",
    ops=(torch.ops.aten._assert_scalar.default,),
    why="a trace takes every size for 2 or more, concludes the same of what a mask selects, and writes that down as a "
    "check, so that the program refuses a batch of 1",
    issue="https://github.com/pytorch/pytorch/issues/180202",
    needed="torch>=2.13,<2.14",
    repro=Repro(_TokensPerRow(), lambda: (torch.rand(3, 4, 2),), dynamic=True),
)
def _fix_size_one_checks(graph_module: GraphModule, node: Node) -> bool:
    """Drop the checks that a selection has 1 or 2 elements at least; verification runs the program below that."""
    check = node.args[0]
    if not isinstance(check, Node) or check.target is not operator.ge or check.args[1] not in (1, 2):
        return False
    size = check.args[0]
    if not isinstance(size, Node) or size.target is not torch.ops.aten.sym_size.int:
        return False
    graph_module.graph.erase_node(node)
    if not check.users:
        graph_module.graph.erase_node(check)
    return True
