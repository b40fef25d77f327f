# SPDX-License-Identifier: Apache-2.0
"""Guards that a program carries and that forbid more than they should."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from ...guards import forbids_only_small_sizes
from ...registry import Repro, register_fx_program_fix


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
