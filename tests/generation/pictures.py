# SPDX-License-Identifier: Apache-2.0
"""Prompts with pictures for tiny models of the zoo."""

from __future__ import annotations

from typing import Any

import torch

from transporters.generation.multimodal import picture_token
from transporters.inputs.samples import sample_inputs

#: Words that a sample has behind its picture.
_WORDS = 6


def prompt(model: Any, counts: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """A text per row with as many pictures as said, padded on the left, as a processor would make it.

    Args:
        model: A model that reads pictures.
        counts: Pictures of each row. The first row has more words than the others.
        seed: Other words and other pictures.
    """
    sample = sample_inputs(model, batch=max(1, sum(counts)), seed=seed)
    ids = sample["input_ids"]
    picture = ids[0, 1:-_WORDS]
    rows = []
    for row, count in enumerate(counts):
        words = ids[row % ids.shape[0]].flip(0)[:_WORDS]
        more = words.flip(0)[1:4] if row == 0 else words[:0]
        rows.append(torch.cat([words[:2], *[picture, words[2:3]] * count, words[3:], more]))
    longest = max(map(len, rows))
    found = torch.stack([torch.cat([torch.zeros(longest - len(row), dtype=torch.int64), row]) for row in rows])
    mask = torch.stack([(torch.arange(longest) >= longest - len(row)).long() for row in rows])
    given = {"input_ids": found, "attention_mask": mask}
    types = (found == picture_token(model.config)).long()
    if model.config.model_type.startswith("gemma"):
        given["token_type_ids"] = types
    if "mm_token_type_ids" in sample:
        given["mm_token_type_ids"] = types
    return {**given, **_pixels(sample, counts)} if sum(counts) else given


def _pixels(sample: dict[str, torch.Tensor], counts: list[int]) -> dict[str, torch.Tensor]:
    pixels = sample["pixel_values"]
    if pixels.ndim == 5:  # a place for as many pictures in each row as the fullest has
        mask = sample["pixel_attention_mask"]
        rows = torch.zeros(len(counts), max(counts), *pixels.shape[2:])
        masks = torch.zeros(len(counts), max(counts), *mask.shape[2:], dtype=mask.dtype)
        pictures = iter(range(pixels.shape[0]))
        for row, count in enumerate(counts):
            for place in range(count):
                at = next(pictures)
                rows[row, place], masks[row, place] = pixels[at, 0], mask[at, 0]
        return {"pixel_values": rows, "pixel_attention_mask": masks}
    if "image_grid_thw" not in sample:
        return {"pixel_values": pixels}
    grid = sample["image_grid_thw"].clone()
    grid[1::2] = grid[1::2][:, [0, 2, 1]]  # as many patches, and other rows and columns
    return {"pixel_values": pixels, "image_grid_thw": grid}
