# SPDX-License-Identifier: Apache-2.0
"""Exports a model that reads pictures as three programs: the vision encoder, the embeddings, and the decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError
from ..exporters.tracing import preserved_state
from ..inputs.samples import sample_inputs
from ..trees import pytrees
from .cache_contract import TOKENS
from .decoder import empty_state, named_refusal, nested, positions
from .multimodal import EMBEDDER, VISION, EmbedsDecoder, EmbedTokens, VisionEncoder
from .multimodal_contract import picture_contract

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: Cached and new tokens of the sample, as `transporters.generation.export` has them.
_PAST, _NEW = 7, 3

#: Place of the sample's picture in its text, for decoders that ask: seen in part, and in part new.
_PICTURE = slice(5, 9)


def export_with_pictures(
    model: Any, inputs: Mapping[str, Any] | None, export: Callable[[Any, dict[str, Any]], ExportedModel]
) -> tuple[ExportedModel, EmbedsDecoder]:
    """The decoder's program with the others among its parts, and what it was made from.

    Args:
        model: A model that reads pictures, in evaluation mode.
        inputs: Forward arguments with a picture in each row, as the model's processor makes them; made when None.
        export: Exports a part with its sample.

    Raises:
        InputError: As `picture_contract`, or the inputs have no picture.
    """
    sample = _sample(model, inputs)
    decoder = EmbedsDecoder(model, picture_contract(model, sample))
    step = embeds_step_sample(decoder, sample)
    decoder.narrow_to(step)
    vision = VisionEncoder(model, sample)
    parts = {
        VISION: export(vision, vision.inputs(sample)),
        EMBEDDER: export(EmbedTokens(model), {"input_ids": sample["input_ids"]}),
    }
    exported = export(decoder, step)
    exported.parts = parts
    return exported, decoder


def _sample(model: Any, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(inputs) if inputs is not None else sample_inputs(model)
    ids = found.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or not VisionEncoder(model).inputs(found):
        raise InputError(
            f"{type(model).__name__} reads pictures, and the sample has no text with a picture in it",
            advice="pass dict(processor(text=…, images=…, return_tensors='pt')), or no inputs at all",
        )
    found = {n: value.to(model.device) if isinstance(value, torch.Tensor) else value for n, value in found.items()}
    found.setdefault("attention_mask", torch.ones_like(found["input_ids"]))
    return found


def coordinates(model: Any, ids: torch.Tensor) -> int:
    """Numbers that say a token's position: 0 for one number without an axis of its own.

    The first of four is the place in the text, which no layer reads.
    """
    with torch.no_grad(), preserved_state(model), named_refusal(type(model).__name__):
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        found = model._prepare_position_ids_for_generation(ids, given)
    return 0 if found.ndim == 2 else min(3, found.shape[0])


def embeds_step_sample(decoder: EmbedsDecoder, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a step in the middle of a text: ``inputs_embeds`` ``(batch, 3, hidden)``, and the cache of 7 tokens.

    Args:
        decoder: It computes the cache.
        sample: Forward arguments of the whole model.
    """
    model = decoder.of_model
    ids = sample["input_ids"]
    ids = ids.repeat(1, (_PAST + _NEW) // ids.shape[1] + 1)[:, : _PAST + _NEW]
    axes = coordinates(model, ids)
    with torch.no_grad(), preserved_state(model), named_refusal(type(model).__name__):
        embeds = EmbedTokens(model)(ids)["inputs_embeds"]
    state = empty_state(decoder.contract, ids.shape[0], ids.device)
    for place in range(_PAST):
        step = _step(decoder, embeds[:, : place + 1], 1, axes)
        with torch.no_grad(), preserved_state(decoder), named_refusal(type(model).__name__):
            leaves = dict(pytrees.named_leaves(decoder(**step, **nested(state))))
        state = {slot.name: leaves[slot.present].contiguous() for slot in decoder.contract.slots}
    mixed = any(layer.kind in ("full", "hybrid") for layer in decoder.contract.layers)
    for slot in decoder.contract.slots:
        if mixed and slot.window is not None:  # so that no axis of a window is taken for an axis of the text
            state[slot.name] = state[slot.name][:, :, max(0, _PAST - slot.window + 1) :].clone()
            assert state[slot.name].shape[TOKENS] == slot.sizes(1, _PAST)[TOKENS]
    return {**_step(decoder, embeds, _NEW, axes), **nested(state)}


def _step(decoder: EmbedsDecoder, embeds: torch.Tensor, new: int, axes: int) -> dict[str, Any]:
    """Inputs of the last ``new`` tokens of a text of embeddings ``(batch, length, hidden)``, but for the cache."""
    batch, total = embeds.shape[:2]
    mask = torch.ones(batch, total, dtype=torch.int64, device=embeds.device)
    found: dict[str, Any] = {"inputs_embeds": embeds[:, total - new :].clone(), "attention_mask": mask}
    if decoder.takes_positions:
        places = positions(mask, new)
        # Other numbers along each axis, so that none can be mistaken for another.
        found["position_ids"] = torch.stack([places + axis for axis in range(axes)]) if axes else places.contiguous()
    pictures = decoder.pictures
    if pictures.types is not None:
        types = torch.zeros_like(mask)
        types[:, _PICTURE] = 1
        found[pictures.types] = types
    if pictures.inner is not None:
        # Of the size of embeddings, and of other values in each layer.
        found[pictures.inner] = {str(at): found["inputs_embeds"].roll(at + 1, -1) for at in range(pictures.layers)}
    return found
