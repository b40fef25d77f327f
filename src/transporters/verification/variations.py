# SPDX-License-Identifier: Apache-2.0
"""The sample inputs at other sizes and with other padding: what a program must survive beyond its own trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..inputs import axes, resizing
from ..trees import pytrees

#: Per label the sizes to try, as functions of the sample's size. All three runs of one label together find a program
#: that is right only below, at, or above its sample.
_OTHER_SIZES: dict[str, tuple[tuple[str, Any], ...]] = {
    "batch": (("batch {}", lambda n: n + 1), ("batch {}", lambda n: 1)),
    "sequence": (("length {}", lambda n: n + 3), ("length {}", lambda n: 1), ("length {}", lambda n: 5 * n + 2)),
    "past_sequence": (("past {}", lambda n: n + 5), ("past {}", lambda n: 1), ("past {}", lambda n: 0)),
    "encoder_sequence": (
        ("encoder length {}", lambda n: n + 3),
        ("encoder length {}", lambda n: 1),
        ("encoder length {}", lambda n: 5 * n + 2),
    ),
    "past_encoder_sequence": (("encoder past {}", lambda n: 0), ("encoder past {}", lambda n: 3 * n + 1)),
    "decoder_sequence": (("decoder length {}", lambda n: n + 2), ("decoder length {}", lambda n: 1)),
    "samples": (("{} samples", lambda n: n + n // 4),),
    "frames": (("{} frames", lambda n: n + 8),),
}


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        name: What changed against the sample.
        inputs: Forward arguments by name.
        row_lengths: For a padded case, the number of real tokens per row.
        side: For a padded case, "left" or "right".
    """

    name: str
    inputs: dict[str, Any]
    row_lengths: tuple[int, ...] = ()
    side: str = ""


def cases(sample: Mapping[str, Any]) -> Iterator[Case]:
    """The sample, then variations of it; whether eager accepts one is for the caller to find out.

    Batch + 1 and 1; length + 3, 1 and five-fold; longer, shorter and empty caches; other decoder lengths; other image
    sizes, square and not; more audio; batch and length at once; left and right padding; the batch in reverse order.
    """
    labels = axes.label_axes(sample)
    sizes = axes.sizes(sample, labels)
    yield Case("sample", dict(sample))
    for label, changes in _OTHER_SIZES.items():
        seen = {sizes.get(label)}
        for name, change in changes if label in sizes else ():
            size = change(sizes[label])
            if size not in seen and not (label == "sequence" and size < sizes[label] and _has_images(sample)):
                seen.add(size)
                yield Case(name.format(size), resizing.resize(sample, labels, {label: size}))
    yield from _image_sizes(sample, labels, sizes)
    if {"batch", "sequence"} <= set(sizes):
        both = {"batch": sizes["batch"] + 2, "sequence": sizes["sequence"] + 6}
        yield Case(f"batch {both['batch']}, length {both['sequence']}", resizing.resize(sample, labels, both))
    for side in ("left", "right"):
        yield from _padded(sample, labels, sizes, side)
    if sizes.get("batch", 0) > 1:
        yield Case("batch reversed", reverse_batch(sample, labels))


def reverse_batch(inputs: Mapping[str, Any], labels: axes.Labels) -> dict[str, Any]:
    """The rows of the batch in reverse order; packed images go with their rows."""

    def flip(name: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        for axis, label in enumerate(labels.get(name, ())):
            if label == "batch" or label == "images":
                leaf = leaf.flip(axis)
        return leaf

    flipped: dict[str, Any] = pytrees.map_named(flip, dict(inputs))
    packed = {top for top in flipped if "patches" in labels.get(top, ())}
    for top in packed:
        flipped[top] = _reverse_packed(inputs, top, labels[top].index("patches"))
    return flipped


def _reverse_packed(inputs: Mapping[str, Any], top: str, axis: int) -> torch.Tensor:
    """Patches of packed images in the reverse order of the images."""
    patches = inputs[axes.grid_name(inputs)].prod(-1)
    share = inputs[top].shape[axis] // int(patches.sum())  # more than 1 where patches lie side by side in one image
    pieces = torch.split(inputs[top], (patches * share).tolist(), axis)
    return torch.cat(list(reversed(pieces)), axis)


def _image_sizes(sample: Mapping[str, Any], labels: axes.Labels, sizes: Mapping[str, int]) -> Iterator[Case]:
    if {"height", "width"} <= set(sizes):
        height, width = sizes["height"], sizes["width"]
        for new_height, new_width in ((height * 5 // 4, width), (height, width * 3 // 2), (2 * height, 2 * width)):
            changed = resizing.resize(sample, labels, {"height": new_height, "width": new_width})
            yield Case(f"image {new_height}x{new_width}", changed)


def _padded(sample: Mapping[str, Any], labels: axes.Labels, sizes: Mapping[str, int], side: str) -> Iterator[Case]:
    """Three rows of different length, padded on one side; the attention mask says where."""
    mask = sample.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or labels["attention_mask"] != ("batch", "sequence") or _has_images(sample):
        return
    length = max(sizes["sequence"], 4)
    grown = resizing.resize(sample, labels, {"batch": 3, "sequence": length})
    lengths = (length, length - 1, max(1, length // 2))
    columns = torch.arange(length, device=mask.device)
    rows = [columns >= length - n if side == "left" else columns < n for n in lengths]
    grown["attention_mask"] = torch.stack(rows).to(mask.dtype)
    if "position_ids" in grown and grown["position_ids"].ndim == 2:
        positions = grown["attention_mask"].cumsum(-1) - 1
        grown["position_ids"] = positions.clamp(min=0).to(grown["position_ids"].dtype)
    yield Case(f"{side} padding", grown, lengths, side)


def unpadded_row(case: Case, row: int) -> dict[str, Any]:
    """One row of a padded case, alone and without its padding."""
    labels = axes.label_axes(case.inputs)
    length = case.row_lengths[row]

    def cut(name: str, leaf: Any) -> Any:
        for axis, label in enumerate(labels.get(name, ())):
            if label == "batch":
                leaf = leaf.narrow(axis, row, 1)
            elif label == "sequence":
                start = leaf.shape[axis] - length if case.side == "left" else 0
                leaf = leaf.narrow(axis, start, length)
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

    alone: dict[str, Any] = pytrees.map_named(cut, dict(case.inputs))
    return alone


def _has_images(sample: Mapping[str, Any]) -> bool:
    return "mm_token_type_ids" in sample or ("pixel_values" in sample and "input_ids" in sample and _packed(sample))


def _packed(sample: Mapping[str, Any]) -> bool:
    return bool(sample["pixel_values"].ndim == 2)
