# SPDX-License-Identifier: Apache-2.0
"""Families of models that the general rules cannot know: a few lines each."""

from __future__ import annotations

from typing import Any

import torch

from .request import VISION_PARTS, SampleRequest
from .samples import compose, register_sample


@register_sample("musicgen")
@register_sample("musicgen_melody")
@register_sample("musicgen_decoder")
@register_sample("musicgen_melody_decoder")
def _musicgen(request: SampleRequest) -> dict[str, Any]:
    """The decoder's ids have a row per codebook: ``(batch · codebooks, length)``."""
    made = compose(request)
    name = "decoder_input_ids" if request.takes("decoder_input_ids") else "input_ids"
    codebooks = int(request.find("num_codebooks", parts=("decoder",)))
    length = made[name].shape[-1]
    ids = request.random_ints(0, int(request.find("vocab_size", parts=("decoder",))), request.batch * codebooks, length)
    return {**made, name: ids}


@register_sample("oneformer")
def _oneformer(request: SampleRequest) -> dict[str, Any]:
    """The task is text of a fixed length: ``task_inputs`` ``(batch, task_seq_len)``."""
    length = int(request.find("task_seq_len"))
    return {**compose(request), "task_inputs": request.random_ints(1, 1000, request.batch, length)}


@register_sample("xmod")
def _xmod(request: SampleRequest) -> dict[str, Any]:
    """Without a default language, each row says in which one it is written: ``lang_ids`` ``(batch,)``."""
    made = compose(request)
    if request.find("default_language") is not None:
        return made
    return {**made, "lang_ids": torch.arange(request.batch) % len(request.find("languages"))}


@register_sample("mllama")
def _mllama(request: SampleRequest) -> dict[str, Any]:
    """One image per row, which fills the first of its tiles: ``(batch, 1, tiles, channels, height, width)``."""
    made = compose(request)
    if "pixel_values" not in made:
        return made
    tiles = int(request.find("max_num_tiles", parts=VISION_PARTS))
    pixels = made["pixel_values"][:, None, None] * (torch.arange(tiles) == 0).reshape(1, 1, tiles, 1, 1, 1)
    used = (torch.arange(tiles) == 0).long().expand(request.batch, 1, tiles).clone()
    made |= {
        "pixel_values": pixels,
        "aspect_ratio_ids": torch.ones(request.batch, 1, dtype=torch.int64),
        "aspect_ratio_mask": used,
    }
    if "input_ids" in made:
        made["cross_attention_mask"] = used.unsqueeze(1).repeat(1, made["input_ids"].shape[1], 1, 1)
    return made
