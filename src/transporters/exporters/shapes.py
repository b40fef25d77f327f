# SPDX-License-Identifier: Apache-2.0
"""The shape contract: for every axis of every input, whether it is dynamic, and if not, what fixes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Axis:
    """One axis of one input.

    Attributes:
        input: Dotted name of the input leaf (``input_ids``, ``cache.layers.0.keys``).
        index: Axis number, from 0.
        label: Readable name (``batch``, ``sequence``, ``height``…).
        size: Size in the sample.
        dynamic: Whether the program takes other sizes.
        symbol: Name of the symbol in the program, empty when static.
        minimum: Smallest size, when dynamic.
        maximum: Largest size, when dynamic; None means unbounded.
        cause: Why a static axis is static: "requested", "config", "model" or "guard"; empty when dynamic.
        reason: The sentence that goes with the cause (the model's own error, the guard's expression).
        source: ``file:line`` of the model code that fixes the axis, where known.
    """

    input: str
    index: int
    label: str
    size: int
    dynamic: bool
    symbol: str = ""
    minimum: int | None = None
    maximum: int | None = None
    cause: str = ""
    reason: str = ""
    source: str = ""


@dataclass(frozen=True)
class ShapeContract:
    """Every input axis of a program."""

    axes: tuple[Axis, ...] = ()

    def frozen(self, *, labels: tuple[str, ...] = ()) -> tuple[Axis, ...]:
        """Static axes, optionally only those with one of ``labels``."""
        return tuple(a for a in self.axes if not a.dynamic and (not labels or a.label in labels))

    def to_dict(self) -> list[dict[str, Any]]:
        """JSON-ready rows."""
        return [asdict(axis) for axis in self.axes]

    @classmethod
    def from_dict(cls, rows: list[dict[str, Any]]) -> ShapeContract:
        """Inverse of `to_dict`."""
        return cls(tuple(Axis(**row) for row in rows))
