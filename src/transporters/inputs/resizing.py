# SPDX-License-Identifier: Apache-2.0
"""The same inputs at another size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..trees import pytrees
from .axes import PER_ROW, Labels, sizes


def resize(inputs: Mapping[str, Any], labels: Labels, new_sizes: Mapping[str, int]) -> dict[str, Any]:
    """The same inputs with some axes longer or shorter.

    A longer axis continues the content: rows of the batch are mixed copies of earlier rows, token ids and audio repeat,
    images are resampled smoothly. A change of ``batch`` scales the labels in `PER_ROW` along with it.

    Args:
        inputs: Forward arguments by name.
        labels: From `label_axes`.
        new_sizes: Label to new size; labels that no input has are ignored.
    """
    old = sizes(inputs, labels)
    wanted = {label: size for label, size in new_sizes.items() if label in old}
    if "batch" in wanted and old["batch"]:
        for label in PER_ROW & set(old) - set(wanted):
            wanted[label] = old[label] * wanted["batch"] // old["batch"]
    wanted = with_total(old, wanted)
    plain = not any(name.startswith("pixel_values") for name in inputs)

    def change(name: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return wanted.get("past_sequence", leaf) if name.endswith("cumulative_length") else leaf
        for axis, label in enumerate(labels.get(name, ())):
            if label in wanted and leaf.shape[axis] != wanted[label]:
                leaf = _resize_axis(leaf, axis, label, wanted[label], tokens=plain and name.endswith("input_ids"))
        return leaf

    resized: dict[str, Any] = pytrees.map_named(change, dict(inputs))
    return resized


def with_total(old: Mapping[str, int], wanted: Mapping[str, int]) -> dict[str, int]:
    """``wanted``, in which a mask over past and new tokens is as long as the two together.

    What a decoder has kept of an encoder's states is never more than there are.
    """
    found = dict(wanted)
    if "total_sequence" in old and {"sequence", "past_sequence"} & set(wanted):
        changes = [wanted[label] - old[label] for label in ("sequence", "past_sequence") if label in wanted]
        found.setdefault("total_sequence", old["total_sequence"] + sum(changes))
    for label in ("past_window", "window"):
        if label in old and "past_sequence" in wanted:  # a window holds at most what there is
            found.setdefault(label, min(old[label], wanted["past_sequence"]))
    if {"encoder_sequence", "past_encoder_sequence"} <= set(old):
        if "encoder_sequence" in wanted:
            kept = wanted.get("past_encoder_sequence", old["past_encoder_sequence"])
            found["past_encoder_sequence"] = min(kept, wanted["encoder_sequence"])
        elif "past_encoder_sequence" in wanted:
            found["encoder_sequence"] = max(old["encoder_sequence"], wanted["past_encoder_sequence"])
    return found


def _resize_axis(leaf: torch.Tensor, axis: int, label: str, size: int, *, tokens: bool) -> torch.Tensor:
    old = leaf.shape[axis]
    if size <= old:
        return leaf.narrow(axis, 0, size).clone()
    if old == 0:
        shape = (*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])
        return torch.zeros(shape, dtype=leaf.dtype, device=leaf.device)
    if label in ("height", "width") and leaf.is_floating_point():
        return _resample(leaf, axis, size)
    if label.endswith("sequence") and old > 1:
        return torch.cat([leaf, _continue(leaf, axis, size - old, tokens)], dim=axis)
    copies = leaf.repeat([math.ceil(size / old) if a == axis else 1 for a in range(leaf.ndim)])
    copies = copies.narrow(axis, 0, size).clone()
    if label == "batch" and leaf.ndim > 1:
        # No new row may equal an old one, or a program that mixes rows up would pass unseen.
        if tokens:
            half = leaf.shape[-1] // 2
            copies[old:, half:] = copies[old:, half:].flip(-1)
        elif leaf.is_floating_point():
            copies[old:] *= 0.75
    return copies


def _resample(leaf: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Linear interpolation along one axis."""
    old = leaf.shape[axis]
    positions = torch.linspace(0, old - 1, size, device=leaf.device)
    low = positions.floor().long().clamp(max=old - 1)
    high = (low + 1).clamp(max=old - 1)
    weight = (positions - low).to(leaf.dtype).reshape([-1 if a == axis else 1 for a in range(leaf.ndim)])
    return leaf.index_select(axis, low) * (1 - weight) + leaf.index_select(axis, high) * weight


def _continue(leaf: torch.Tensor, axis: int, count: int, tokens: bool) -> torch.Tensor:
    """What follows the last columns: other tokens in text, the next positions, otherwise the last column again."""
    old = leaf.shape[axis]
    if tokens:
        back = [old - 2 - step % (old - 1) for step in range(count)]
        return leaf.index_select(axis, torch.tensor(back, device=leaf.device))
    last = leaf.narrow(axis, old - 1, 1)
    tail = last.expand([count if a == axis else s for a, s in enumerate(leaf.shape)]).clone()
    is_position = old > 1 and not leaf.is_floating_point() and bool((leaf.diff(dim=axis) == 1).all())
    if is_position:
        steps = torch.arange(1, count + 1, device=leaf.device, dtype=leaf.dtype)
        tail += steps.reshape([-1 if a == axis else 1 for a in range(leaf.ndim)])
    return tail
