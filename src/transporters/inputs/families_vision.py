# SPDX-License-Identifier: Apache-2.0
"""Families of models that see, and of texts with more than one row per example: a few lines each."""

from __future__ import annotations

from typing import Any

import torch

from . import text, vision
from .request import VISION_PARTS, SampleRequest
from .samples import compose, register_sample


@register_sample("fuyu")
def _fuyu(request: SampleRequest) -> dict[str, Any]:
    """Patches take the places of tokens: ``pixel_values`` ``(batch, 24, channels · patch²)``."""
    pixels, _ = vision.patchified(request)
    return compose(request, given={"pixel_values": pixels.reshape(request.batch, -1, pixels.shape[-1])})


@register_sample("LukeForEntityClassification")
@register_sample("LukeForEntityPairClassification")
@register_sample("LukeForEntitySpanClassification")
def _luke(request: SampleRequest) -> dict[str, Any]:
    """Two entities and the positions of their mentions, filled up with -1: ``(batch, 2, mention length)``."""
    made = compose(request)
    length = int(request.find("max_mention_length", default=30))
    places = torch.full((request.batch, 2, length), -1)
    places[:, 0, :2] = torch.tensor([1, 2])
    places[:, 1, :2] = torch.tensor([3, 4])
    made["entity_ids"] = request.random_ints(1, int(request.find("entity_vocab_size")), request.batch, 2)
    made["entity_attention_mask"] = torch.ones_like(made["entity_ids"])
    made["entity_token_type_ids"] = torch.zeros_like(made["entity_ids"])
    made["entity_position_ids"] = places
    if request.takes("entity_start_positions"):
        made["entity_start_positions"] = torch.tensor([[1, 3]]).repeat(request.batch, 1)
        made["entity_end_positions"] = made["entity_start_positions"] + 1
    return made


