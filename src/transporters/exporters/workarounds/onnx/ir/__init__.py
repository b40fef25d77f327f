# SPDX-License-Identifier: Apache-2.0
"""Repairs of the finished ONNX graph, in the order of application."""

from __future__ import annotations

from . import dtypes

__all__ = ["dtypes"]
