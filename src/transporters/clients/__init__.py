# SPDX-License-Identifier: Apache-2.0
"""Programs in the form in which a client expects them: its names, its files, its configuration. One file per client."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .base import Client

_CLIENTS = {
    "transformers.js": "transporters.clients.transformers_js:TransformersJs",
    "onnxruntime-genai": "transporters.clients.onnxruntime_genai:OnnxRuntimeGenai",
    "optimum": "transporters.clients.optimum:Optimum",
    "executorch": "transporters.clients.executorch_llm:ExecutorchLlm",
}


def names() -> tuple[str, ...]:
    """The clients that there are, in the order in which they are applied."""
    return tuple(_CLIENTS)


def find(wanted: Iterable[str], export_format: str) -> list[Client]:
    """Clients by name, each once.

    Args:
        wanted: Names out of `names`.
        export_format: The format of the export.

    Raises:
        UsageError: There is no such client, or it takes another format.
    """
    asked = set(wanted)
    for name in sorted(asked - set(_CLIENTS)):
        near = difflib.get_close_matches(name, _CLIENTS, n=1)
        raise UsageError(
            f"there is no client {name!r}",
            advice=f"did you mean {near[0]!r}?" if near else f"the clients are: {', '.join(_CLIENTS)}",
        )
    found = [_load(place) for name, place in _CLIENTS.items() if name in asked]
    for client in found:
        if client.export_format != export_format:
            raise UsageError(
                f"{client.name} runs {client.export_format}, not {export_format}",
                advice=f"export with --to {client.export_format}",
            )
    return found


def _load(place: str) -> Client:
    module, _, name = place.partition(":")
    client: Client = getattr(importlib.import_module(module), name)()
    return client
