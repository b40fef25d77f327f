# SPDX-License-Identifier: Apache-2.0
"""Imported for its effect, as `warm`: finds once what the patterns of patches mean in a thousand modules of models."""

from __future__ import annotations

from ..exporters import patching, registry
from ..exporters.exporter_dynamo import DynamoExporter

__all__: list[str] = []

for _workaround in registry.active(DynamoExporter.backend, "patch"):
    for _path in _workaround.paths:
        patching.targets(_workaround, _path)
