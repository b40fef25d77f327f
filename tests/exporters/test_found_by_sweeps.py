# SPDX-License-Identifier: Apache-2.0
"""What sweeps over all architectures found wrong, outside of single workarounds, which have reproducers."""

from __future__ import annotations

import pytest
import torch

from transporters import AutoExporter, zoo

pytestmark = pytest.mark.model

#: A class and what was wrong with it.
FOUND = {
    "InternVLModel": "outputs that are None came back at the places of others",
    "PatchTSTForPretraining": "the model draws its mask at random, and eager did not equal itself",
    "MusicgenMelodyModel": "four codebooks per row were taken for a larger batch",
    "Sam3DetrDecoder": "traced with three levels of features, it took another branch than with the one that there is",
    "RfDetrDecoder": "four coordinates were taken for a size that could be another one",
    "Qwen2_5OmniAudioEncoder": "mel bins of packed audio were taken for a batch",
    "Qwen3OmniMoeThinkerModel": "positions of images and audio in a text are worked out in a loop over its ids",
    "CLIPSegDecoder": "guards on the tensors of a list were not read, and one of them refused a batch of 1",
    "MllamaVisionModel": "the images of a row were enlarged for the trace in one of three inputs that have them",
    "PI0Model": "the images of a row were enlarged for the trace, and their mask was, by a label of its own",
    "FlavaMultimodalModel": "the model's own token makes the mask longer than the states, and both were doubled",
    "MobileViTV2Model": "the sample sits on a point for which sympy cannot solve the guards",
}


@pytest.mark.parametrize("name", FOUND)
def test_is_verified_on_its_sample_and_at_other_batches(name):
    model, inputs = zoo.build_with_inputs(name)
    report = AutoExporter.from_format("torch").export(model, inputs).verify()
    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations]
    verified = {variation.name for variation in report.variations if variation.status == "verified"}
    assert {"sample", "batch 1"} <= verified


@pytest.mark.parametrize("sides", [(4, 4), (2, 8)])
def test_a_square_image_does_not_hide_that_a_model_reads_width_before_height(sides):
    model, inputs = zoo.build_with_inputs("MuseSparkVisionModel")
    name = next(key for key in inputs if key != "grid_thw")

    def images(height: int, width: int) -> dict[str, torch.Tensor]:
        patches = torch.rand(2 * height * width, *inputs[name].shape[1:])
        return {name: patches, "grid_thw": torch.tensor([[1, height, width]] * 2)}

    exported = AutoExporter.from_format("torch").export(model, images(4, 4))
    other = images(*sides)
    with torch.no_grad():
        expected = model(**other).last_hidden_state
    torch.testing.assert_close(exported(**other).last_hidden_state, expected, atol=1e-4, rtol=1e-4)
