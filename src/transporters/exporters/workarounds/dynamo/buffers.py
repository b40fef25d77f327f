# SPDX-License-Identifier: Apache-2.0
"""Buffers that a program would carry from call to call although nothing reads what an earlier call left."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ...registry import Repro, register_fx_program_fix


class _OverwritesItsTable(torch.nn.Module):
    """The fault, for the reproducer."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Overwrite the table, then read it."""
        self.table.copy_(x.sum(0))
        return x + self.table


@register_fx_program_fix(
    "dynamo",
    why="a buffer that is overwritten whole before it is read (long RoPE's frequencies) would be written into the "
    "model's own table whenever the program runs",
    issue="https://github.com/pytorch/pytorch/issues/163791",
    needed="torch>=2.13",
    repro=Repro(_OverwritesItsTable(), lambda: (torch.rand(2, 3),)),
)
def _fix_scratch_buffers(program: ExportedProgram) -> bool:
    """Read what was to be written, and drop the write."""
    changed = False
    graph = program.graph
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.BUFFER:
            continue
        placeholder = next(n for n in graph.nodes if n.op == "placeholder" and n.name == spec.arg.name)
        first = min(placeholder.users, key=list(graph.nodes).index, default=None)
        if first is None or first.target is not torch.ops.aten.copy_.default or first.args[0] is not placeholder:
            continue
        table = placeholder.meta["val"]
        with graph.inserting_before(first):
            value = graph.call_function(torch.ops.aten.to.dtype, (first.args[1], table.dtype))
            value = graph.call_function(torch.ops.aten.expand.default, (value, list(table.shape)))
        for node in (value.args[0], value):
            node.meta.update({k: v for k, v in first.meta.items() if k in ("val", "stack_trace", "nn_module_stack")})
        placeholder.replace_all_uses_with(value, delete_user_cb=lambda user, first=first: user is not first)
        first.replace_all_uses_with(value)
        graph.erase_node(first)
        changed = True
    if changed:
        graph.lint()
        program.graph_module.recompile()
    return changed
