# SPDX-License-Identifier: Apache-2.0
"""Inputs that a model would compute from data, computed before the trace.

A loop over the values of an input cannot be in a graph. Where the model takes the loop's result as an argument of its
own, a preparer computes it from the other inputs: before the trace, and again whenever the program runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .vision_grid import VisionGrid


class Preparer(Protocol):
    """Computes further inputs. ``name`` is written into the manifest."""

    name: str

    def applies(self, config: Any, inputs: Mapping[str, Any]) -> bool:
        """Whether these inputs need it."""

    def before(self, config: Any, model_class: type, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs with what the model would have computed; what the caller gave himself is kept."""

    def after(self, config: Any, inputs: Mapping[str, Any], outputs: Any) -> Any:
        """The program's outputs in eager's structure, where that depends on the inputs' values."""


PREPARERS: tuple[Preparer, ...] = (VisionGrid(),)


def preparers_for(config: Any, inputs: Mapping[str, Any]) -> tuple[Preparer, ...]:
    """The preparers that these inputs need, in order."""
    return tuple(p for p in PREPARERS if p.applies(config, inputs))


def preparers_by_name(names: list[str]) -> tuple[Preparer, ...]:
    """The preparers that a manifest names."""
    return tuple(p for p in PREPARERS if p.name in names)
