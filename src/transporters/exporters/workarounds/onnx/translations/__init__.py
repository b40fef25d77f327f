# SPDX-License-Identifier: Apache-2.0
"""Translations of operations whose default is missing or wrong."""

from __future__ import annotations

from . import attention, matmul, movement

__all__ = ["attention", "matmul", "movement"]
