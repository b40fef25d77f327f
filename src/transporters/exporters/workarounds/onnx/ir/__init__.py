# SPDX-License-Identifier: Apache-2.0
"""Repairs of the finished ONNX graph, in the order of application."""

from __future__ import annotations

from . import flags, ordering, sums, dtypes  # isort: skip  the casts last, around all that the others make

__all__ = ["dtypes", "flags", "ordering", "sums"]