@register_sample("rag")
def _rag(request: SampleRequest) -> dict[str, Any]:
    """A question with two retrieved documents: ``context_input_ids`` ``(batch · 2, length)`` and their scores."""
    made = compose(request)
    documents = int(request.config.n_docs)
    size = int(request.find("vocab_size", parts=("generator",)))
    ids = request.random_ints(size // 2, size - 1, request.batch * documents, text.DEFAULT_LENGTH)
    return {
        **made,
        "decoder_input_ids": request.random_ints(size // 2, size - 1, request.batch, text.DECODER_LENGTH),
        "context_input_ids": ids,
        "context_attention_mask": torch.ones_like(ids),
        "doc_scores": request.uniform(request.batch, documents),
    }


@register_sample("SplinterForPreTraining")
def _splinter(request: SampleRequest) -> dict[str, Any]:
    """Each row has a token that stands for a question."""
    made = compose(request)
    made["input_ids"][:, 2] = int(request.find("question_token_id"))
    return made


@register_sample("ViltForImagesAndTextClassification")
def _several_images(request: SampleRequest) -> dict[str, Any]:
    """As many images as the model compares: ``(batch, images, channels, height, width)``."""
    made = compose(request)
    height, width = vision.image_size(request)
    count, channels = int(request.find("num_images")), vision.image_channels(request)
    pixels = vision.picture(request, request.batch * count, channels, height, width)
    made.pop("pixel_mask", None)
    return {**made, "pixel_values": pixels.reshape(request.batch, count, channels, height, width)}


@register_sample("VisualBertForRegionToPhraseAlignment")
def _regions(request: SampleRequest) -> dict[str, Any]:
    """Features of regions, and the token that each phrase begins with."""
    made = compose(request)
    regions = 4
    features = request.uniform(request.batch, regions, int(request.find("visual_embedding_dim"))) * 2 - 1
    length = made["input_ids"].shape[1]
    return {
        **made,
        "attention_mask": torch.ones(request.batch, length, dtype=torch.int64),
        "visual_embeds": features,
        "visual_attention_mask": torch.ones(request.batch, regions, dtype=torch.int64),
        "region_to_phrase_position": torch.arange(length + regions).expand(request.batch, -1) % length,
    }


@register_sample("xclip_vision_model")
def _frames_as_rows(request: SampleRequest) -> dict[str, Any]:
    """Frames lie in the batch: ``(batch · frames, channels, height, width)``."""
    made = compose(request)
    return {"pixel_values": made["pixel_values"].flatten(0, 1)}


@register_sample("janus_vqgan")
def _square_of_codes(request: SampleRequest) -> dict[str, Any]:
    """An image that becomes a square of codes of the side that the config tells."""
    side = int(request.config.num_patches) * 2 ** (len(request.config.channel_multiplier) - 1)
    return {"pixel_values": vision.picture(request, request.batch, vision.image_channels(request), side, side)}


@register_sample("depth_pro")
def _four_scales(request: SampleRequest) -> dict[str, Any]:
    """An image whose smallest copy is still as big as a patch: ``(batch, 3, side, side)``."""
    side = int(request.config.patch_size / min(request.config.scaled_images_ratios))
    return {"pixel_values": vision.picture(request, request.batch, 3, side, side)}


@register_sample("inkling2")
@register_sample("inkling2_loop")
def _merged_patches(request: SampleRequest) -> dict[str, Any]:
    """Patches that are merged lie side by side, with the channels last: ``(tokens, side, side, channels)``."""
    merge = int(request.find("spatial_merge_size", parts=VISION_PARTS, default=1))
    side = int(request.find("patch_size", parts=VISION_PARTS)) * merge
    changes: dict[str, Any] = {
        "pixel_values": lambda pixels: pixels.reshape(-1, side, side, vision.image_channels(request)),
        "image_grid_thw": lambda grid: grid // torch.tensor([1, merge, merge]),
    }
    return compose(request, changes)


@register_sample("nemotron_h_omni")
def _grid_of_two(request: SampleRequest) -> dict[str, Any]:
    """Patches and each image's rows and columns of them: ``image_grid_hw`` ``(batch, 2)``."""
    pixels, grid = vision.patchified(request)
    return compose(request, given={"pixel_values": pixels, "image_grid_hw": grid[:, 1:]})


@register_sample("emu3")
def _whole_images(request: SampleRequest) -> dict[str, Any]:
    """Each image comes with its size: ``image_sizes`` ``(batch, 2)``."""
    height, width = vision.image_size(request)
    return compose(request, given={"image_sizes": torch.tensor([[height, width]] * request.batch)})


@register_sample("video_llama_3")
@register_sample("video_llama_3_vision")
def _merged_by_two(request: SampleRequest) -> dict[str, Any]:
    """By how much each image's patches are merged: ``(batch,)``."""
    merge = torch.full((request.batch,), 2, dtype=torch.int64)
    if request.takes("merge_sizes"):
        pixels, grid = vision.patchified(request)
        return {"pixel_values": pixels, "grid_thw": grid, "merge_sizes": torch.ones_like(merge)}
    return compose(request, given={"image_merge_sizes": merge})


@register_sample("flava")
def _flava(request: SampleRequest) -> dict[str, Any]:
    """Pre-training wants masked text beside the plain one, and the pixels that its codebook sees."""
    made = compose(request)
    if not request.takes("codebook_pixel_values"):
        return made
    size = int(request.find("image_size", parts=("image_codebook_config",), default=112))
    channels = int(request.find("input_channels", parts=("image_codebook_config",), default=3))
    pixels = vision.picture(request, request.batch, channels, size, size) / 2 + 0.5
    return {**made, "input_ids_masked": made["input_ids"].clone(), "codebook_pixel_values": pixels}


@register_sample("pp_ocrv5_mobile_rec")
@register_sample("pp_ocrv5_server_rec")
@register_sample("pp_ocrv6_small_rec")
@register_sample("pp_ocrv6_tiny_rec")
def _line_of_text(request: SampleRequest) -> dict[str, Any]:
    """The image of a line of text: ``(batch, 3, 48, 160)``, for a backbone that halves it once more 96 high."""
    height = 96 if request.config.model_type == "pp_ocrv5_mobile_rec" else 48
    return {"pixel_values": vision.picture(request, request.batch, 3, height, 160)}


@register_sample("perceiver")
def _perceiver(request: SampleRequest) -> dict[str, Any]:
    """``inputs`` are ids, an image, or the states that a bare model attends to, as the class's name says."""
    if "Image" in request.class_name:
        height, width = vision.image_size(request) if "Learned" in request.class_name else (224, 224)
        return {"inputs": vision.picture(request, request.batch, 3, height, width)}
    if "OpticalFlow" in request.class_name:
        size = request.config.train_size
        return {"inputs": request.uniform(request.batch, 2, 27, *size)}
    if request.class_name == "PerceiverModel":
        return {"inputs": request.uniform(request.batch, 7, int(request.config.d_model)) * 2 - 1}
    size = int(request.config.vocab_size)
    return {"inputs": request.random_ints(10, size, request.batch, int(request.config.max_position_embeddings))}


@register_sample("gemma4_vision")
def _patches_with_places(request: SampleRequest) -> dict[str, Any]:
    """Patches and the column and row of each: ``(batch, patches, 2)``."""
    pooling = int(request.find("pooling_kernel_size", parts=VISION_PARTS, default=1))
    side, patch = 2 * pooling, int(request.find("patch_size"))
    pixels = request.uniform(request.batch, side * side, 3 * patch * patch) * 2 - 1
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(-1)
    return {"pixel_values": pixels, "pixel_position_ids": places.expand(request.batch, -1, -1).clone()}


@register_sample("bridgetower_vision_model")
def _image_by_another_name(request: SampleRequest) -> dict[str, Any]:
    """``image`` ``(batch, channels, height, width)``."""
    return {
        "image": vision.picture(request, request.batch, vision.image_channels(request), *vision.image_size(request))
    }


@register_sample("granite_docling")
def _tiles(request: SampleRequest) -> dict[str, Any]:
    """One tile per row, which is a real one: ``(batch, 1, channels, height, width)``."""
    real = torch.ones(request.batch, 1, dtype=torch.bool)
    return compose(request, {"pixel_attention_mask": lambda mask: real})


@register_sample("inkling_mm_model")
@register_sample("inkling_vision")
def _clips_as_patches(request: SampleRequest) -> dict[str, Any]:
    """Each patch is a small clip with its channels last: ``(patches, time, patch, patch, channels)``."""
    patch = int(request.find("patch_size", parts=VISION_PARTS))
    time = int(request.find("temporal_patch_size", parts=VISION_PARTS))
    pixels = request.uniform(request.batch * 4, time, patch, patch, vision.image_channels(request)) * 2 - 1
    if not request.takes("input_ids"):
        return {"pixel_values": pixels}
    return compose(request, given={"pixel_values": pixels})


@register_sample("minicpm_ocr_vision")
@register_sample("minicpmv4_6_vision")
@register_sample("minicpmv4_7_vision")
def _strip_of_patches(request: SampleRequest) -> dict[str, Any]:
    """All patches in one strip, and each image's rows and columns of them: ``target_sizes`` ``(batch, 2)``."""
    patch, (rows, columns) = int(request.find("patch_size")), vision.GRID
    strip = vision.picture(request, 1, 3, patch, patch * rows * columns * request.batch)
    return {"pixel_values": strip, "target_sizes": torch.tensor([[rows, columns]] * request.batch)}


@register_sample("molmo2")
@register_sample("molmo2_vision")
def _pooled_patches(request: SampleRequest) -> dict[str, Any]:
    """Patches of one crop per row, and for each of its tokens the four patches that it pools."""
    count, patch = int(request.find("num_position_embeddings")), int(request.find("patch_size"))
    pixels = request.uniform(request.batch, count, vision.image_channels(request) * patch * patch) * 2 - 1
    if not request.takes("image_token_pooling"):
        return {"pixel_values": pixels} if request.takes("pixel_values") else compose(request)
    given = {
        "pixel_values": pixels,
        "image_token_pooling": torch.arange(request.batch * count).reshape(-1, 4),
        "image_grids": torch.tensor([[2, count // 8, 0, 0]] * request.batch),
    }
    return compose(request, given=given)


@register_sample("glm_image")
def _source_and_target(request: SampleRequest) -> dict[str, Any]:
    """One token per patch of the sources; the last grid is that of the image to come."""
    made = compose(request)
    if "input_ids" not in made or "image_grid_thw" not in made:
        return made
    ids, grid = made["input_ids"], made["image_grid_thw"]
    placeholders = (ids[0] == int(request.find("image_token_id"))).cumsum(0)
    kept = (placeholders <= int(grid[0].prod())) | (placeholders == placeholders.roll(1))
    made |= {name: value[:, kept] for name, value in made.items() if value.shape == ids.shape}
    return {**made, "image_grid_thw": torch.cat([grid, grid[-1:]])}


@register_sample("pi0")
def _robot(request: SampleRequest) -> dict[str, Any]:
    """A camera's image, an instruction, and the robot's state; the noise that actions are made from."""
    size, patch = vision.image_size(request), int(request.find("patch_size"))
    token = int(request.find("image_token_id", "image_token_index", parts=("vlm_config",)))
    words = torch.tensor([row.ids for row in text.text_rows(request, request.batch)])
    images = torch.full((request.batch, (size[0] // patch) * (size[1] // patch)), token)
    ids = torch.cat([images, words], dim=1)
    steps, actions = int(request.config.chunk_size), int(request.config.max_action_dim)
    made = {
        "state": request.uniform(request.batch, int(request.config.max_state_dim)),
        "noise": request.uniform(request.batch, steps, actions) * 2 - 1,
        "timestep": request.uniform(request.batch),
        "action_embeds": request.uniform(request.batch, steps, int(request.config.dit_config.hidden_size)) * 2 - 1,
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": vision.picture(request, request.batch, 3, *size).unsqueeze(1),
        "pixel_attention_mask": torch.ones(request.batch, 1, dtype=torch.bool),
    }
    return {name: value for name, value in made.items() if request.takes(name)}
