# SPDX-License-Identifier: Apache-2.0
"""Faults of onnxscript's optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch

_MATCHER = "onnxscript.rewriter._matcher.SimplePatternMatcher"


def _chain(states: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: a graph of some length, with nothing to rewrite."""
    for _ in range(60):
        states = torch.tanh(states * 1.5)
    return states


@register_patch(
    "onnx",
    f"{_MATCHER}.match",
    why="every rule begins to match at every node, and one with several results lists the whole graph each time, which "
    "is quadratic in its size",
    issue="https://github.com/microsoft/onnxscript/pull/1734",
    needed="onnxscript>=0.7,<0.8",
    repro=Repro(_chain, lambda: (torch.rand(2, 3),), most_calls=(f"{_MATCHER}._init_match", 1_000)),
)
def _patch_match(original: Callable[..., Any]) -> Callable[..., Any]:
    """See first whether the node at hand is of the kind that the rule begins with; most nodes are of no use to it."""
    from onnxscript.rewriter._basics import MatchResult

    def match(self: Any, model: Any, graph_or_function: Any, node: Any, **options: Any) -> Any:
        first = self.pattern.output_nodes[0].op_identifier()
        if first is None or first == node.op_identifier():
            return NotImplemented
        return MatchResult().fail("the node is of another kind than the rule's first result")

    return match
