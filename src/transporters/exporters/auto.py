# SPDX-License-Identifier: Apache-2.0
"""Which classes serve an export format. The table holds dotted strings, so nothing heavy is imported before its use."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, UsageError
from .configs import ExportConfig

if TYPE_CHECKING:
    from .base import Exporter


@dataclass(frozen=True)
class Backend:
    """Where an export format's classes are: ``module:Name`` strings.

    Attributes:
        config: Subclass of `ExportConfig`.
        exporter: Subclass of `Exporter`.
        runner: Subclass of `Runner`.
    """

    config: str
    exporter: str
    runner: str


_BACKENDS: dict[str, Backend] = {
    "torch": Backend(
        config="transporters.exporters.configs:DynamoConfig",
        exporter="transporters.exporters.exporter_dynamo:DynamoExporter",
        runner="transporters.runners.torch_runner:TorchRunner",
    ),
    "onnx": Backend(
        config="transporters.exporters.configs:OnnxConfig",
        exporter="transporters.exporters.exporter_onnx:OnnxExporter",
        runner="transporters.runners.onnx_runner:OnnxRunner",
    ),
    "executorch": Backend(
        config="transporters.exporters.configs:ExecutorchConfig",
        exporter="transporters.exporters.exporter_executorch:ExecutorchExporter",
        runner="transporters.runners.executorch_runner:ExecutorchRunner",
    ),
}
_ALIASES = {"dynamo": "torch", "pt2": "torch"}


def register_backend(export_format: str, *, config: str, exporter: str, runner: str) -> None:
    """Add a third party's export format.

    Args:
        export_format: Name that configurations and ``--to`` take.
        config: ``module:Name`` of a subclass of `ExportConfig`, like ``exporter`` and ``runner``.
        exporter: ``module:Name`` of a subclass of `Exporter`.
        runner: ``module:Name`` of a subclass of `Runner`.

    Raises:
        ConfigError: When the format exists already, or a string is not ``module:Name``.
    """
    if export_format in _BACKENDS or export_format in _ALIASES:
        raise ConfigError(f"the export format {export_format!r} is registered already")
    for path in (config, exporter, runner):
        if path.count(":") != 1:
            raise ConfigError(f"{path!r} is not of the form 'module:Name'")
    _BACKENDS[export_format] = Backend(config, exporter, runner)


def unregister_backend(export_format: str) -> None:
    """Take an export format out again."""
    _BACKENDS.pop(export_format, None)


def formats() -> tuple[str, ...]:
    """Names of the export formats."""
    return tuple(_BACKENDS)


def backend(export_format: str) -> Backend:
    """The classes of an export format.

    Raises:
        UsageError: On an unknown format; the message names the nearest.
    """
    name = _ALIASES.get(export_format, export_format)
    if name not in _BACKENDS:
        near = difflib.get_close_matches(export_format, [*_BACKENDS, *_ALIASES], n=1)
        known = ", ".join(_BACKENDS)
        raise UsageError(
            f"there is no export format {export_format!r}",
            advice=f"did you mean {near[0]!r}? (known: {known})" if near else f"known formats: {known}",
        )
    return _BACKENDS[name]


def exporter_class(export_format: str) -> type[Exporter]:
    """The exporter class of a format. Raises as `backend`."""
    found: type[Exporter] = load_object(backend(export_format).exporter)
    return found


def config_class(export_format: str) -> type[ExportConfig]:
    """The configuration class of a format. Raises as `backend`."""
    found: type[ExportConfig] = load_object(backend(export_format).config)
    return found


def runner_class(export_format: str) -> Any:
    """The runner class of a format. Raises as `backend`."""
    return load_object(backend(export_format).runner)


def load_object(path: str) -> Any:
    """The object behind a ``module:Name`` string."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class AutoExportConfig:
    """Picks the configuration class by ``export_format``."""

    @staticmethod
    def from_dict(data: dict[str, Any]) -> ExportConfig:
        """A configuration of the class that ``data["export_format"]`` names.

        Raises:
            ConfigError: When ``export_format`` is missing, and as `ExportConfig.from_dict`.
            UsageError: When the format is unknown.
        """
        if "export_format" not in data:
            raise ConfigError("the configuration has no 'export_format'", advice=f"set it to one of {formats()}")
        name = data["export_format"]
        return config_class(name).from_dict({**data, "export_format": _ALIASES.get(name, name)})


class AutoExporter:
    """Picks the exporter by ``export_format``."""

    @staticmethod
    def from_config(config: ExportConfig | dict[str, Any]) -> Exporter:
        """An exporter for a configuration (or its dict form). Raises as `AutoExportConfig.from_dict`."""
        if isinstance(config, dict):
            config = AutoExportConfig.from_dict(config)
        return exporter_class(config.export_format)()

    @staticmethod
    def from_format(export_format: str) -> Exporter:
        """An exporter by the name of its format. Raises as `backend`."""
        return exporter_class(export_format)()
