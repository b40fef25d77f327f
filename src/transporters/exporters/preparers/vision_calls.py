# SPDX-License-Identifier: Apache-2.0
"""What a vision encoder reads out of a grid of patches, recorded in an eager run and computed anew for other grids.

Transformers keeps such computations in functions ``get_vision_…(grid, …, kwargs)``, which first look in ``kwargs`` for
a result that the caller has computed already. So a run tells all that is needed: which functions were called, with
which grid, and under which keys they looked.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ...errors import ArtifactError

_HELPER = re.compile(r"get_vision_\w+")
#: Where such a function may be. A manifest cannot name any other.
_PLACE = re.compile(r"transformers\.(vision_utils|models\.\w+\.modeling_\w+):get_vision_\w+")
#: Two recordings at once would see each other's functions.
_LOCK = threading.RLock()


@dataclass(frozen=True)
class Tensor:
    """An argument that is an input of the model, or some of its columns.

    Attributes:
        name: Name of the input.
        columns: Which of its columns, in order; None for the input as it is.
    """

    name: str
    columns: tuple[int, ...] | None = None

    def of(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """The argument's value for these inputs."""
        value: torch.Tensor = inputs[self.name]
        return value if self.columns is None else value[:, list(self.columns)]


@dataclass(frozen=True)
class Call:
    """One call of a function ``get_vision_…``.

    Attributes:
        function: ``module:name``.
        tensors: Parameter name to the input that it was given.
        options: Parameter name to a plain value.
        keys: Where the function looks for its results.
    """

    function: str
    tensors: dict[str, Tensor]
    options: dict[str, Any]
    keys: tuple[str, ...]

    @property
    def grid(self) -> str:
        """Name of the input that the call reads first."""
        return next(iter(self.tensors.values())).name

    def compute(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The results by key, for other inputs.

        Raises:
            ArtifactError: When the call names a function that is none of these.
        """
        if not _PLACE.fullmatch(self.function):
            raise ArtifactError(
                f"the manifest names {self.function!r}, which computes no vision inputs", advice="export again"
            )
        module, _, name = self.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        arguments = {parameter: tensor.of(inputs) for parameter, tensor in self.tensors.items()}
        found = function(**arguments, **self.options)
        return dict(zip(self.keys, found if isinstance(found, tuple) else (found,)))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Call:
        """Inverse of `to_dict`."""
        tensors = {
            parameter: Tensor(entry["name"], None if entry["columns"] is None else tuple(entry["columns"]))
            for parameter, entry in data["tensors"].items()
        }
        return cls(data["function"], tensors, dict(data["options"]), tuple(data["keys"]))


@contextmanager
def recorded(inputs: Mapping[str, Any]) -> Iterator[list[Call]]:
    """Record all calls in the block that read an input and return tensors, each set of keys of a grid once.

    Args:
        inputs: The model's inputs by name.
    """
    calls: list[Call] = []
    with _LOCK:
        standing = list(_helpers())
        for module, name, function in standing:
            setattr(module, name, _recorder(function, inputs, calls))
        try:
            yield calls
        finally:
            for module, name, function in standing:
                setattr(module, name, function)


def _helpers() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Every name under which such a function can be called."""
    for path, module in list(sys.modules.items()):
        if path != "transformers.vision_utils" and not re.fullmatch(r"transformers\.models\.\w+\.modeling_\w+", path):
            continue
        for name, value in list(vars(module).items()):
            if (
                _HELPER.fullmatch(name)
                and inspect.isfunction(value)
                and "kwargs" in inspect.signature(value).parameters
            ):
                yield module, name, value


@dataclass
class _Looked(dict[str, Any]):
    """Keyword arguments that remember what was looked for in vain."""

    missed: list[str] = field(default_factory=list)

    def pop(self, key: str, *default: Any) -> Any:
        """As ``dict.pop``."""
        if key not in self:
            self.missed.append(key)
        return super().pop(key, *default)


def _recorder(function: Callable[..., Any], inputs: Mapping[str, Any], calls: list[Call]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def call(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        looked = _Looked()
        looked.update(bound.arguments.get("kwargs") or {})
        bound.arguments["kwargs"] = looked
        result = function(*bound.args, **bound.kwargs)
        known = {(entry.grid, key) for entry in calls for key in entry.keys}
        entry = _entry(function, bound.arguments, looked.missed, result, inputs)
        if entry is not None and not any((entry.grid, key) in known for key in entry.keys):
            calls.append(entry)
        given = named.get("kwargs")
        if given is not None:
            for key in [key for key in given if key not in looked]:
                del given[key]  # as the function would have taken it out
        return result

    return call


def _entry(
    function: Callable[..., Any], arguments: Mapping[str, Any], keys: list[str], result: Any, inputs: Mapping[str, Any]
) -> Call | None:
    """A call, when it can be carried out again from the inputs alone."""
    results = result if isinstance(result, tuple) else (result,)
    if not keys or len(keys) != len(results) or not all(isinstance(value, torch.Tensor) for value in results):
        return None
    tensors: dict[str, Tensor] = {}
    options: dict[str, Any] = {}
    for parameter, value in arguments.items():
        if parameter == "kwargs":
            continue
        if isinstance(value, torch.Tensor):
            source = _source(value, inputs)
            if source is None:
                return None
            tensors[parameter] = source
        elif _is_plain(value):
            options[parameter] = value
        else:
            return None
    place = f"{function.__module__}:{function.__name__}"
    return Call(place, tensors, options, tuple(keys)) if tensors and _PLACE.fullmatch(place) else None


def _source(value: torch.Tensor, inputs: Mapping[str, Any]) -> Tensor | None:
    """The input, or the columns of one, that a tensor is."""
    for name, given in inputs.items():
        if isinstance(given, torch.Tensor) and given.shape == value.shape and torch.equal(given, value):
            return Tensor(name)
    for name, given in inputs.items():
        if not isinstance(given, torch.Tensor) or given.ndim != 2 or value.ndim != 2 or len(given) != len(value):
            continue
        columns = []
        for wanted in value.unbind(1):
            # A grid of square images has equal columns: the last that fits would be wrong for others half of the time.
            fits = [place for place, column in enumerate(given.unbind(1)) if torch.equal(column, wanted)]
            columns.append(fits)
        if all(len(fits) == 1 for fits in columns):
            return Tensor(name, tuple(fits[0] for fits in columns))
    return None


def _is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == (list(value) if isinstance(value, tuple) else value))
    except TypeError:
        return False
