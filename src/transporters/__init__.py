# SPDX-License-Identifier: Apache-2.0
"""Turn any Transformers model into a program that another runtime loads, and prove it against eager PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .artifacts.exported import ExportedModel
    from .exporters.auto import AutoExportConfig, AutoExporter, register_backend
    from .exporters.configs import DynamoConfig, ExecutorchConfig, OnnxConfig
    from .exporters.exporter_dynamo import DynamoExporter
    from .exporters.exporter_executorch import ExecutorchExporter
    from .exporters.exporter_onnx import OnnxExporter

_WHERE = {
    "AutoExportConfig": "exporters.auto",
    "AutoExporter": "exporters.auto",
    "DynamoConfig": "exporters.configs",
    "DynamoExporter": "exporters.exporter_dynamo",
    "ExecutorchConfig": "exporters.configs",
    "ExecutorchExporter": "exporters.exporter_executorch",
    "OnnxConfig": "exporters.configs",
    "OnnxExporter": "exporters.exporter_onnx",
    "ExportedModel": "artifacts.exported",
    "register_backend": "exporters.auto",
}

__all__ = [
    "AutoExportConfig",
    "AutoExporter",
    "DynamoConfig",
    "DynamoExporter",
    "ExecutorchConfig",
    "ExecutorchExporter",
    "ExportedModel",
    "OnnxConfig",
    "OnnxExporter",
    "register_backend",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
