# SPDX-License-Identifier: Apache-2.0
"""Model fixes, in force in every exporter, in the order of application."""

from __future__ import annotations

from . import attention, blocks, caches, experts, rope, scans, sliding, windows

__all__ = ["attention", "blocks", "caches", "experts", "rope", "scans", "sliding", "windows"]
