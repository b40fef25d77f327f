# SPDX-License-Identifier: Apache-2.0
"""Images and videos: smooth gradients with a disc and a bar in them, at the size that the config tells."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .request import VISION_PARTS, SampleRequest

#: Height and width where the config fixes none: not square, so that a swap of the two shows.
FREE_SIZE = (64, 96)

#: Patches per image (height, width) before merging, for models that take patches with a grid.
GRID = (4, 6)

#: Frames of a video where the config tells none.
DEFAULT_FRAMES = 4

_SIZES = ("image_size", "img_size", "input_resolution", "image_resolution", "crop_size", "input_size", "max_img_size")
_PATCH_NAMES = (("pixel_values", "image_grid_thw"), ("pixel_values", "grid_thw"), ("hidden_states", "grid_thw"))
_FRAMES = ("num_frames", "frames_per_clip", "num_image_with_embedding")
_CHANNELS = ("num_channels", "in_channels", "in_chans", "n_channels")


def images(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``pixel_values`` ``(batch, channels, height, width)`` float.

    A model that looks for a video's frames there gets ``(batch, frames, channels, height, width)``, one that takes a
    list of images per row gets one image: ``(batch, 1, channels, height, width)``, one that matches images gets two.
    """
    if "pixel_values" in made or not _wanted(request, "pixel_values"):
        return {}
    height, width = image_size(request)
    channels = image_channels(request)
    if request.class_name.endswith("ForKeypointMatching"):
        pair = picture(request, request.batch * 2, channels, height, width)
        return {"pixel_values": pair.reshape(request.batch, 2, channels, height, width)}
    frames = _frames(request)
    if frames is not None:
        clip = moving_picture(request, request.batch, frames, channels, height, width)
        return {"pixel_values": clip}
    pinpoints = request.find("image_grid_pinpoints")
    if pinpoints and request.takes("image_sizes"):
        return _tiled(request, pinpoints, channels, height, width)
    pixels = picture(request, request.batch, channels, height, width)
    if _crops_by_size(request):
        sizes = torch.tensor([[height, width]] * request.batch, dtype=torch.int64)
        return {"pixel_values": pixels, "image_sizes": sizes}
    if request.takes("pixel_attention_mask"):
        mask = torch.ones(request.batch, 1, height, width, dtype=torch.int64)
        return {"pixel_values": pixels.unsqueeze(1), "pixel_attention_mask": mask}
    return {"pixel_values": pixels}


