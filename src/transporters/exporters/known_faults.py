# SPDX-License-Identifier: Apache-2.0
"""Confirmed faults of other packages that cost a class something here. The lists are meant to shrink."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Name of a model class to the upstream issue of a confirmed bug in onnxscript's optimizer, which is off for the class.
#: An entry without such an issue is refused by a test, and so is one whose class the optimizer gets right again.
ONNX_DISABLE_OPTIMIZE: dict[str, str] = {}

#: Name of a model class that cannot be exported at all as it is, and that a sweep leaves out, to the change in the
#: model that would lift it: data-dependent control flow that cannot be vectorised, a module handed over as an argument.
#: An entry without such a change is refused by a test, and so is one whose class exports and verifies after all.
EXPORT_SKIPS: Mapping[str, str] = MappingProxyType({})
