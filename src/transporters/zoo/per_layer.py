# SPDX-License-Identifier: Apache-2.0
"""Configs in which some layers have sizes of their own: the layers that are kept take theirs along, shrunk alike."""

from __future__ import annotations

import copy
from typing import Any

from . import sizes

#: Where a config keeps what single layers change.
SPEC = "_heterogeneity_spec"


def changes(node: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """What each layer changes, by its place; empty for a config of equal layers."""
    spec = node.get(SPEC)
    found: dict[int, dict[str, Any]] = getattr(spec, "per_layer_overrides", None) or {}
    return found


def kept(node: dict[str, Any], chosen: list[int], tiny: dict[str, Any]) -> Any:
    """The spec of a config that has only the chosen layers.

    Args:
        node: The attributes at full size.
        chosen: The layers that are kept.
        tiny: The attributes at tiny size.
    """
    spec = copy.copy(node[SPEC])
    overrides = {
        place: {name: _shrunk(name, value, node, tiny) for name, value in changes(node)[layer].items()}
        for place, layer in enumerate(chosen)
        if layer in changes(node)
    }
    object.__setattr__(spec, "per_layer_overrides", overrides)
    return spec


def _shrunk(name: str, value: Any, node: dict[str, Any], tiny: dict[str, Any]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if "window" in name:
        return sizes.WINDOW + 1  # still shorter than a sample
    base, small = node.get(name), tiny.get(name)
    if not (isinstance(base, int) and isinstance(small, int) and base):
        return sizes.shrunk(name, value, node)
    return max(2 if "expert" in name else 1, small * value // base)
