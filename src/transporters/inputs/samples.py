# SPDX-License-Identifier: Apache-2.0
"""Sample inputs for a model, from its config and the signature of its ``forward``.

A sample is put together from parts, one per modality. A part looks at the names of ``forward``'s parameters and at the
config's attributes, never at the model's class, and gives the arguments that it can make, or nothing. What such rules
cannot say about a family of models is said in a few lines with :func:`register_sample`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from ..errors import InputError
from . import audio, multimodal, series, text, vision
from .request import SampleRequest

Recipe = Callable[[SampleRequest], dict[str, Any]]
_R = TypeVar("_R", bound=Recipe)

#: The parts in the order in which they are asked. A part sees what the earlier ones made: text comes after images and
#: audio, because it has a placeholder token for each of their features.
PARTS: tuple[Callable[[SampleRequest, dict[str, Any]], dict[str, Any]], ...] = (
    vision.patches,
    vision.videos,
    vision.images,
    vision.high_resolution,
    vision.masks,
    audio.waveforms,
    audio.spectrograms,
    series.history,
    multimodal.placeholders,
    text.tokens,
    text.table_types,
    text.boxes,
    text.decoder_tokens,
)

_RECIPES: dict[str, Recipe] = {}


def register_sample(name: str) -> Callable[[_R], _R]:
    """Register a recipe for a family of models.

    Args:
        name: A model type (``"musicgen"``) or the name of a model class (``"OwlViTForObjectDetection"``), which wins
            over the type. The recipe takes a :class:`~transporters.inputs.request.SampleRequest` and returns all of the
            sample inputs; :func:`compose` gives it what the general parts would make.

    Raises:
        ValueError: If the name already has a recipe.
    """

    def register(recipe: _R) -> _R:
        if name in _RECIPES:
            raise ValueError(f"{name!r} already has a sample recipe: {_RECIPES[name].__qualname__}")
        _RECIPES[name] = recipe
        return recipe

    return register


def sample_inputs(
    model: Any,
    *,
    tokenizer: Any | None = None,
    processor: Any | None = None,
    batch: int = 2,
    seed: int = 0,
    length: int | None = None,
) -> dict[str, Any]:
    """Valid, structured sample inputs for a model.

    Text is real sentences when there is a tokenizer (of different lengths, padded on the tokenizer's side), else ids
    that avoid every special token. Images are smooth gradients with shapes in them, audio is tones. Labels are never
    made.

    Args:
        model: A ``PreTrainedModel``.
        tokenizer: Its tokenizer, if there is one.
        processor: Its processor, image processor or feature extractor; tells image sizes and normalisation.
        batch: Number of rows.
        seed: Same seed, same sample.
        length: Number of text tokens in a row (rows are cut and padded to it); None: the longest sentence, or 7 tokens
            without a tokenizer. The size of images and audio follows the config.

    Returns:
        Forward arguments by name, in ``forward``'s order: ids and masks int64, floats in the model's dtype, all on the
        model's device.

    Raises:
        InputError: If an argument that the model needs cannot be made; it names the argument and says how to pass
            sample inputs by hand. Also if the tokenizer is another model's.
    """
    if batch < 1 or (length is not None and length < 1):
        raise InputError(f"A sample needs at least one row and one token (batch={batch}, length={length}).")
    for families in ("families", "families_audio", "families_vision"):
        importlib.import_module(f"{__package__}.{families}")  # registers the families' recipes

    request = SampleRequest(model, tokenizer, processor, batch, seed, length)
    recipe = _RECIPES.get(request.class_name) or _RECIPES.get(getattr(request.config, "model_type", ""))
    made = compose(request) if recipe is None else recipe(request)
    _check(request, made, needed=request.needs if recipe is None else request.requires)
    order = {name: place for place, name in enumerate(request.parameters)}
    return {name: _fit(made[name], request) for name in sorted(made, key=lambda name: order.get(name, len(order)))}


def compose(
    request: SampleRequest,
    reshape: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] | None = None,
    given: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What the general parts make of a request, on the CPU, floats in float32.

    Args:
        request: The model and the wishes.
        reshape: By argument, a change to make as soon as the argument is there, before later parts (which may run a
            piece of the model on it) see it.
        given: Arguments that are there before any part is asked.
    """
    changes = reshape or {}
    made: dict[str, Any] = dict(given or {})
    for part in PARTS:
        for name, value in part(request, made).items():
            made[name] = changes[name](value) if name in changes else value
    return {name: value for name, value in made.items() if name in request.parameters}


def _check(request: SampleRequest, made: dict[str, Any], needed: Callable[[str], bool]) -> None:
    """Every argument without a default must be there, and the main input too where no recipe knows better."""
    for name in request.parameters:
        if name in made or not needed(name):
            continue
        raise request.impossible(name, "neither its name nor the config tells what it is made of")
    if not made:
        raise request.impossible(request.main_inputs[0], "forward has no parameter of a name that is known")


def _fit(value: Any, request: SampleRequest) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return value.to(device=request.model.device, dtype=request.dtype)
    return value.to(device=request.model.device)
