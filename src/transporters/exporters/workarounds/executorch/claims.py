# SPDX-License-Identifier: Apache-2.0
"""Operations that XNNPACK claims and then gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node
from torch.utils._sympy.value_ranges import bound_sympy

from ...registry import Repro, register_patch

_GENERIC = "executorch.backends.xnnpack.partition.config.generic_node_configs"


def _scaled(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: a first run with one row makes XNNPACK write all rows where one lay."""
    rows = torch.sigmoid(x)
    return torch.exp(torch.sigmoid(x.sum(0, keepdim=True)) * rows) * rows


@register_patch(
    "executorch",
    f"{_GENERIC}.AddConfig.check_constraints",
    f"{_GENERIC}.SubConfig.check_constraints",
    f"{_GENERIC}.MulConfig.check_constraints",
    f"{_GENERIC}.DivConfig.check_constraints",
    f"{_GENERIC}.MaximumConfig.check_constraints",
    f"{_GENERIC}.MinimumConfig.check_constraints",
    why="XNNPACK writes a result over an operand that was of its size in an earlier run, also when the operand is "
    "broadcast now: after a run at size 1, larger sizes give wrong numbers without a word",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_scaled, lambda: (torch.randn(1, 5),), dynamic=True),
)
def _patch_broadcast_claims(original: Callable[..., bool]) -> Callable[..., Any]:
    """Leave an operation to the kernels when it broadcasts an operand at some sizes and not at others."""

    def check_constraints(self: Any, node: Node, ep: Any) -> Any:
        operands = [argument for argument in node.args if isinstance(argument, Node)]
        return False if any(_written_over(operand, node) for operand in operands) else NotImplemented

    return check_constraints


def _written_over(operand: Node, node: Node) -> bool:
    """Whether XNNPACK holds the operand for this reader alone, and its size equals the result's in some runs only."""
    if operand.op != "call_function" or len(operand.users) > 1 or not _is_claimed(operand):
        return False
    spread = list(_broadcast(operand.meta["val"].shape, node.meta["val"].shape))
    return bool(spread) and all(map(_may_be_one, spread))


def _broadcast(given: Any, result: Any) -> Iterator[int | torch.SymInt]:
    """The result's sizes along the axes that the operand does not have, or has with size 1."""
    missing = len(result) - len(given)
    yield from (size for size in result[:missing] if not _is_one(size))
    yield from (size for own, size in zip(given, result[missing:]) if _is_one(own) and not _is_one(size))


def _is_one(size: int | torch.SymInt) -> bool:
    return isinstance(size, int) and size == 1


def _may_be_one(size: int | torch.SymInt) -> bool:
    if isinstance(size, int):
        return False
    return bool(bound_sympy(size.node.expr, size.node.shape_env.var_to_range).lower <= 1)


def _is_claimed(node: Node) -> bool:
    """Whether XNNPACK takes operations of this kind; what others compute lies in memory that it does not plan."""
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.exir.backend.canonical_partitioners.config_partitioner import format_target_name

    name = getattr(node.target, "__name__", str(node.target))
    return name == "getitem" or format_target_name(name) in {config.target_name for config in ALL_PARTITIONER_CONFIGS}
