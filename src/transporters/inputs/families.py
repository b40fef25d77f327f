# SPDX-License-Identifier: Apache-2.0
"""Families of models that the general rules cannot know: a few lines each."""

from __future__ import annotations

import math
from typing import Any

import torch

from . import audio, text, vision
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
    """Without a default language, each row says in which one it is written: ``lang_ids`` ``(batch,)``.

    Multiple choice repeats them for every row, so there it is one language for all.
    """
    made = compose(request)
    if request.find("default_language") is not None:
        return made
    rows = 1 if made["input_ids"].ndim == 3 else request.batch
    return {**made, "lang_ids": torch.arange(rows) % len(request.find("languages"))}


@register_sample("mllama")
@register_sample("mllama_vision_model")
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


@register_sample("idefics")
def _idefics(request: SampleRequest) -> dict[str, Any]:
    """One image per row, which every token sees: ``image_attention_mask`` ``(batch, length, 1)``."""
    made = compose(request)
    seen = torch.ones(*made["input_ids"].shape, 1, dtype=torch.int64)
    return {**made, "pixel_values": made["pixel_values"].unsqueeze(1), "image_attention_mask": seen}


@register_sample("kosmos-2")
def _kosmos2(request: SampleRequest) -> dict[str, Any]:
    """The image's features stand where ``image_embeds_position_mask`` ``(batch, length)`` is 1."""
    made = compose(request)
    if not request.takes("image_embeds_position_mask"):
        return made
    features = int(request.find("latent_query_num"))
    filler = text.ordinary_ids(request)[:1].expand(request.batch, features)
    ids = torch.cat([made["input_ids"][:, :1], filler, made["input_ids"][:, 1:]], dim=1)
    place = torch.zeros_like(ids)
    place[:, 1 : 1 + features] = 1
    return {**made, "input_ids": ids, "attention_mask": torch.ones_like(ids), "image_embeds_position_mask": place}


