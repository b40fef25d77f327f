# SPDX-License-Identifier: Apache-2.0
"""Registration of containers with torch's pytrees, and the only functions that walk nested inputs and outputs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._pytree import Context, KeyEntry, MappingKey, TreeSpec

from . import containers

_OURS: set[type] = set()


def register(cls: type) -> None:
    """Make instances of ``cls`` containers for `torch.export`, in place of whatever registration stood there.

    The leaves are the object's tensors (and counters), named by their dotted attribute path. A registration that
    another library made for a `Cache` is replaced: those drop layer kinds and state that a program needs back.
    Registering twice is harmless.
    """
    if cls in _OURS:
        return
    if cls in pytree.SUPPORTED_NODES:
        pytree._deregister_pytree_node(cls)
    pytree.register_pytree_node(
        cls,
        _flatten,
        containers.unflatten,
        serialized_type_name=containers.type_name(cls),
        flatten_with_keys_fn=_flatten_with_keys,
    )
    _OURS.add(cls)


def register_model_containers(model: torch.nn.Module, *trees: Any) -> None:
    """Register what ``model`` may take or return: every loaded `Cache`, its modules' containers, types in ``trees``.

    `ModelOutput` classes register themselves in Transformers, with names that survive saving; they are left alone.
    """
    from transformers.cache_utils import Cache

    for cls in (Cache, *subclasses(Cache)):
        register(cls)
    for module_name in {type(module).__module__ for module in model.modules()}:
        for cls in container_types(module_name):
            register(cls)
    for tree in trees:
        for cls in _types_in(tree):
            register(cls)


def container_types(module_name: str) -> list[type]:
    """Classes defined in a modeling module whose instances carry state between calls (caches, padding states…)."""
    found = []
    for value in vars(sys.modules[module_name]).values():
        if isinstance(value, type) and value.__module__ == module_name and _may_hold_state(value):
            found.append(value)
    return found


def subclasses(cls: Any) -> Iterator[type]:
    """Every loaded class below ``cls``."""
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf of a tree with its dotted name; an absent (None) leaf is left out."""
    pairs, _ = pytree.tree_flatten_with_path(tree)
    return [(path_name(path), leaf) for path, leaf in pairs if leaf is not None]


def path_name(path: tuple[KeyEntry, ...]) -> str:
    """Dotted name of a key path: ``cache.layers.0.keys``, ``hidden_states.3``."""
    return ".".join(_key_name(entry) for entry in path)


def map_named(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """A new tree with each leaf replaced by ``function(name, leaf)``; containers are rebuilt, never shared."""
    return pytree.tree_map_with_path(lambda path, leaf: function(path_name(path), leaf), tree)


def structure(tree: Any) -> TreeSpec:
    """The tree without its leaves."""
    return pytree.tree_structure(tree)


def rebuild(leaves: Iterable[Any], spec: TreeSpec) -> Any:
    """A tree of the given structure over new leaves."""
    return pytree.tree_unflatten(leaves, spec)


def in_field_order(tree: Any) -> Any:
    """Outputs whose fields stand as their class declares them, where the model filled one in later.

    `ModelOutput` is taken apart in the order of filling and put together in that of declaring, so that each trace of a
    program would order its outputs anew.
    """
    if type(tree) in (list, tuple):
        return type(tree)(map(in_field_order, tree))
    if not containers.is_model_output(tree):
        return tree
    fields = {field.name: in_field_order(tree[field.name]) for field in dataclasses.fields(tree) if field.name in tree}
    if list(fields) == list(tree) and all(fields[name] is tree[name] for name in fields):
        return tree
    return type(tree)(**fields) if len(fields) == len(tree) else tree


def leaves(tree: Any) -> list[Any]:
    """Every leaf, None among them, in order."""
    return pytree.tree_leaves(tree)


def dumps(spec: TreeSpec) -> str:
    """A structure as JSON text."""
    return pytree.treespec_dumps(spec)


def loads(text: str) -> TreeSpec:
    """Inverse of `dumps`; the container classes must be registered."""
    return pytree.treespec_loads(text)


def register_found(cls: type) -> None:
    """Register a class that a file names. A `ModelOutput` has registered itself when its module was imported.

    Raises:
        TypeError: When it is neither a `ModelOutput` nor a class whose instances hold state.
    """
    from transformers.utils import ModelOutput

    if issubclass(cls, ModelOutput) or cls in _OURS or cls in pytree.BUILTIN_TYPES:
        return
    if not _may_hold_state(cls):
        raise TypeError(f"{containers.type_name(cls)} is not a container")
    register(cls)


def spec_tree(tree: Any, function: Callable[[str, Any], Any]) -> Any:
    """What `torch.export` takes as ``dynamic_shapes`` for ``tree``: dicts stay dicts, a container becomes a list."""
    return _spec_tree(tree, function, ())


def container_names_of(spec: TreeSpec) -> list[str]:
    """`type_name` of every class in a structure that torch does not know by itself, sorted."""
    found: set[str] = set()
    waiting = [spec]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children())
        if not node.is_leaf() and node.type is not None and node.type not in pytree.BUILTIN_TYPES:
            found.add(containers.type_name(node.type))
    return sorted(found)


def _spec_tree(tree: Any, function: Callable[[str, Any], Any], path: tuple[str, ...]) -> Any:
    if type(tree) in (dict,):
        return {key: _spec_tree(value, function, (*path, str(key))) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_spec_tree(value, function, (*path, str(i))) for i, value in enumerate(tree))
    if pytree.tree_is_leaf(tree):
        return function(".".join(path), tree)
    pairs, _ = pytree.tree_flatten_with_path(tree)
    return [function(".".join((*path, path_name(keys))), leaf) for keys, leaf in pairs]


def _types_in(tree: Any) -> Iterator[type]:
    """Container classes in a tree that torch does not know by itself."""
    if isinstance(tree, (torch.Tensor, torch.nn.Module, str, int, float, type(None))):
        return
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _types_in(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _types_in(value)
    cls = type(tree)
    known = cls in pytree.SUPPORTED_NODES or _may_hold_state(cls)
    if known and cls not in pytree.BUILTIN_TYPES and hasattr(tree, "__dict__"):
        yield cls


def _may_hold_state(cls: type) -> bool:
    from transformers import PreTrainedConfig
    from transformers.utils import ModelOutput

    excluded = (
        torch.nn.Module,
        torch.Tensor,
        torch.autograd.Function,
        torch.autograd.function.FunctionCtx,
        Exception,
        Enum,
        PreTrainedConfig,
        ModelOutput,
        dict,
        tuple,
        type,
    )
    return not issubclass(cls, excluded) and "__call__" not in vars(cls)


def _flatten(container: Any) -> tuple[list[Any], Context]:
    leaves, _, context = containers.flatten(container)
    return leaves, context


def _flatten_with_keys(container: Any) -> tuple[list[tuple[KeyEntry, Any]], Context]:
    leaves, names, context = containers.flatten(container)
    return [(MappingKey(name), leaf) for name, leaf in zip(names, leaves)], context


def _key_name(entry: KeyEntry) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)
