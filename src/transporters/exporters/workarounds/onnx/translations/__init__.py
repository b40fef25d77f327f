# SPDX-License-Identifier: Apache-2.0
"""Translations of operations whose default is missing or wrong."""

from __future__ import annotations

from . import attention, building, drawing, indexing, integers, matmul, movement, ordering, resampling, special

__all__ = [
    "attention",
    "building",
    "drawing",
    "indexing",
    "integers",
    "matmul",
    "movement",
    "ordering",
    "resampling",
    "special",
]
