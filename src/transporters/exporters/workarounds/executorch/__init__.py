# SPDX-License-Identifier: Apache-2.0
"""What ExecuTorch does not take, crashes on, or takes minutes for, in the order of application."""

from __future__ import annotations

from . import (
    activations,
    allocations,
    asserts,
    claims,
    complexes,
    constants,
    convolutions,
    experts,
    layouts,
    loops,
    norms,
    ordering,
    partitions,
    passes,
    pooling,
    retraces,
    splitting,
    symbols,
)

__all__ = [
    "activations",
    "allocations",
    "asserts",
    "claims",
    "complexes",
    "constants",
    "convolutions",
    "experts",
    "layouts",
    "loops",
    "norms",
    "ordering",
    "partitions",
    "passes",
    "pooling",
    "retraces",
    "splitting",
    "symbols",
]
