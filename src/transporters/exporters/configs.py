# SPDX-License-Identifier: Apache-2.0
"""Export configurations. Standard library only, so that reading one costs nothing."""

from __future__ import annotations

import dataclasses
import difflib
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from ..errors import ConfigError

#: What `ExecutorchConfig.memory_planning` may switch.
_PLANNING_SWITCHES = ("alloc_graph_input", "alloc_graph_output", "alloc_mutable_buffers")


@dataclass
class ExportConfig:
    """Base of every export configuration.

    Attributes:
        skip_workarounds: Ids of workarounds to switch off, e.g. ``["model:_patch_split_attention"]``.
    """

    export_format: ClassVar[str] = ""

    skip_workarounds: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form with ``export_format`` first; `torch.export.Dim` objects become plain dicts."""
        values = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"export_format": self.export_format, **values}

    def to_json(self) -> str:
        """`to_dict` as a JSON document."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Build a configuration.

        Raises:
            ConfigError: On an unknown key (the message names the nearest valid one), a value of the wrong type, or an
                ``export_format`` that is not this class's.
        """
        values = dict(data)
        declared = values.pop("export_format", cls.export_format)
        if declared != cls.export_format:
            raise ConfigError(
                f"export_format {declared!r} is not {cls.__name__}'s ({cls.export_format!r})",
                advice="use AutoExportConfig.from_dict, which picks the class by export_format",
            )
        names = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
                raise ConfigError(f"{cls.__name__} has no {key!r}", advice=f"the nearest valid name is {near[0]!r}")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`.

        Raises:
            ConfigError: When the text is not a JSON object, and as `from_dict`.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"the configuration is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise ConfigError("the configuration is not a JSON object")
        return cls.from_dict(data)

    def __post_init__(self) -> None:
        """Check the values' types.

        Raises:
            ConfigError: Naming the field and what it takes.
        """
        for name in ("skip_workarounds", "allow_static"):
            value = getattr(self, name, [])
            if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
                raise ConfigError(f"{name} takes a list of strings, not {value!r}")


@dataclass
class DynamoConfig(ExportConfig):
    """Configuration of `DynamoExporter`.

    Attributes:
        dynamic: Give every axis of every input tensor a symbolic size.
        dynamic_shapes: Overrides by input name, in the form that `torch.export.export` takes: per input a dict from
            axis to a `Dim`, ``"auto"``, ``"static"``, or ``{"name": …, "min": …, "max": …}``. Inputs and axes that are
            not named keep what ``dynamic`` says.
        allow_static: Axes that may come out static although the model itself takes other sizes: readable labels
            (``"sequence"``) or ``"input_ids.1"``.
    """

    export_format: ClassVar[str] = "torch"

    dynamic: bool = True
    dynamic_shapes: dict[str, Any] | None = None
    allow_static: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the values' types."""
        super().__post_init__()
        for name in ("dynamic",):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} takes true or false, not {getattr(self, name)!r}")
        if self.dynamic_shapes is not None and not isinstance(self.dynamic_shapes, dict):
            raise ConfigError("dynamic_shapes takes a dict from input name to a dict from axis to a dimension")
        if self.dynamic_shapes is not None and not self.dynamic:
            raise ConfigError("dynamic_shapes needs dynamic=True", advice="drop one of the two")


@dataclass
class OnnxConfig(DynamoConfig):
    """Configuration of `OnnxExporter`.

    Attributes:
        opset_version: Version of ONNX's operator set, 20 to 23.
        optimize: Run onnxscript's optimizer over the graph.
        external_data: Keep weights in a file beside the graph; None does so above 1.5 GB.
    """

    export_format: ClassVar[str] = "onnx"

    opset_version: int = 20
    optimize: bool = True
    external_data: bool | None = None

    def __post_init__(self) -> None:
        """Check the values' types."""
        super().__post_init__()
        if not isinstance(self.opset_version, int) or not 20 <= self.opset_version <= 23:
            raise ConfigError(f"opset_version takes a number from 20 to 23, not {self.opset_version!r}")


@dataclass
class ExecutorchConfig(DynamoConfig):
    """Configuration of `ExecutorchExporter`.

    Attributes:
        backend: Name of the delegate: "xnnpack", "portable" (none), "cuda", or one that an extender has added to
            `_BACKEND_PREPARE`.
        max_dims: Largest size per readable axis label (``{"batch": 8, "sequence": 512}``) or ``"input_ids.1"``. Memory
            is planned for these sizes. An axis that is not named gets the model's own limit, or a general one.
        memory_planning: Switches of ExecuTorch's `MemoryPlanningPass`, such as ``{"alloc_graph_input": False}``.
        partition: Whether the delegate gets its share of the graph; without it all runs on portable kernels.
        max_context: For `Exporter.export_for_generation`: tokens that a text may have, with those that are written.
            The program has memory for the cache of as many. None stands for the model's own limit, up to 2048.
    """

    export_format: ClassVar[str] = "executorch"

    backend: str = "xnnpack"
    max_dims: dict[str, int] = field(default_factory=dict)
    memory_planning: dict[str, bool] = field(default_factory=dict)
    partition: bool = True
    max_context: int | None = None

    def __post_init__(self) -> None:
        """Check the values' types."""
        super().__post_init__()
        if not isinstance(self.backend, str):
            raise ConfigError(f"backend takes a name, not {self.backend!r}")
        if not isinstance(self.partition, bool):
            raise ConfigError(f"partition takes true or false, not {self.partition!r}")
        if self.max_context is not None and not _is_size(self.max_context):
            raise ConfigError(f"max_context takes a number of tokens from 1 up, not {self.max_context!r}")
        if not isinstance(self.max_dims, dict) or not all(_is_size(size) for size in self.max_dims.values()):
            raise ConfigError(f"max_dims takes a dict from axis label to a size from 1 up, not {self.max_dims!r}")
        if not isinstance(self.memory_planning, dict):
            raise ConfigError(f"memory_planning takes a dict of switches, not {self.memory_planning!r}")
        for name, value in self.memory_planning.items():
            if name not in _PLANNING_SWITCHES or not isinstance(value, bool):
                known = ", ".join(_PLANNING_SWITCHES)
                raise ConfigError(f"memory_planning has no {name!r}: {value!r}", advice=f"true or false for: {known}")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _plain(value: Any) -> Any:
    """``value`` with Dim objects and hints written as JSON, and integer axes kept as strings that read back."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, type) or type(value).__name__ == "Dim":
        return {"name": value.__name__, "min": getattr(value, "min", None), "max": _finite(getattr(value, "max", None))}
    if type(value).__name__ == "_DimHint":
        return value.type.name.lower()
    return value


def _finite(bound: Any) -> int | None:
    return int(bound) if isinstance(bound, int) else None
