# SPDX-License-Identifier: Apache-2.0
"""What `torch.export` itself cannot trace or should not carry, in the order of application."""

from __future__ import annotations

from . import buffers, dtypes, guards, indexing, layouts, lengths, pooling, symbols

__all__ = ["buffers", "dtypes", "guards", "indexing", "layouts", "lengths", "pooling", "symbols"]
