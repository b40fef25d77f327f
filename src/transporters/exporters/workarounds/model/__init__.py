# SPDX-License-Identifier: Apache-2.0
"""Model fixes, in force in every exporter, in the order of application."""

from __future__ import annotations

from . import (
    attention,
    blocks,
    caches,
    chunked_scans,
    chunks,
    durations,
    experts,
    gated_scans,
    looped_experts,
    masks,
    paddings,
    positions,
    rope,
    scans,
    skipped_masks,
    sliding,
    windows,
)

__all__ = [
    "attention",
    "blocks",
    "caches",
    "chunked_scans",
    "chunks",
    "durations",
    "experts",
    "gated_scans",
    "looped_experts",
    "masks",
    "paddings",
    "positions",
    "rope",
    "scans",
    "skipped_masks",
    "sliding",
    "windows",
]
