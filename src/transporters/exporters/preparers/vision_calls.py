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
_NOT_TRACKED = ("_ids", "_mask")
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


class _Tracked(torch.Tensor):
    """An input that knows its name, and columns of one that know which they are.

    Equal values would not tell: in a grid of square images height and width are the same.
    """

    source: Tensor | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if isinstance(result, _Tracked):
            result.source = _source(func, args, result)
            return result if result.source is not None else result.as_subclass(torch.Tensor)
        return result


#: Methods that give the values that they were given.
_SAME = frozenset({torch.Tensor.to, torch.Tensor.clone, torch.Tensor.contiguous, torch.Tensor.detach, torch.Tensor.cpu})


def _source(function: Any, args: Any, result: torch.Tensor) -> Tensor | None:
    """Where a result comes from; None when it is neither a whole input nor some columns of one."""
    given = args[0] if args and isinstance(args[0], _Tracked) else None
    if given is None or given.source is None or result.dtype != given.dtype:
        return None
    if function in _SAME:
        return given.source
    place = args[1] if function is torch.Tensor.__getitem__ else None
    if not isinstance(place, tuple) or len(place) != 2 or place[0] != slice(None) or given.ndim != 2:
        return None
    known = given.source.columns or tuple(range(given.shape[1]))
    if isinstance(place[1], slice):
        return Tensor(given.source.name, known[place[1]])
    if isinstance(place[1], list) and all(isinstance(column, int) for column in place[1]):
        return Tensor(given.source.name, tuple(known[column] for column in place[1]))
    return None


def tracked(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of inputs for a run that is recorded; whole numbers that are no ids and no mask know their names."""
    found: dict[str, Any] = {}
    for name, value in inputs.items():
        found[name] = value.clone() if isinstance(value, torch.Tensor) else value
        if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point and not name.endswith(_NOT_TRACKED):
            found[name] = found[name].as_subclass(_Tracked)
            found[name].source = Tensor(name)
    return found


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Record all calls in the block that read `tracked` inputs and return tensors, each set of keys of a grid once."""
    calls: list[Call] = []
    with _LOCK:
        standing = list(_helpers())
        for module, name, function in standing:
            setattr(module, name, _recorder(function, calls))
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


def _recorder(function: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def call(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        looked = _Looked()
        looked.update(bound.arguments.get("kwargs") or {})
        bound.arguments["kwargs"] = looked
        result = function(*bound.args, **bound.kwargs)
        known = {(entry.grid, key) for entry in calls for key in entry.keys}
        entry = _entry(function, bound.arguments, looked.missed, result)
        if entry is not None and not any((entry.grid, key) in known for key in entry.keys):
            calls.append(entry)
        given = named.get("kwargs")
        if given is not None:
            for key in [key for key in given if key not in looked]:
                del given[key]  # as the function would have taken it out
        return result

    return call


def _entry(function: Callable[..., Any], arguments: Mapping[str, Any], keys: list[str], result: Any) -> Call | None:
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
            if not isinstance(value, _Tracked) or value.source is None:
                return None
            tensors[parameter] = value.source
        elif _is_plain(value):
            options[parameter] = value
        else:
            return None
    place = f"{function.__module__}:{function.__name__}"
    return Call(place, tensors, options, tuple(keys)) if tensors and _PLACE.fullmatch(place) else None


def _is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == (list(value) if isinstance(value, tuple) else value))
    except TypeError:
        return False
