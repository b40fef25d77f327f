# SPDX-License-Identifier: Apache-2.0
"""Loops in a program: what a scan carries from one step to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.scan import scan_op

from ...registry import Repro, register_patch


def _sum_up(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: running sums along the second axis, with a total for each row that is carried."""

    def step(total: torch.Tensor, entry: torch.Tensor) -> list[torch.Tensor]:
        total = total * 0.5 + entry
        return [total, total * 2]

    last, sums = scan_op(step, [torch.zeros_like(x[:, 0])], [x.transpose(0, 1)], ())
    added: torch.Tensor = sums.transpose(0, 1) + last.unsqueeze(1)
    return added


@register_patch(
    "executorch",
    "executorch.exir.emit._emitter._Emitter._emit_scan",
    why="what a scan carries and what it collects lie in tensors of the largest size that memory is planned for, and "
    "the kernels that fill them take no smaller one: an LSTM runs at the largest batch only",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_sum_up, lambda: (torch.rand(3, 5, 4),), dynamic=True),
)
def _patch_scan_sizes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give both the sizes of what comes: carry by a clone instead of a copy, and begin with the first step's row."""

    def emit_scan(self: Any, args: Any, outputs: Any) -> Any:
        from executorch.exir.schema import Bool, EValue, Instruction, Int, JumpFalseCall, KernelCall, Null

        def value(of: Any) -> int:
            return int(self._emit_evalue(EValue(of)).id)

        def call(name: str, overload: str, arguments: list[int]) -> Any:
            return Instruction(KernelCall(self._get_operator(name=name, overload=overload)[0], arguments))

        instructions = self.chain.instructions
        before = len(instructions)
        made = original(self, args, outputs)
        copy, _ = self._get_operator(name="aten::copy_")
        collect, _ = self._get_operator(name="executorch_prim::et_copy_index", overload="tensor")
        given, instructions[before:] = instructions[before:], []
        collected = {each.id for each in outputs}
        for instruction in given:
            kernel = instruction.instr_args
            if isinstance(kernel, KernelCall) and kernel.op_index == copy:
                target, source, *_ = kernel.args
                instruction = call("aten::clone", "out", [source, value(Null()), target, target])
            elif isinstance(kernel, KernelCall) and kernel.op_index == collect and kernel.args[0] in collected:
                target, source, step = kernel.args
                first = value(Bool(False))
                behind = self.instruction_start_offset + len(instructions) + 3
                instructions += [
                    call("executorch_prim::eq", "Scalar", [step, value(Int(0)), first]),
                    Instruction(JumpFalseCall(first, behind)),
                    call("aten::unsqueeze_copy", "out", [source, value(Int(0)), target, target]),
                ]
            instructions.append(instruction)
        return made

    return emit_scan
