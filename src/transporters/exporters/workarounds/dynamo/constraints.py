# SPDX-License-Identifier: Apache-2.0
"""Equations over sizes, which the trace solves to say which sizes a program takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from ...registry import Repro, register_patch

#: Operations that the solver of inequalities does not know, and that are rewritten for it.
_ROUNDED = (FloorDiv, Mod, PythonMod)


def _fours_of_eighths(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: every eighth column, and as many again if they can be grouped by four."""
    few = F.max_pool1d(x, 1, stride=8)
    return few + few.unfold(1, 4, 4).flatten(1)


@register_patch(
    "dynamo",
    "torch.fx.experimental.symbolic_shapes.DimConstraints.rewrite_with_congruences",
    why="of a rounded quotient inside of another one only the inner one is rewritten, and sympy cannot solve the rest",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(_fours_of_eighths, lambda: (torch.rand(3, 64),), dynamic=True),
)
def _patch_rewrite_with_congruences(original: Callable[..., Any]) -> Callable[..., Any]:
    """Rewrite what is left, too."""

    def rewrite_with_congruences(self: Any, s: Any, expr: Any) -> Any:
        found = original(self, s, expr)
        while found.has(*_ROUNDED) and found != expr:
            expr, found = found, original(self, s, found)
        return found

    return rewrite_with_congruences
