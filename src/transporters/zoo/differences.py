# SPDX-License-Identifier: Apache-2.0
"""What a tiny config has less of than the full one, and which kinds of layers it kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import layers
from .tokens import is_token


@dataclass(frozen=True)
class Shrunk:
    """A size: its dotted name in the config, at full and at tiny size (numbers, or lists of them)."""

    name: str
    full: Any
    tiny: Any


@dataclass(frozen=True)
class Kinds:
    """A list of a config with an entry per layer: how many layers are of each kind, at full and at tiny size."""

    name: str
    full: dict[str, int]
    tiny: dict[str, int]


def shrunk(full: Any, tiny: Any) -> list[Shrunk]:
    """Every size that differs, in the order of the configs. Ids of special tokens are no sizes."""
    return [
        Shrunk(f"{prefix}{name}", value, other)
        for prefix, node, small in _nodes(full, tiny)
        for name, value in node.items()
        if _is_size(value) and not is_token(name, value) and _is_size(other := small.get(name)) and value != other
    ]


def layer_kinds(full: Any, tiny: Any) -> list[Kinds]:
    """Every list that says of each layer what kind it is. Empty when a config knows one kind only."""
    found = []
    for prefix, node, small in _nodes(full, tiny):
        depth = node.get(layers.depth_name(node) or "")
        for name, value in node.items():
            if depth and layers.is_per_layer(name, value, depth) and isinstance(value[0], (str, bool)):
                found.append(Kinds(f"{prefix}{name}", _counts(value), _counts(small.get(name) or ())))
    return found


def layer_modules(model: Any) -> dict[str, dict[str, int]]:
    """The outermost lists of layers of a model: dotted name to kind of layer to how many there are.

    Layers of one class are of several kinds when they are made of different parts; the kind then names those.
    """
    import torch

    found: dict[str, dict[str, int]] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if inside or not isinstance(module, torch.nn.ModuleList) or len(module) < layers.LEAST:
            continue
        made_of = [{type(part).__name__ for part in layer.children()} for layer in module]
        if any(made_of):
            common = set.intersection(*made_of)
            kinds = (_kind(layer, parts - common) for layer, parts in zip(module, made_of, strict=True))
            found[name] = dict(Counter(kinds))
    return found


def _kind(layer: Any, own: set[str]) -> str:
    name = type(layer).__name__
    return f"{name} with {' and '.join(sorted(own))}" if own else name


def _nodes(full: Any, tiny: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The attributes of both configs, then of the configs inside of them."""
    from transformers import PreTrainedConfig

    node, small = vars(full), vars(tiny)
    yield prefix, node, small
    for name, value in node.items():
        if isinstance(value, PreTrainedConfig) and isinstance(small.get(name), PreTrainedConfig):
            yield from _nodes(value, small[name], f"{prefix}{name}.")


def _is_size(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_size(entry) for entry in value)
    return isinstance(value, int) and not isinstance(value, bool)


def _counts(values: Any) -> dict[str, int]:
    return dict(Counter(str(value) for value in values))
