# SPDX-License-Identifier: Apache-2.0
"""Exports a model that writes text: a causal one as one graph with its cache, an encoder and its decoder as two, and
one that reads pictures as three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError, UsageError
from ..exporters import auto
from ..exporters.tracing import preserved_state
from ..inputs.samples import sample_inputs
from ..trees import containers, pytrees
from .cache_contract import CROSS, TOKENS, CacheContract
from .decoder import PLAIN, Decoder, cache_contract, empty_state, named_refusal, nested, positions
from .encoder_decoder import CrossDecoder, Encoder, cross_contract, mask_of_states
from .multimodal import EMBEDDER, VISION, EmbedsDecoder, EmbedTokens, VisionEncoder, reads_pictures
from .multimodal_export import export_with_pictures
from .static_cross import CrossStates, StaticCrossDecoder, unfit_behind_encoder
from .static_cross_export import ENCODER, export_behind_encoder
from .static_decoder import StaticDecoder, static_contract, unfit

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel
    from ..exporters.base import Exporter
    from ..exporters.configs import ExportConfig

#: Cached and new tokens of the sample. They differ from each other and from the sizes that freeze.
_PAST, _NEW = 7, 3

#: The fewest encoder's states in the sample of a decoder, which has kept about half of them.
_ENCODED = 6

#: What of a model the program of a part is made from.
_PARTS: dict[str | None, Callable[[Any], Any]] = {ENCODER: Encoder, VISION: VisionEncoder, EMBEDDER: EmbedTokens}

#: Formats whose runtime keeps the cache inside of the program, for one text at a time.
INSIDE = frozenset({"executorch"})


def export_for_generation(
    exporter: Exporter,
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    config: ExportConfig | Mapping[str, Any] | None = None,
    *,
    observer: Callable[[Any], None] | None = None,
) -> ExportedModel:
    """The body of `Exporter.export_for_generation`, which says what it takes and raises."""
    if getattr(model, "training", False):
        raise InputError("the model is in training mode", advice="call model.eval() first")
    if (reason := not_yet(exporter.export_format, model)) is not None:
        raise UsageError(
            f"a decoder with its cache cannot be exported to {exporter.export_format} yet: {reason}",
            advice=f"the formats torch and onnx can; {PLAIN}",
        )

    def export(part: Any, sample: dict[str, Any], own: ExportConfig | None = None) -> ExportedModel:
        exported = exporter.export(part, sample, own or config, observer=observer)
        exported.model_class = containers.type_name(type(model))
        return exported

    decoder: Decoder | CrossDecoder | EmbedsDecoder
    has_encoder = getattr(model.config, "is_encoder_decoder", False)
    if has_encoder and exporter.export_format in INSIDE:
        settings = static_settings(exporter, config)
        exported, decoder = export_behind_encoder(model, _whole_sample(model, inputs), settings, export)
    elif has_encoder:
        sample = _whole_sample(model, inputs)
        encoder = Encoder(model)
        decoder = CrossDecoder(model, cross_contract(encoder, sample))
        encoded = export(encoder, encoder.inputs(sample))
        exported = export(decoder, cross_step_sample(encoder, decoder, sample))
        exported.parts = {ENCODER: encoded}
    elif reads_pictures(model):
        exported, decoder = export_with_pictures(model, inputs, export)
    elif exporter.export_format in INSIDE:
        context = static_settings(exporter, config).max_context
        decoder = StaticDecoder(model, static_contract(model, context))
        exported = export(decoder, static_sample(model, inputs))
    else:
        decoder = Decoder(model)
        exported = export(decoder, step_sample(decoder, inputs))
    if exported.parts:
        file_of = auto.runner_class(exporter.export_format).part_file
        exported.file = file_of("decoder")
        for name, part in exported.parts.items():
            part.part, part.file = name, file_of(name)
    exported.cache_contract = decoder.contract.to_dict()
    exported.generation_config = getattr(model, "generation_config", None)
    return exported


def not_yet(export_format: str, model: Any) -> str | None:
    """Why a model that writes text cannot be exported with its cache to a format yet, or None.

    Args:
        export_format: Name of the format.
        model: In evaluation mode.

    Raises:
        InputError: The model has no cache, or one of a kind that is not known.
    """
    if export_format not in INSIDE:
        return None
    if getattr(model.config, "is_encoder_decoder", False):
        sample = sample_inputs(model)
        return unfit_behind_encoder(model, sample, cross_contract(Encoder(model), sample))
    if reads_pictures(model):
        return f"{type(model).__name__} reads pictures"
    return unfit(model, cache_contract(model))


def static_settings(exporter: Exporter, config: ExportConfig | Mapping[str, Any] | None) -> Any:
    """The configuration of an export with the cache inside of the program.

    Raises:
        UsageError: It fixes the number of tokens, of which a text gives many at first and then one by one.
    """
    settings: Any = exporter._settings(config)
    if not settings.dynamic:
        raise UsageError("a decoder takes any number of new tokens, and dynamic=False fixes it", advice=PLAIN)
    return settings


def eager_part(model: Any, part: str | None, contract: dict[str, Any] | None, export_format: str) -> Any:
    """What of a model a program of an artifact was made from.

    Args:
        model: The whole model, or what this function gave for it.
        part: The program's name among its artifact's parts; None for the artifact's own.
        contract: Its cache contract, as the manifest has it.
        export_format: Its format.
    """
    if contract is None and part is None:
        return model
    whole = getattr(model, "of_model", model)
    if part == ENCODER and export_format in INSIDE:
        return CrossStates(whole)
    if part in _PARTS:
        return _PARTS[part](whole)
    found = CacheContract.from_dict(contract or {"layers": []})
    if found.pictures is not None:
        return EmbedsDecoder(whole, found)
    if found.context is not None:
        return StaticCrossDecoder(whole, found) if found.has_cross else StaticDecoder(whole, found)
    return CrossDecoder(whole, found) if found.has_cross else Decoder(whole, found)


def _whole_sample(model: Any, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Forward arguments of an encoder with a decoder: the caller's, and what is missing of them."""
    made = sample_inputs(model)
    if inputs is None:
        return made
    found = dict(inputs)
    rows = next((value.shape[0] for value in found.values() if isinstance(value, torch.Tensor)), 0)
    if not rows:
        raise InputError(
            "a text to generate from is given as what the encoder takes, a tensor with a row for each text",
            advice="pass dict(tokenizer(…, return_tensors='pt')), or no inputs at all",
        )
    if "decoder_input_ids" not in found:
        ids = made["decoder_input_ids"]
        found["decoder_input_ids"] = ids[torch.arange(rows, device=ids.device) % ids.shape[0]]
    if "attention_mask" in made and "input_ids" in found:
        found.setdefault("attention_mask", torch.ones_like(found["input_ids"]))
    return found


