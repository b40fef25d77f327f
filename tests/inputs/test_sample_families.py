# SPDX-License-Identifier: Apache-2.0
"""Sample inputs whose kind a family or a signature decides: what they look like, on tiny models of the zoo."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transporters import zoo
from transporters.inputs import multimodal
from transporters.inputs.request import SampleRequest
from transporters.inputs.samples import sample_inputs


def sample(name: str, batch: int = 2) -> tuple[Any, dict[str, Any]]:
    model = zoo.build(name)
    return model, sample_inputs(model, batch=batch)


def test_a_wrapper_takes_what_it_wraps() -> None:
    model, inputs = sample("BartDecoderWrapper")
    assert "input_ids" in inputs
    assert model(**inputs).last_hidden_state.shape[:2] == inputs["input_ids"].shape


def test_a_second_vision_part_gets_the_same_images_at_its_size() -> None:
    model, inputs = sample("DeepseekVLHybridModel")
    size = model.config.high_res_vision_config.image_size
    assert inputs["high_res_pixel_values"].shape == (2, 3, size, size)


def test_stacked_frames_have_the_features_of_all() -> None:
    model, inputs = sample("FunAsrNanoEncoder")
    assert inputs["input_features"].shape[-1] == model.config.num_mel_bins * model.config.num_stacked_frames


@pytest.mark.parametrize(
    ("name", "argument", "shape"),
    [
        ("DecisionTransformerModel", "actions", (3, 7, None)),
        ("DiaModel", "decoder_input_ids", (3, 5, None)),
        ("LukeForEntityPairClassification", "entity_position_ids", (3, 2, None)),
        ("MoshiForConditionalGeneration", "user_audio_codes", (3, None, 7)),
        ("RagModel", "context_input_ids", (6, 7)),
        ("SpeechT5HifiGan", "spectrogram", (3, None, None)),
        ("ViltForImagesAndTextClassification", "pixel_values", (3, 2, 3, None, None)),
        ("VideoLlama3Model", "image_merge_sizes", (3,)),
    ],
)
def test_shapes_of_families(name: str, argument: str, shape: tuple[int | None, ...]) -> None:
    _, inputs = sample(name, batch=3)
    found = inputs[argument].shape
    assert len(found) == len(shape)
    assert all(size in (None, real) for size, real in zip(shape, found))


def test_codes_of_all_codebooks_stand_beside_the_text() -> None:
    model, inputs = sample("KyutaiSpeechToTextModel")
    assert inputs["input_ids"].shape == (2, 7, model.config.num_codebooks + 1)


def test_an_instruction_is_there_before_the_features_are_counted() -> None:
    model, inputs = sample("InstructBlipForConditionalGeneration")
    placeholders = (inputs["input_ids"] == model.config.image_token_id).sum(1)
    assert set(placeholders.tolist()) == {model.config.num_query_tokens}


def test_the_grid_of_the_image_to_come_is_the_last() -> None:
    model, inputs = sample("GlmImageModel")
    assert len(inputs["image_grid_thw"]) == 3
    tokens = (inputs["input_ids"] == model.config.image_token_id).sum(1)
    assert tokens.tolist() == inputs["image_grid_thw"][:2].prod(-1).tolist()


def test_features_of_several_depths_are_counted_once() -> None:
    class Output:
        deepstack_features = ((0, torch.zeros(2, 5, 4)), (1, torch.zeros(2, 5, 4)))
        pooler_output = last_hidden_state = None

    assert multimodal.feature_count(Output()) == 10


def test_a_required_argument_has_no_default() -> None:
    request = SampleRequest(zoo.build("BertModel"))
    assert request.needs("input_ids")
    assert not request.requires("input_ids")
    assert not request.requires("no_such_argument")
