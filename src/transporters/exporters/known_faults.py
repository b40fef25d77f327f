# SPDX-License-Identifier: Apache-2.0
"""Confirmed faults of other packages that cost a class something here. The lists are meant to shrink."""

from __future__ import annotations

#: Name of a model class to the upstream issue of a confirmed bug in onnxscript's optimizer, which is off for the class.
#: An entry without such an issue is refused by a test, and so is one whose class the optimizer gets right again.
ONNX_DISABLE_OPTIMIZE: dict[str, str] = {}
