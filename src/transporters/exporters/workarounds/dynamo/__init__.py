# SPDX-License-Identifier: Apache-2.0
"""What `torch.export` itself cannot trace or should not carry, in the order of application."""

from __future__ import annotations

from . import (
    buffers,
    constraints,
    distances,
    dtypes,
    guards,
    indexing,
    layouts,
    lengths,
    pooling,
    recurrent,
    symbols,
    views,
)

__all__ = [
    "buffers",
    "constraints",
    "distances",
    "dtypes",
    "guards",
    "indexing",
    "layouts",
    "lengths",
    "pooling",
    "recurrent",
    "symbols",
    "views",
]
