# SPDX-License-Identifier: Apache-2.0
"""Take a container object apart into tensor leaves and a context, and build it again.

The attribute walk reaches every plain Python object: its ``__dict__``, and the lists, tuples and dicts in it. Tensors
become leaves, and so do the counters that a forward pass advances; everything else goes into the context, a JSON
string, so that two contexts are equal exactly when they read the same and a saved program rebuilds its containers.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import OrderedDict, UserDict, defaultdict, deque
from enum import Enum
from typing import Any

import torch

#: Integer attributes, and dicts of integers, that a forward pass advances. They are leaves: in the context, their value
#: would tie a program to the length that it was traced with.
_COUNTERS = frozenset(
    {
        "cumulative_length",
        "cumulative_length_int",
        "prefill_cumulative_length",
        "prefill_length",
        "entry_count",
        "num_cache_frames",
        "num_fifo_frames",
        "_seen_tokens",
        "_previous_number_of_accepted_tokens",
    }
)

#: Tensor attributes that only repeat another attribute, and that attribute: rebuilt, never a leaf.
_DERIVED = {"_sliding_window_tensor": "sliding_window"}

#: Attributes that hold no state of their own and cannot be written down.
_DROPPED = frozenset({"prefetch_stream"})

_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "size": torch.Size}
_SCALARS = (type(None), bool, int, float, str)


class Walk:
    """The leaves found so far, each with its dotted name."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.names: list[str] = []
        self._open: set[int] = set()

    def leaf(self, value: Any, name: str) -> dict[str, Any]:
        """Add a leaf and give its place in the context."""
        self.leaves.append(value)
        self.names.append(name)
        return {"leaf": len(self.leaves) - 1}

    def enter(self, value: Any, name: str) -> None:
        """Note that ``value`` is being taken apart.

        Raises:
            TypeError: When it is inside itself.
        """
        if id(value) in self._open:
            raise TypeError(f"{name or 'the container'} contains itself, which no program input or output can")
        self._open.add(id(value))

    def leave(self, value: Any) -> None:
        """Note that ``value`` has been taken apart."""
        self._open.discard(id(value))


def flatten(container: Any) -> tuple[list[Any], list[str], str]:
    """Leaves, their dotted names, and the context of a container object.

    Raises:
        TypeError: When an attribute is neither a tensor nor plain data; the message names it.
    """
    walk = Walk()
    context = _flatten_to_context(container, walk, "")
    return walk.leaves, walk.names, json.dumps(context, separators=(",", ":"))


def unflatten(leaves: Any, context: str) -> Any:
    """Inverse of `flatten`; a new object, which shares nothing with the one taken apart but the leaves."""
    return _unflatten_from_context(json.loads(context), list(leaves))


