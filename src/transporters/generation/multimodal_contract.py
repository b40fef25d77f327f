# SPDX-License-Identifier: Apache-2.0
"""What a decoder gets of pictures, found by running the model: with pictures, and from embeddings alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..errors import InputError
from ..exporters.tracing import preserved_state
from ..trees import pytrees
from .cache_contract import CacheContract, Pictures
from .decoder import PLAIN, cache_contract, named_refusal
from .multimodal import INNER, EmbedTokens, VisionEncoder, picture_token

#: Arguments that say of each token whether it is of a picture.
_TYPES = ("token_type_ids", "mm_token_type_ids")

#: What a text model gets in any case, and is not compared: the positions are an input of the decoder's graph.
_COMMON = frozenset({"cache", "input_ids", "position_ids"})

#: Two ways to compute the same embeddings may differ by this share of the largest.
_CLOSE = 1e-3


def picture_contract(model: Any, sample: Mapping[str, Any]) -> CacheContract:
    """Run the model and read off what each layer keeps, and what the text model gets of pictures.

    Args:
        model: A model that reads pictures, in evaluation mode.
        sample: Its forward arguments, with a picture in each row.

    Raises:
        InputError: The model has no cache of a known kind, or does more with a picture than what the graphs can have.
    """
    name, token = type(model).__name__, picture_token(model.config)
    assert token is not None, "`reads_pictures` says so"
    contract = cache_contract(model)
    vision = VisionEncoder(model)
    with torch.no_grad(), preserved_state(model), named_refusal(name):
        found = vision(**vision.inputs(sample))
        embeds = EmbedTokens(model)(sample["input_ids"])["inputs_embeds"]
    places = sample["input_ids"] == token
    mask = sample.get("attention_mask")
    mask = mask if mask is not None else torch.ones_like(sample["input_ids"])
    merged = among(embeds, places, found["image_features"])
    whole = _text_arguments(model, **sample)
    if not _are_close(whole.get("inputs_embeds"), merged):
        raise InputError(
            f"{name} puts the features of a picture into its text in a way of its own, not into the places of the "
            f"token {token} alone",
            advice=PLAIN,
        )
    alone = _text_arguments(model, inputs_embeds=merged, attention_mask=mask)
    types = next((at for at in _TYPES if _reads_types(model, at, merged, mask, places)), None)
    inner = found.get(INNER) or {}
    pictures = Pictures(token, types, *_further(name, whole, alone, places, inner), len(inner))
    return replace(contract, pictures=pictures)


def among(embeds: torch.Tensor, places: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Embeddings ``(batch, length, hidden)`` with features ``(features, hidden)`` in the places ``(batch, length)``.

    Raises:
        InputError: There are more or fewer features than places.
    """
    count = int(places.sum())
    if count != features.shape[0]:
        raise InputError(
            f"the text has {count} tokens for features of pictures, and the pictures have {features.shape[0]} features",
            advice="let the model's processor make the text for its pictures; after a cache give only what is new",
        )
    found = embeds.clone()
    found[places] = features.to(embeds.dtype)
    return found


def _further(
    name: str, whole: Mapping[str, Any], alone: Mapping[str, Any], places: torch.Tensor, inner: Mapping[str, Any]
) -> tuple[str | None, str | None]:
    """The text model's arguments for features of inner layers, and for their places."""
    of_inner: str | None = None
    of_places: str | None = None
    for argument in whole:
        if argument in _COMMON | {"inputs_embeds", "attention_mask"}:
            continue
        tensors, others = _tensors(whole[argument]), _tensors(alone.get(argument))
        if _are_equal(tensors, others):
            continue
        if _are_equal(tensors, {"": places}):
            of_places = argument
        elif _are_equal(tensors, inner):
            of_inner = argument
        else:
            raise InputError(
                f"the text model of {name} takes {argument}, which is computed from more than the embeddings",
                advice=PLAIN,
            )
    if (of_inner is None) != (of_places is None):
        raise InputError(f"the text model of {name} takes {of_inner or of_places} alone, in no known way", advice=PLAIN)
    return of_inner, of_places


def _reads_types(model: Any, argument: str, merged: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> bool:
    """Whether the text model gets something else when tokens are said to be of pictures."""
    if argument not in inspect.signature(type(model).forward).parameters:
        return False
    none, some = (
        _text_arguments(model, inputs_embeds=merged, attention_mask=mask, **{argument: types})
        for types in (torch.zeros_like(mask), places.to(mask.dtype))
    )
    return any(not _are_equal(_tensors(none.get(at)), _tensors(some.get(at))) for at in some if at not in _COMMON)


def _text_arguments(model: Any, **given: Any) -> dict[str, Any]:
    """What the model hands to its text model for these arguments of its own."""
    found: list[dict[str, Any]] = []
    handle = model.get_decoder().register_forward_pre_hook(lambda _, __, given: found.append(given), with_kwargs=True)
    try:
        with torch.no_grad(), preserved_state(model), named_refusal(type(model).__name__):
            model(**given)
    finally:
        handle.remove()
    return found[0] if found else {}


def _tensors(value: Any) -> dict[str, torch.Tensor]:
    return {name: leaf for name, leaf in pytrees.named_leaves(value) if isinstance(leaf, torch.Tensor)}


def _are_equal(some: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> bool:
    if some.keys() != others.keys():
        return False
    return all(a.shape == others[name].shape and bool((a == others[name]).all()) for name, a in some.items())


def _are_close(found: Any, expected: torch.Tensor) -> bool:
    if not isinstance(found, torch.Tensor) or found.shape != expected.shape:
        return False
    return float((found - expected).abs().max()) <= _CLOSE * float(expected.abs().max())
