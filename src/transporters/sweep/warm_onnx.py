# SPDX-License-Identifier: Apache-2.0
"""Imported for its effect, as `warm`, where cases go to ONNX: torch's list of translations takes a second to read."""

from __future__ import annotations

import inspect

from torch.onnx._internal.exporter._registration import ONNXRegistry

from ..exporters.configs import OnnxConfig
from ..exporters.workarounds.onnx.registries import read_once

__all__: list[str] = []

read_once(inspect.getattr_static(ONNXRegistry, "from_torchlib").__func__, ONNXRegistry, OnnxConfig().opset_version)