def type_name(cls: type) -> str:
    """``module:qualname``, as contexts and manifests write a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_type(name: str) -> type:
    """The class behind a `type_name`.

    A context can come from a file, so only modules of Transformers and torch, and those that the program has imported
    already, are looked at: reading an artifact never runs a module of the file's choosing.

    Raises:
        TypeError: When the name is not one of those, or is not a class.
    """
    module_name, _, qualname = name.partition(":")
    if module_name not in sys.modules and module_name.split(".")[0] not in ("transformers", "torch"):
        raise TypeError(f"container type {name} is defined in a module that is not imported; import it first")
    found: Any = importlib.import_module(module_name)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not isinstance(found, type):
        raise TypeError(f"{name} is not a class")
    return found


def _flatten_to_context(value: Any, walk: Walk, name: str) -> Any:
    """The context of ``value``; tensors and counters under it are added to ``walk``."""
    last = name.rpartition(".")[2]
    if last in _DERIVED:
        return {"derived": _DERIVED[last]}
    if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return walk.leaf(value, name)
    if value is not None and type(value) is not dict and not _COUNTERS.isdisjoint(name.split(".")[-2:]):
        return walk.leaf(value, name)  # an int, or what torch.export puts in its place while it traces
    if isinstance(value, Enum):
        return {"enum": type_name(type(value)), "name": value.name}
    if isinstance(value, _SCALARS):
        return {"is": value}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, type):
        return {"class": type_name(value)}
    if isinstance(value, (torch.nn.Module, torch.Stream)) or callable(value):
        raise TypeError(f"{name}: a {type(value).__name__} cannot be part of a program's inputs or outputs")
    walk.enter(value, name)
    try:
        return _flatten_compound(value, walk, name)
    finally:
        walk.leave(value)


def _flatten_compound(value: Any, walk: Walk, name: str) -> Any:
    for kind, sequence in _SEQUENCES.items():
        if type(value) is sequence:
            return {kind: [_flatten_to_context(item, walk, _join(name, i)) for i, item in enumerate(value)]}
    if type(value) is deque:
        items = [_flatten_to_context(item, walk, _join(name, i)) for i, item in enumerate(value)]
        return {"deque": items, "maxlen": value.maxlen}
    if isinstance(value, dict):
        items = [
            [_flatten_to_context(key, walk, ""), _flatten_to_context(item, walk, _join(name, key))]
            for key, item in value.items()
        ]
        if type(value) is dict:
            return {"dict": items}
        if isinstance(value, defaultdict):
            extra = {"default_factory": value.default_factory}
        else:
            extra = {} if type(value) is OrderedDict or is_model_output(value) else vars(value)
        return {"mapping": type_name(type(value)), "items": items, "attributes": _attributes(extra, walk, name)}
    if _is_config(value):
        return {"config": type_name(type(value)), "values": json.loads(value.to_json_string(use_diff=False))}
    if hasattr(value, "__dict__"):
        inner = value.data if isinstance(value, UserDict) else vars(value)
        return {
            "object": type_name(type(value)),
            "userdict": isinstance(value, UserDict),
            "attributes": _attributes(inner, walk, name),
        }
    raise TypeError(f"{name}: a {type(value).__module__}.{type(value).__name__} has no attributes to walk")


def _attributes(values: dict[Any, Any], walk: Walk, name: str) -> list[Any]:
    return [
        [_flatten_to_context(key, walk, ""), _flatten_to_context(item, walk, _join(name, key))]
        for key, item in values.items()
        if key not in _DROPPED
    ]


def _unflatten_from_context(context: Any, leaves: list[Any]) -> Any:
    """Build what `_flatten_to_context` took apart."""
    kind = next(iter(context))
    body = context[kind]
    if kind == "leaf":
        return leaves[body]
    if kind == "is":
        return body
    if kind == "dtype":
        return getattr(torch, body)
    if kind == "device":
        return torch.device(body)
    if kind == "class":
        return find_type(body)
    if kind == "enum":
        return find_type(body)[context["name"]]  # type: ignore[index]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_unflatten_from_context(item, leaves) for item in body)
    if kind == "deque":
        return deque((_unflatten_from_context(item, leaves) for item in body), context["maxlen"])
    if kind == "dict":
        return dict(_pairs(body, leaves))
    if kind == "config":
        return find_type(body).from_dict(context["values"])  # type: ignore[attr-defined]
    if kind == "mapping":
        return _build_mapping(find_type(body), context, leaves)
    return _build_object(find_type(body), context, leaves)


def _build_mapping(cls: Any, context: dict[str, Any], leaves: list[Any]) -> Any:
    items = dict(_pairs(context["items"], leaves))
    if _is_model_output_type(cls):
        return cls(**items)
    built = cls.__new__(cls)
    built.update(items)
    for key, item in _pairs(context["attributes"], leaves):
        setattr(built, key, item)
    return built


def _build_object(cls: Any, context: dict[str, Any], leaves: list[Any]) -> Any:
    built = cls.__new__(cls)
    if context["userdict"]:
        built.__dict__["data"] = dict(_pairs(context["attributes"], leaves))
        return built
    attributes = built.__dict__
    for key, item in context["attributes"]:  # in their order, so that what is built has the same context
        attributes[key["is"]] = None if "derived" in item else _unflatten_from_context(item, leaves)
    for key, item in context["attributes"]:
        if "derived" in item:
            attributes[key["is"]] = torch.tensor(attributes[item["derived"]], dtype=torch.long)
    return built


def _pairs(items: list[Any], leaves: list[Any]) -> list[tuple[Any, Any]]:
    return [(_unflatten_from_context(k, leaves), _unflatten_from_context(v, leaves)) for k, v in items]


def _join(name: str, part: Any) -> str:
    return f"{name}.{part}" if name else str(part)


def _is_config(value: Any) -> bool:
    from transformers import PreTrainedConfig

    return isinstance(value, PreTrainedConfig)


def _is_model_output_type(cls: type) -> bool:
    from transformers.utils import ModelOutput

    return issubclass(cls, ModelOutput)


def is_model_output(value: Any) -> bool:
    """Whether a value is an output of a model as Transformers makes it: a mapping whose fields its class declares."""
    return _is_model_output_type(type(value))