def high_resolution(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``high_res_pixel_values``: the same images once more, at the size of a second vision part."""
    if "pixel_values" not in made or not request.takes("high_res_pixel_values"):
        return {}
    size = _pair(request.find(*_SIZES, parts=("high_res_vision_config",))) or FREE_SIZE
    return {"high_res_pixel_values": torch.nn.functional.interpolate(made["pixel_values"], size, mode="bilinear")}


def masks(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``pixel_mask`` ``(batch, height, width)`` int64 and ``bool_masked_pos`` ``(batch, patches)`` bool.

    As in a batch of images of different sizes, the first image is whole; the others are cut at the right and at the
    bottom, where ``pixel_values`` is set to zero.
    """
    pixels = made.get("pixel_values")
    if pixels is None or pixels.ndim < 4:
        return {}
    found: dict[str, Any] = {}
    if request.takes("pixel_mask") and pixels.ndim == 4:
        mask = torch.ones(pixels.shape[0], *pixels.shape[-2:], dtype=torch.int64)
        mask[1:, pixels.shape[-2] // 2 :] = 0  # deep enough to show in a map that is 32 times smaller
        mask[1:, :, pixels.shape[-1] - pixels.shape[-1] // 3 :] = 0
        found = {"pixel_mask": mask, "pixel_values": pixels * mask.unsqueeze(1)}
    if request.takes("bool_masked_pos") and _predicts_patches(request):
        count = _patch_count(request, pixels)
        found["bool_masked_pos"] = (torch.arange(count) % 3 == 0).expand(pixels.shape[0], -1).clone()
    return found


def videos(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``pixel_values_videos`` ``(batch, frames, channels, height, width)`` for models whose main input it is."""
    if not request.needs("pixel_values_videos") or request.takes("pixel_values"):
        return {}
    height, width = image_size(request)
    frames = _frames(request) or DEFAULT_FRAMES
    return {
        "pixel_values_videos": moving_picture(request, request.batch, frames, image_channels(request), height, width)
    }


def patches(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """Images cut into patches, with their grid, for models in which images of all sizes share one axis.

    ``pixel_values`` ``(batch · 24, channels · time · patch²)`` float and ``image_grid_thw`` ``(batch, 3)`` int64; a
    vision tower alone has other names for them. Models that keep an axis of patches per image take ``pixel_values``
    ``(batch, 24, channels · patch²)`` with ``spatial_shapes`` ``(batch, 2)`` int64.
    """
    if request.takes("pixel_values", "spatial_shapes"):
        pixels, grid = patchified(request)
        shape = (request.batch, -1, pixels.shape[-1])
        mask = torch.ones(request.batch, pixels.shape[0] // request.batch, dtype=torch.int64)
        return {"pixel_values": pixels.reshape(shape), "pixel_attention_mask": mask, "spatial_shapes": grid[:, 1:]}
    for pixels_name, grid_name in _PATCH_NAMES:
        if request.takes(pixels_name, grid_name):
            pixels, grid = patchified(request)
            return {pixels_name: pixels, grid_name: grid}
    return {}


def patchified(request: SampleRequest, patch: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """One image per row as patches ``(rows, features)`` and its grid ``(batch, 3)`` (time, height, width).

    ``patch`` is the side of a patch in pixels, None: the config's ``patch_size``.
    """
    patch = patch or _square(request.find("patch_size", parts=VISION_PARTS, default=14))
    merge = _square(request.find("spatial_merge_size", "merge_size", parts=VISION_PARTS, default=1))
    time = int(request.find("temporal_patch_size", "patch_temporal", parts=VISION_PARTS, default=1))
    channels = image_channels(request)
    rows, columns = (max(count, merge) // merge for count in GRID)
    height, width = rows * merge, columns * merge
    pixels = picture(request, request.batch, channels, height * patch, width * patch)
    # A still image fills all frames of a temporal patch. The patches of one merged token follow one another.
    cut = pixels.reshape(request.batch, channels, rows, merge, patch, columns, merge, patch)
    cut = cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(-1, channels, 1, patch, patch).expand(-1, -1, time, -1, -1)
    grid = torch.tensor([[1, height, width]] * request.batch, dtype=torch.int64)
    return cut.reshape(cut.shape[0], -1), grid


def picture(request: SampleRequest, count: int, channels: int, height: int, width: int) -> torch.Tensor:
    """Images ``(count, channels, height, width)`` float32, normalised as the processor does (else to about ±1).

    Each has a gradient of its own direction and colour, a disc and a bar; all edges are soft.
    """
    y = torch.linspace(-1, 1, height).reshape(1, 1, height, 1)
    x = torch.linspace(-1, 1, width).reshape(1, 1, 1, width)

    def each(low: float, high: float, per_channel: bool = False) -> torch.Tensor:
        spread = request.uniform(count, channels if per_channel else 1, 1, 1)
        return low + (high - low) * spread

    angle = each(0, 2 * math.pi)
    slope = 0.5 + 0.3 * (torch.cos(angle) * x + torch.sin(angle) * y) * each(0.5, 1, per_channel=True)
    distance = ((x - each(-0.5, 0.5)) ** 2 + (y - each(-0.5, 0.5)) ** 2).sqrt()
    disc = torch.sigmoid((each(0.25, 0.5) - distance) * 12) * each(-0.4, 0.4, per_channel=True)
    bar = torch.sigmoid((0.15 - (x * torch.sin(angle) + y * torch.cos(angle) - each(-0.4, 0.4)).abs()) * 16)
    shaded = (slope + disc + bar * each(-0.3, 0.3, per_channel=True)).clamp(0, 1)
    mean, deviation = _normalisation(request, channels)
    return (shaded - mean) / deviation


def moving_picture(
    request: SampleRequest, count: int, frames: int, channels: int, height: int, width: int
) -> torch.Tensor:
    """Videos ``(count, frames, channels, height, width)`` float32: an image that fades into another one."""
    first, last = (picture(request, count, channels, height, width).unsqueeze(1) for _ in range(2))
    blend = torch.linspace(0, 1, frames).reshape(1, frames, 1, 1, 1)
    return first * (1 - blend) + last * blend


def image_size(request: SampleRequest) -> tuple[int, int]:
    """Height and width: the config's, else the processor's (at most 256), else :data:`FREE_SIZE`."""
    configured = _pair(request.find(*_SIZES, parts=VISION_PARTS))
    if configured is not None:
        return configured
    processor = getattr(request.processor, "image_processor", request.processor)
    for name in ("crop_size", "size"):
        size = _pair(getattr(processor, name, None))
        if size is not None:
            return min(size[0], 256), min(size[1], 256)
    return FREE_SIZE


def image_channels(request: SampleRequest) -> int:
    """Number of colour channels."""
    return int(request.find(*_CHANNELS, parts=VISION_PARTS, default=3))


def _tiled(request: SampleRequest, pinpoints: Any, channels: int, height: int, width: int) -> dict[str, Any]:
    """An image of exactly the smallest size on the model's grid: an overview and one tile per cell."""
    rows, columns = min((int(tall) // height, int(wide) // width) for tall, wide in pinpoints)
    tiles = 1 + rows * columns
    pixels = picture(request, request.batch * tiles, channels, height, width)
    sizes = torch.tensor([[rows * height, columns * width]] * request.batch, dtype=torch.int64)
    return {"pixel_values": pixels.reshape(request.batch, tiles, channels, height, width), "image_sizes": sizes}


def _crops_by_size(request: SampleRequest) -> bool:
    """Whether each image's own size must be told: the model cannot count its features without."""
    if not request.takes("image_sizes", "input_ids"):
        return False
    count = getattr(request.model, "get_image_features", None)
    parameter = inspect.signature(count).parameters.get("image_sizes") if count is not None else None
    required = parameter is not None and parameter.default is inspect.Parameter.empty
    return required or getattr(request.part(VISION_PARTS), "model_type", None) == "pixtral"


def _wanted(request: SampleRequest, name: str) -> bool:
    """Whether to make images: they are needed, or the model has a vision part beside its text part."""
    if not request.takes(name):
        return False
    if request.needs(name) or request.part((*VISION_PARTS, "vq_config")) is not None:
        return True
    return request.find("image_size") is not None or bool(request.find("visual_embed"))


def _frames(request: SampleRequest) -> int | None:
    """Number of frames, if the model takes videos in place of images."""
    if request.takes("pixel_values_videos"):
        return None
    found = request.find(*_FRAMES, parts=VISION_PARTS)
    return int(found) if isinstance(found, int) and found > 1 else None


def _predicts_patches(request: SampleRequest) -> bool:
    return request.class_name.endswith(("ForMaskedImageModeling", "ForPreTraining")) or request.needs("bool_masked_pos")


def _patch_count(request: SampleRequest, pixels: torch.Tensor) -> int:
    """Patches of an image, or of a video in which several frames share a patch."""
    patch = _square(request.find("patch_size", parts=VISION_PARTS, default=16))
    count = (pixels.shape[-2] // patch) * (pixels.shape[-1] // patch)
    if pixels.ndim == 5:
        count *= pixels.shape[1] // int(request.find("tubelet_size", parts=VISION_PARTS, default=1))
    return int(count)


def _normalisation(request: SampleRequest, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    processor = getattr(request.processor, "image_processor", request.processor)
    mean, deviation = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
    if not (_is_list(mean, channels) and _is_list(deviation, channels)):
        mean = deviation = [0.5] * channels
    return tuple(torch.tensor(values).reshape(1, channels, 1, 1) for values in (mean, deviation))  # type: ignore[return-value]


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, Sequence) and len(value) == length


def _square(size: Any) -> int:
    return int(size if isinstance(size, int) else size[-1])


def _pair(size: Any) -> tuple[int, int] | None:
    """Height and width out of an int, a pair, or a processor's size by names."""
    if isinstance(size, bool) or size is None:
        return None
    if isinstance(size, int):
        return size, size
    if isinstance(size, Sequence):
        return (int(size[-2]), int(size[-1])) if len(size) >= 2 else None
    named = size if isinstance(size, Mapping) else vars(size)
    edge = named.get("shortest_edge") or named.get("longest_edge")
    height, width = named.get("height") or edge, named.get("width") or edge
    return (int(height), int(width)) if height and width else None
