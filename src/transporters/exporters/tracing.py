# SPDX-License-Identifier: Apache-2.0
"""What is in force on the caller's model while a trace or an eager run is under way, and taken back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .run import ExportRun

#: Non-persistent buffers up to this many bytes are copied, so that an in-place update can be undone. RoPE tables and
#: position ids are a few KiB; nothing that a forward pass rewrites has been seen above 1 MiB.
_BUFFER_COPY_LIMIT = 1 << 20

_UNTRACEABLE_ATTENTION = ("flash", "flex", "paged")


@contextmanager
def preserved_state(model: torch.nn.Module) -> Iterator[None]:
    """Put back every attribute and small buffer that a forward pass sets, on each module and each configuration.

    Nothing is copied but non-persistent buffers up to 1 MiB; weights are only referenced.
    """
    modules = list(model.modules())
    standing = [(module, dict(module.__dict__), _contents(module)) for module in modules]
    configs = [(config, dict(config.__dict__)) for config in _configs(model)]
    contents = [
        (buffer, buffer.clone(), buffer._version)
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
        and name in module._non_persistent_buffers_set
        and buffer.device.type != "meta"
        and buffer.nbytes <= _BUFFER_COPY_LIMIT
    ]
    try:
        yield
    finally:
        for module, attributes, tables in standing:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for table, content in tables:
                table.clear()
                table.update(content)
        for config, attributes in configs:
            config.__dict__.clear()
            config.__dict__.update(attributes)
        with torch.no_grad():
            for buffer, before, version in contents:
                if buffer._version != version:
                    buffer.copy_(before)


@contextmanager
def seeded() -> Iterator[None]:
    """The same random numbers in every run, for models that draw some (a dropout that is always on, a random mask)."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        yield


@contextmanager
def traceable_attention(model: torch.nn.Module, run: ExportRun) -> Iterator[None]:
    """Run flash, flex and paged attention as ``sdpa``, which computes the same and can be traced."""
    swapped: list[tuple[Any, str, str]] = []
    owners = [(config, "_attn_implementation_internal") for config in _configs(model)]
    owners += [(module, "_attn_implementation") for module in model.modules()]
    for owner, attribute in owners:
        implementation = owner.__dict__.get(attribute)
        if isinstance(implementation, str) and any(word in implementation for word in _UNTRACEABLE_ATTENTION):
            swapped.append((owner, attribute, implementation))
            owner.__dict__[attribute] = "sdpa"
            run.note("info", type(model).__name__, f"attention {implementation!r} is traced as 'sdpa'")
    try:
        yield
    finally:
        for owner, attribute, implementation in swapped:
            owner.__dict__[attribute] = implementation


def _contents(module: torch.nn.Module) -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Every dict on a module (parameters, buffers, submodules, hooks, the model's own) with a shallow copy of it."""
    return [(value, dict(value)) for value in module.__dict__.values() if isinstance(value, dict)]


def _configs(model: torch.nn.Module) -> list[Any]:
    """Every distinct configuration object that a module of the model, or another configuration, holds."""
    from transformers import PreTrainedConfig

    found: dict[int, Any] = {}
    waiting = [module.__dict__.get("config") for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            waiting.extend(config.__dict__.values())
    return list(found.values())
