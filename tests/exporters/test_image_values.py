# SPDX-License-Identifier: Apache-2.0
"""Programs read image sizes, grids and padding images out of their inputs: other values than the sample's are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_next.modeling_llava_next import unpad_image

from transporters import DynamoExporter, zoo
from transporters.exporters.preparers.tiles import Layout, best_resolution
from transporters.exporters.preparers.vision_grid import _counts
from transporters.exporters.workarounds.model.grid_layers import smooth_weights
from transporters.trees import pytrees

PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def sizes(count: int) -> torch.Tensor:
    return torch.randint(1, 1500, (count, 2), generator=torch.Generator().manual_seed(0))


def test_the_best_resolution_is_the_models():
    found = best_resolution(sizes(300), torch.tensor(PINPOINTS))
    wanted = [select_best_resolution(tuple(size), PINPOINTS) for size in sizes(300).tolist()]
    assert found.tolist() == list(map(list, wanted))


def test_padding_is_found_as_the_models_find_it():
    layout = Layout.of(sizes(300), PINPOINTS, 336, 24)
    for place, size in enumerate(sizes(300).tolist()):
        down, across = (side // 336 for side in select_best_resolution(tuple(size), PINPOINTS))
        rows, columns = torch.meshgrid(torch.arange(24 * down), torch.arange(24 * across), indexing="ij")
        kept = unpad_image(torch.stack([rows, columns]), size)
        shape = (int(layout.height[place]), int(layout.width[place]))
        assert shape == kept.shape[1:]
        if kept.numel():
            assert kept[:, 0, 0].tolist() == [int(layout.top[place]), int(layout.left[place])]


@pytest.mark.parametrize("size", [1, 3, 7, 8, 20])
def test_weights_are_those_of_resizing_with_antialiasing(size):
    line = torch.rand(1, 1, 1, 8)
    wanted = F.interpolate(line, size=(1, size), mode="bilinear", antialias=True)
    weights = smooth_weights(torch.arange(size), torch.full((size,), size), 8)
    torch.testing.assert_close(weights @ line[0, 0, 0], wanted[0, 0, 0])


def test_features_per_image_follow_from_their_total():
    grid = torch.tensor([[1, 4, 6], [2, 6, 2]])
    assert _counts(grid, 2, 12).tolist() == [6, 6]
    assert _counts(grid, 2, 9).tolist() == [6, 3]  # one for all frames
    assert _counts(grid, 2, 20).tolist() == [8, 12]  # rows that have an end
    assert _counts(grid, 2, 18).tolist() == [10, 8]  # and images that have a beginning and an end
    assert _counts(grid, 0, 48).tolist() == [24, 24]


def images(model: Any, sample: dict[str, Any], name: str) -> dict[str, torch.Tensor]:
    """Image inputs for two rows, which differ in what the program has to read."""
    pixels = sample["pixel_values"]
    if name.startswith("SmolVLM"):
        pixels = torch.cat([pixels, 0.5 * pixels], 1)
        pixels[1, 1] = 0.0
        return {"pixel_values": pixels, "pixel_attention_mask": sample["pixel_attention_mask"].repeat(1, 2, 1, 1)}
    if name.startswith("Mistral3"):
        height, width = pixels.shape[2:]
        return {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width], [height // 2, width]])}
    if "image_sizes" in sample:
        tiles = torch.rand(2, 40, *pixels.shape[2:])
        return {"pixel_values": tiles, "image_sizes": torch.tensor([[61, 20], [150, 130]])}
    grid = torch.tensor([[1, 4, 6], [1, 6, 2]])
    return {"pixel_values": torch.rand(36, *pixels.shape[1:]), "image_grid_thw": grid}


def with_text(model: Any, sample: dict[str, Any], given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Image inputs with two rows of ids that have as many image tokens as there are features."""
    token = model.config.image_token_id
    counts = [len(features) for features in model.get_image_features(**given).pooler_output]
    assert counts[0] != counts[1]
    ids = torch.full((2, max(counts) + 3), int(sample["input_ids"][0][sample["input_ids"][0] != token][-1]))
    for row, count in enumerate(counts):
        ids[row, 1 : 1 + count] = token
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "mm_token_type_ids" in sample:
        text["mm_token_type_ids"] = (ids == token).to(sample["mm_token_type_ids"].dtype)
    return {**text, **given}


@pytest.mark.model
@pytest.mark.parametrize(
    "name",
    [
        "SmolVLMModel",
        "Mistral3Model",
        "LlavaNextModel",
        "LlavaOnevisionModel",
        "HunYuanVLModel",
        "HYV4VLModel",
        "Lfm3VlModel",
        "Cosmos3EdgeModel",
        "Kimi_K25Model",
        "PaddleOCRVLModel",
        "Ernie4_5_VLMoeModel",
    ],
)
@torch.no_grad()
def test_a_program_reads_its_images_anew(name):
    torch.manual_seed(0)
    model, sample = zoo.build_with_inputs(name)
    exported = DynamoExporter().export(model, sample)
    inputs = with_text(model, sample, images(model, sample, name))
    expected = dict(pytrees.named_leaves(model(**inputs)))
    actual = dict(pytrees.named_leaves(exported(**inputs)))
    assert set(actual) == set(expected)
    for leaf, one in actual.items():
        torch.testing.assert_close(
            one, expected[leaf], atol=1e-4, rtol=1e-4, msg=lambda text, leaf=leaf: f"{leaf}: {text}"
        )