def cross_step_sample(encoder: Encoder, decoder: CrossDecoder, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a step in the middle of a text, ``input_ids`` ``(batch, 3)`` after 7 tokens, of which a part was kept.

    Half of the keys and values of the encoder's states are in the cache. No text gets there, but the program takes it,
    and neither number is one that a trace would freeze.

    Args:
        encoder: It computes the states.
        decoder: It computes the cache.
        sample: Forward arguments of the whole model.
    """
    given = encoder.inputs(sample)
    name = type(encoder.of_model).__name__
    with torch.no_grad(), preserved_state(encoder), named_refusal(name):
        states = encoder(**given)["last_hidden_state"]
    ids = sample["decoder_input_ids"]
    if states.ndim != 3 or ids.ndim != 2:
        raise InputError(f"the decoder of {name} writes no rows of ids from rows of states", advice=PLAIN)
    mask = mask_of_states(name, given, states.shape[1]) if decoder.takes_mask else None
    times = -(-_ENCODED // states.shape[1])
    fixed = {"encoder_attention_mask": mask.repeat(1, times)} if mask is not None else {}
    fixed["encoder_hidden_states"] = states.repeat(1, times, 1)
    ids = ids.repeat(1, (_PAST + _NEW) // ids.shape[1] + 1)[:, : _PAST + _NEW]
    empty = empty_state(decoder.contract, ids.shape[0], ids.device)
    with torch.no_grad(), preserved_state(decoder), named_refusal(name):
        leaves = dict(pytrees.named_leaves(decoder(ids[:, :_PAST], **fixed, **nested(empty))))
    state = {slot.name: leaves[slot.present] for slot in decoder.contract.slots}
    for slot in decoder.contract.slots:
        if CROSS in slot.shape:
            state[slot.name] = state[slot.name].narrow(TOKENS, 0, states.shape[1] * times // 2)
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    return {"input_ids": ids[:, _PAST:].clone(), **fixed, **nested(state)}


def step_sample(decoder: Decoder, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Inputs of a step in the middle of a text: ``input_ids`` ``(batch, 3)`` and the cache of 7 tokens before them.

    Args:
        decoder: It computes the cache.
        inputs: ``input_ids`` ``(batch, length)`` of the text; ordinary ids when None. A short text is repeated.

    Raises:
        InputError: When ``inputs`` hold no ``input_ids``.
    """
    ids = _text(decoder.of_model, inputs)
    state = _state_after(decoder, ids[:, :_PAST])
    mixed = any(layer.kind in ("full", "hybrid") for layer in decoder.contract.layers)
    for slot in decoder.contract.slots:
        if mixed and slot.window is not None:  # so that no axis of a window is taken for an axis of the text
            state[slot.name] = state[slot.name][:, :, max(0, _PAST - slot.window + 1) :].clone()
            assert state[slot.name].shape[TOKENS] == slot.sizes(1, _PAST)[TOKENS]
    step = _step(decoder, ids[:, _PAST:], ids.shape[1])
    return {**step, **nested(state)}


def static_sample(model: Any, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Inputs of a text's first step, ``tokens`` ``(1, 3)``: what is before them must have been written by the program.

    Args:
        model: Whose ids they are.
        inputs: As `step_sample` takes them.

    Raises:
        InputError: As `step_sample`.
    """
    ids = _text(model, inputs)
    return {"tokens": ids[:1, _PAST:].clone(), "input_pos": ids.new_zeros(1)}


def _text(model: Any, inputs: Mapping[str, Any] | None) -> torch.Tensor:
    """Ids ``(batch, 10)``."""
    given = dict(inputs) if inputs is not None else sample_inputs(model)
    ids = given.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or not ids.numel():
        raise InputError(
            "a text to generate from is given as input_ids of shape (batch, length)",
            advice="pass dict(tokenizer(…, return_tensors='pt')), or no inputs at all",
        )
    ids = ids.to(model.device)
    return ids.repeat(1, (_PAST + _NEW) // ids.shape[1] + 1)[:, : _PAST + _NEW]


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
