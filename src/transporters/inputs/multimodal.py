# SPDX-License-Identifier: Apache-2.0
"""Placeholder tokens: a text that stands around images or audio has one token for each of their features."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from .request import SampleRequest

_IMAGE_TOKENS = ("image_token_id", "image_token_index", "image_patch_id")
_AUDIO_TOKENS = ("audio_token_id", "audio_token_index")

#: Values of ``mm_token_type_ids``.
_IMAGE_KIND, _AUDIO_KIND = 1, 3


def placeholders(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """What the text part has to put into each row, under names that no model takes.

    ``placeholder_rows`` is a list of ids per row, ``placeholder_kinds`` maps a placeholder id to its value in
    ``mm_token_type_ids``. The number of features comes from the model itself: its ``get_image_features`` or
    ``get_audio_features`` is run once.
    """
    if not request.takes("input_ids"):
        return {}
    rows: list[list[int]] = [[] for _ in range(request.batch)]
    kinds: dict[int, int] = {}
    token = request.find(*_IMAGE_TOKENS)
    if isinstance(token, int) and "pixel_values" in made:
        _extend(rows, _image_runs(request, made, token))
        kinds[token] = _IMAGE_KIND
    token = request.find(*_AUDIO_TOKENS)
    audio = next((name for name in ("input_features", "input_values") if name in made), None)
    if isinstance(token, int) and audio is not None:
        _extend(rows, _audio_runs(request, made, token))
        kinds[token] = _AUDIO_KIND
    return {"placeholder_rows": rows, "placeholder_kinds": kinds} if kinds else {}


def feature_count(features: Any) -> int:
    """Number of feature vectors in what a ``get_…_features`` method returns.

    Args:
        features: A tensor ``(…, hidden)``, a list of such, or a model output that holds them as ``pooler_output`` or
            ``last_hidden_state``.
    """
    if isinstance(features, torch.Tensor):
        return features.numel() // features.shape[-1]
    for name in ("pooler_output", "last_hidden_state"):
        found = getattr(features, name, None)
        if found is not None:
            return feature_count(found)
    levels = getattr(features, "deepstack_features", None)
    if levels is not None:  # the same places at several depths, each behind its number
        return feature_count(levels[0][1])
    return sum(feature_count(part) for part in features)


def _image_runs(request: SampleRequest, made: dict[str, Any], token: int) -> list[list[int]]:
    total = count_features(request, "get_image_features", made)
    if total is None:
        total = request.batch * int(
            request.find("image_seq_length", "num_image_tokens", "mm_tokens_per_image", default=1)
        )
    start = request.find("vision_start_token_id", "boi_token_id", "image_start_token_id")
    end = request.find("vision_end_token_id", "eoi_token_id", "image_end_token_id")
    run = [token] * (total // request.batch)
    return [[*_ids(start), *run, *_ids(end)] for _ in range(request.batch)]


def _audio_runs(request: SampleRequest, made: dict[str, Any], token: int) -> list[list[int]]:
    total = count_features(request, "get_audio_features", made)
    start = request.find("audio_start_token_id", "boa_token_id", "audio_bos_token_id")
    end = request.find("audio_end_token_id", "eoa_token_id", "audio_eos_token_id")
    run = [token] * ((total or request.batch) // request.batch)
    return [[*_ids(start), *run, *_ids(end)] for _ in range(request.batch)]


def count_features(request: SampleRequest, method: str, made: dict[str, Any]) -> int | None:
    """Features of all rows together, from the model's own method; None when the model has no such method.

    Args:
        request: The model.
        method: ``get_image_features`` or ``get_audio_features``.
        made: What there is to call it with.

    Raises:
        InputError: If the method needs more, or refuses it.
    """
    # The inner model's method says what it takes; that of a model with a head only passes everything on.
    owners = (_inner(request.model, *path) for path in (("model",), (), ("vlm", "model"), ("vlm",)))
    call = next((found for owner in owners if (found := getattr(owner, method, None)) is not None), None)
    if call is None:
        return None
    taken = inspect.signature(call).parameters
    bundles = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    sounds = next((made[name] for name in ("input_values", "input_features") if name in made), None)
    if "padding_mask" in taken and "padding_mask" not in made and sounds is not None:
        made = {**made, "padding_mask": torch.ones(sounds.shape[0], sounds.shape[-1], dtype=torch.int64)}
    for name, parameter in taken.items():
        if name not in made and parameter.default is parameter.empty and parameter.kind not in bundles:
            raise request.impossible(name, f"{method} needs it, and nothing tells what it is made of")
    placed = {
        name: value.to(request.model.device, request.dtype if value.is_floating_point() else value.dtype)
        for name, value in made.items()
        if name in taken and isinstance(value, torch.Tensor)
    }
    try:
        with torch.no_grad():
            return feature_count(call(**placed))
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise request.impossible(next(iter(placed), method), f"{method} refuses it ({reason})") from error


def _inner(model: Any, *path: str) -> Any:
    for name in path:
        model = getattr(model, name, None)
    return model


def _extend(rows: list[list[int]], runs: Iterable[list[int]]) -> None:
    for row, run in zip(rows, runs):
        row.extend(run)


def _ids(token: Any) -> list[int]:
    return [token] if isinstance(token, int) else []