@register_sample("LongformerForQuestionAnswering")
@register_sample("LongformerForMultipleChoice")
def _longformer(request: SampleRequest) -> dict[str, Any]:
    """A question and its context, with the three separators that the model looks for."""
    made = compose(request)
    separator = int(request.find("sep_token_id"))
    ids = made["input_ids"].masked_fill(made["input_ids"] == separator, int(text.ordinary_ids(request)[0]))
    for place in (ids.shape[-1] // 3, ids.shape[-1] // 3 + 1, ids.shape[-1] - 1):
        ids[..., place] = separator
    return {**made, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


@register_sample("instructblip")
@register_sample("instructblipvideo")
def _instructblip(request: SampleRequest) -> dict[str, Any]:
    """The instruction goes to the query transformer as well. The video kind takes frames."""
    frames = {"pixel_values": lambda pixels: pixels.unsqueeze(1).repeat(1, vision.DEFAULT_FRAMES, 1, 1, 1)}
    size = int(request.find("vocab_size", parts=("qformer_config",)))
    ids = request.random_ints(size // 2, size, request.batch, text.DEFAULT_LENGTH)
    instruction = {"qformer_input_ids": ids, "qformer_attention_mask": torch.ones_like(ids)}
    return compose(request, frames if request.config.model_type.endswith("video") else None, instruction)


@register_sample("pix2struct")
@register_sample("kosmos_2_5_vision_model")
def _pix2struct(request: SampleRequest) -> dict[str, Any]:
    """Patches behind their row and column, counted from 1: ``(batch, patches, 2 + channels · patch²)``."""
    if not request.takes("flattened_patches"):
        return compose(request)
    features = request.find("patch_embed_hidden_size", parts=VISION_PARTS)
    side = None if features is None else math.isqrt(int(features) // vision.image_channels(request))
    pixels, grid = vision.patchified(request, side)
    rows, columns = grid[0, 1:].tolist()
    places = torch.cartesian_prod(torch.arange(1, rows + 1), torch.arange(1, columns + 1)).float()
    patches = torch.cat([places.expand(request.batch, -1, -1), pixels.reshape(request.batch, rows * columns, -1)], -1)
    mask = torch.ones(request.batch, rows * columns, dtype=torch.int64)
    made = {"flattened_patches": patches, "attention_mask": mask, **text.decoder_tokens(request, {})}
    return {name: value for name, value in made.items() if request.takes(name)}


@register_sample("speech-encoder-decoder")
def _speech_encoder_decoder(request: SampleRequest) -> dict[str, Any]:
    """What the encoder takes, under the name that the pair has for it, and the decoder's ids."""
    encoder = SampleRequest(request.model.encoder, None, request.processor, request.batch, request.seed)
    heard = {name: value for name, value in compose(encoder).items() if request.takes(name)}
    heard["inputs"] = heard.pop(encoder.main_inputs[0])
    return {**heard, **text.decoder_tokens(request, heard)}


@register_sample("kimi_k25")
@register_sample("kimi_k25_vision")
@register_sample("paddleocr_vl")
def _square_patches(request: SampleRequest) -> dict[str, Any]:
    """Patches keep their shape: ``(patches, channels, patch, patch)``."""
    patch = int(request.find("patch_size", parts=VISION_PARTS))
    return compose(request, {"pixel_values": lambda pixels: pixels.reshape(len(pixels), -1, patch, patch)})


@register_sample("neucodec")
@register_sample("vibevoice_acoustic_tokenizer")
@register_sample("xcodec")
@register_sample("omniasr")
@register_sample("omniasr_ctc")
def _waveform_with_channel(request: SampleRequest) -> dict[str, Any]:
    """The waveform has an axis for its one channel: ``(batch, 1, samples)``."""
    return compose(request, {"input_values": lambda tones: tones.reshape(request.batch, 1, -1)})


@register_sample("colmodernvbert")
def _list_of_images(request: SampleRequest) -> dict[str, Any]:
    """One image per row: ``(batch, 1, channels, height, width)``."""
    return compose(request, {"pixel_values": lambda pixels: pixels.unsqueeze(1)})


@register_sample("BlipForQuestionAnswering")
def _blip_answers(request: SampleRequest) -> dict[str, Any]:
    """The question goes to the encoder, the answer's first tokens to a decoder that the config does not tell of."""
    return {**compose(request), "decoder_input_ids": text.first_tokens(request)}


@register_sample("EfficientLoFTRModel")
def _image_pair(request: SampleRequest) -> dict[str, Any]:
    """Two images of one scene: ``(batch, 2, channels, height, width)``."""
    height, width = vision.image_size(request)
    channels = vision.image_channels(request)
    pair = vision.picture(request, request.batch * 2, channels, height, width)
    return {"pixel_values": pair.reshape(request.batch, 2, channels, height, width)}


@register_sample("lxmert")
def _lxmert(request: SampleRequest) -> dict[str, Any]:
    """Features of six regions, ``(batch, 6, features)``, and their boxes, ``(batch, 6, 4)``, in 0 … 1."""
    regions = (request.batch, 6)
    corner = request.uniform(*regions, 2) / 2
    boxes = torch.cat([corner, corner + request.uniform(*regions, 2) / 2], dim=-1)
    features = request.uniform(*regions, int(request.find("visual_feat_dim"))) * 2 - 1
    return {**compose(request), "visual_feats": features, "visual_pos": boxes}


@register_sample("seggpt")
def _seggpt(request: SampleRequest) -> dict[str, Any]:
    """An image, and an example of another image with its mask; the model stacks them to its image size."""
    height, width = vision.image_size(request)
    size = (vision.image_channels(request), height // 2, width)
    names = ("pixel_values", "prompt_pixel_values", "prompt_masks")
    return {name: vision.picture(request, request.batch, *size) for name in names}


@register_sample("colqwen2")
def _patches_per_row(request: SampleRequest) -> dict[str, Any]:
    """Patches with an axis for the batch: ``(batch, patches, features)``."""
    made = compose(request)
    pixels = made["pixel_values"]
    return {**made, "pixel_values": pixels.reshape(request.batch, -1, pixels.shape[-1])}


@register_sample("SpeechT5ForTextToSpeech")
def _speecht5_voice(request: SampleRequest) -> dict[str, Any]:
    """Text, and the first frames of the speech: ``decoder_input_values`` ``(batch, 5, mel bins)``."""
    mels = int(request.find("num_mel_bins"))
    frames = audio.spectrogram(request, request.batch, text.DECODER_LENGTH, mels)
    return {**compose(request), "decoder_input_values": frames}
