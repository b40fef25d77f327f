# SPDX-License-Identifier: Apache-2.0
"""One-line findings before the trace, from the model's configuration and two eager runs of the sample."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InputError
from ..trees import pytrees
from .prepare import Prepared
from .run import ExportRun

#: Kinds of RoPE scaling that compute other frequencies from a certain length on.
_SWITCHING_ROPE = ("dynamic", "longrope")


def preflight(prepared: Prepared, run: ExportRun) -> None:
    """Run eager twice on the sample, and note what will matter for the program.

    Raises:
        InputError: When the eager model itself fails on the sample.
    """
    try:
        first = prepared.eager(prepared.inputs)
    except Exception as error:
        text = " ".join(str(error).split())
        raise InputError(
            f"the model itself fails on the sample inputs: {type(error).__name__}: {text[:300]}",
            advice="call model(**sample_inputs) and correct the inputs until it runs",
        ) from error
    for name in _differing(first, prepared.eager(prepared.inputs)):
        run.note("warning", name, "differs between two eager runs of the same inputs, so no program can be equal to it")
    for where, kind, length in _switching_rope(getattr(prepared.model, "config", None)):
        run.note("info", where, f"RoPE scaling {kind!r} switches at {length} positions; the program holds both sides")


def _differing(first: Any, second: Any) -> list[str]:
    """Outputs that are random."""
    pairs = zip(pytrees.named_leaves(first), pytrees.named_leaves(second))
    return [
        name
        for (name, one), (_, other) in pairs
        if isinstance(one, torch.Tensor)
        and not (one.shape == other.shape and torch.allclose(one, other, equal_nan=True))
    ]


def _switching_rope(config: Any, path: str = "config") -> list[tuple[str, str, Any]]:
    """(path of the configuration, kind, length at which it switches) of every switching RoPE."""
    found = []
    parameters = getattr(config, "rope_parameters", None)
    for entry in (parameters, *parameters.values()) if isinstance(parameters, dict) else ():
        if isinstance(entry, dict) and entry.get("rope_type") in _SWITCHING_ROPE:
            length = entry.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", "?")
            found.append((path, entry["rope_type"], length))
    for name in getattr(config, "sub_configs", None) or {}:
        found.extend(_switching_rope(getattr(config, name, None), f"{path}.{name}"))
    return found
