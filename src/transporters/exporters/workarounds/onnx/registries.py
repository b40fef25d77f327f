# SPDX-License-Identifier: Apache-2.0
"""torch's own list of translations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch

#: Operator set's version to the list, which is the same in every export.
_MADE: dict[int, Any] = {}


def read_once(original: Callable[..., Any], cls: Any, opset_version: int) -> Any:
    """What ``original`` gives for an operator set's version, which is asked once for each version."""
    if opset_version not in _MADE:
        _MADE[opset_version] = original(cls, opset_version)
    return _MADE[opset_version]


@register_patch(
    "onnx",
    "torch.onnx._internal.exporter._registration.ONNXRegistry.from_torchlib",
    why="torch reads the signatures of all its translations anew for each list, which takes a second, and an export "
    "needs two lists",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(
        lambda x: x + 1.5,
        lambda: (torch.ones(2),),
        most_calls=("torch.onnx._internal.exporter._registration._get_overload", 600),
    ),
)
def _patch_from_torchlib(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the list once, and give a copy, for an export adds translations of its own."""

    def from_torchlib(cls: Any, opset_version: int = 18) -> Any:
        made = cls()
        made._opset_version = opset_version
        known = read_once(original, cls, opset_version).functions
        made.functions = {target: list(entries) for target, entries in known.items()}
        return made

    return from_torchlib
