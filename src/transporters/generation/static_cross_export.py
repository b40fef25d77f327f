# SPDX-License-Identifier: Apache-2.0
"""Exports an encoder with a decoder as `transporters.generation.static_cross` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..inputs import axes
from .cache_contract import TOKENS
from .static_cross import CrossStates, StaticCrossDecoder, static_cross_contract, static_cross_sample

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: Name of the part of an artifact that is the encoder's program.
ENCODER = "encoder"

#: Axis of the decoder's inputs that counts the encoder's states.
_ENCODED = "encoder_sequence"


def export_behind_encoder(
    model: Any, sample: Mapping[str, Any], settings: Any, export: Callable[..., ExportedModel]
) -> tuple[ExportedModel, StaticCrossDecoder]:
    """The decoder's program with the encoder's among its parts, and what it was made from.

    The encoder is for one text, as the decoder is. Memory of the decoder is planned for the most states that the
    encoder can give.

    Args:
        model: An encoder with a decoder, in evaluation mode.
        sample: Forward arguments of the whole model.
        settings: The export's configuration.
        export: Exports a part with its sample and its configuration.

    Raises:
        InputError: As `static_cross_contract` and `static_cross_sample`.
    """
    states = CrossStates(model)
    decoder = StaticCrossDecoder(model, static_cross_contract(model, sample, settings.max_context))
    given, step = states.inputs(sample), static_cross_sample(states, decoder, sample)
    bounds = settings.max_dims
    encoder = export(states, given, replace(_of_one_text(settings, given), max_dims=_without(bounds, step, given)))
    most = max(sizes[TOKENS] for sizes in encoder.runner.output_bounds().values())
    bounds = {_ENCODED: most, **_without(bounds, given, step)}
    planning = {"alloc_graph_input": False, **settings.memory_planning}
    exported = export(decoder, step, replace(settings, max_dims=bounds, memory_planning=planning))
    exported.parts = {ENCODER: encoder}
    return exported, decoder


def _of_one_text(settings: Any, given: Mapping[str, Any]) -> Any:
    """The configuration with the axes of the batch fixed."""
    shapes: dict[str, Any] = dict(settings.dynamic_shapes or {})
    for name, labels in axes.label_axes(given).items():
        if "batch" in labels:
            shapes[name] = {**shapes.get(name, {}), labels.index("batch"): "static"}
    return replace(settings, dynamic_shapes=shapes)


def _without(bounds: Mapping[str, int], other: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, int]:
    """The largest sizes without those of axes that only the other program has."""
    return {name: most for name, most in bounds.items() if name not in _names(other) - _names(own)}


def _names(inputs: Mapping[str, Any]) -> set[str]:
    """What the axes of a program's inputs may be called."""
    labels = axes.label_axes(inputs)
    return {name for of, found in labels.items() for at, label in enumerate(found) for name in (label, f"{of}.{at}")}
