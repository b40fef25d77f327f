# SPDX-License-Identifier: Apache-2.0
"""Exports a causal language model as one graph with its cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError, UsageError
from ..exporters.tracing import preserved_state
from ..inputs.samples import sample_inputs
from ..trees import containers, pytrees
from .cache_contract import TOKENS
from .decoder import Decoder, empty_state, named_refusal, nested, positions

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel
    from ..exporters.base import Exporter
    from ..exporters.configs import ExportConfig

#: Cached and new tokens of the sample. They differ from each other and from the sizes that freeze.
_PAST, _NEW = 7, 3

#: Formats whose runtime cannot pass a cache from one step to the next yet.
NOT_YET = frozenset({"executorch"})


def export_for_generation(
    exporter: Exporter,
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    config: ExportConfig | Mapping[str, Any] | None = None,
    *,
    observer: Callable[[Any], None] | None = None,
) -> ExportedModel:
    """The body of `Exporter.export_for_generation`, which says what it takes and raises."""
    if exporter.export_format in NOT_YET:
        raise UsageError(
            f"a decoder with its cache cannot be exported to {exporter.export_format} yet",
            advice="the formats torch and onnx can",
        )
    if getattr(model, "training", False):
        raise InputError("the model is in training mode", advice="call model.eval() first")
    decoder = Decoder(model)
    exported = exporter.export(decoder, step_sample(decoder, inputs), config, observer=observer)
    exported.model_class = containers.type_name(type(model))
    exported.cache_contract = decoder.contract.to_dict()
    exported.generation_config = getattr(model, "generation_config", None)
    return exported


def step_sample(decoder: Decoder, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Inputs of a step in the middle of a text: ``input_ids`` ``(batch, 3)`` and the cache of 7 tokens before them.

    Args:
        decoder: It computes the cache.
        inputs: ``input_ids`` ``(batch, length)`` of the text; ordinary ids when None. A short text is repeated.

    Raises:
        InputError: When ``inputs`` hold no ``input_ids``.
    """
    model = decoder.of_model
    given = dict(inputs) if inputs is not None else sample_inputs(model)
    ids = given.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or not ids.numel():
        raise InputError(
            "a text to generate from is given as input_ids of shape (batch, length)",
            advice="pass dict(tokenizer(…, return_tensors='pt')), or no inputs at all",
        )
    ids = ids.to(model.device)
    ids = ids.repeat(1, (_PAST + _NEW) // ids.shape[1] + 1)[:, : _PAST + _NEW]
    state = _state_after(decoder, ids[:, :_PAST])
    mixed = any(layer.kind in ("full", "hybrid") for layer in decoder.contract.layers)
    for slot in decoder.contract.slots:
        if mixed and slot.window is not None:  # so that no axis of a window is taken for an axis of the text
            state[slot.name] = state[slot.name][:, :, max(0, _PAST - slot.window + 1) :].clone()
            assert state[slot.name].shape[TOKENS] == slot.sizes(1, _PAST)[TOKENS]
    step = _step(decoder, ids[:, _PAST:], ids.shape[1])
    return {**step, **nested(state)}


def _step(decoder: Decoder, ids: torch.Tensor, total: int) -> dict[str, Any]:
    mask = ids.new_ones(ids.shape[0], total)
    found = {"input_ids": ids.clone(), "attention_mask": mask}
    if decoder.takes_positions:
        found["position_ids"] = positions(mask, ids.shape[1]).contiguous()
    return found


def _state_after(decoder: Decoder, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The cache after a text ``(batch, length)``, by eager, one token at a time."""
    state = empty_state(decoder.contract, ids.shape[0], ids.device)
    for place in range(ids.shape[1]):
        with torch.no_grad(), preserved_state(decoder), named_refusal(type(decoder.of_model).__name__):
            outputs = decoder(**_step(decoder, ids[:, place : place + 1], place + 1), **nested(state))
        leaves = dict(pytrees.named_leaves(outputs))
        state = {slot.name: leaves[slot.present].contiguous() for slot in decoder.contract.slots}
    return state
