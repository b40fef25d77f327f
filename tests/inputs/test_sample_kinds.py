# SPDX-License-Identifier: Apache-2.0
"""Ways to put a sample together that no model of the zoo of tiny models needs: tiles, patches, video, series, …"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from transporters.inputs import axes, resizing
from transporters.inputs.samples import sample_inputs

BODY: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
CLIP_TOWER = {"model_type": "clip_vision_model", **BODY, "image_size": 32, "patch_size": 8}

#: More ways to put a sample together: config class, model class, config, shapes of some of the inputs.
OTHERS: dict[str, tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "tiles": (
        "LlavaNextConfig",
        "LlavaNextForConditionalGeneration",
        {
            "vision_config": CLIP_TOWER,
            "text_config": {"model_type": "llama", **BODY, "vocab_size": 99},
            "image_token_index": 5,
            "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]],
        },
        {"pixel_values": (2, 3, 3, 32, 32), "image_sizes": (2, 2)},
    ),
    "patch rows": (
        "Siglip2Config",
        "Siglip2ForImageClassification",
        {"vision_config": {**BODY, "patch_size": 8}, "text_config": {**BODY, "vocab_size": 99}},
        {"pixel_values": (2, 24, 192), "pixel_attention_mask": (2, 24), "spatial_shapes": (2, 2)},
    ),
    "video": (
        "VideoMAEConfig",
        "VideoMAEForPreTraining",
        {
            **BODY,
            "image_size": 32,
            "patch_size": 8,
            "num_frames": 4,
            "decoder_hidden_size": 32,
            "decoder_num_hidden_layers": 1,
            "decoder_intermediate_size": 64,
            "decoder_num_attention_heads": 4,
        },
        {"pixel_values": (2, 4, 3, 32, 32), "bool_masked_pos": (2, 32)},
    ),
    "frames before mel bins": (
        "Wav2Vec2BertConfig",
        "Wav2Vec2BertModel",
        {**BODY, "feature_projection_input_dim": 16},
        {"input_features": (2, 64, 16), "attention_mask": (2, 64)},
    ),
    "page": (
        "LayoutLMv3Config",
        "LayoutLMv3Model",
        {**BODY, "vocab_size": 99, "coordinate_size": 6, "shape_size": 4, "input_size": 32, "patch_size": 8},
        {"input_ids": (2, 7), "bbox": (2, 7, 4), "pixel_values": (2, 3, 32, 32)},
    ),
    "table": (
        "TapasConfig",
        "TapasModel",
        {**BODY, "vocab_size": 99, "type_vocab_sizes": [3, 16, 16, 2]},
        {"input_ids": (2, 7), "token_type_ids": (2, 7, 4)},
    ),
    "codec": (
        "EncodecConfig",
        "EncodecModel",
        {"num_filters": 4, "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16, "num_lstm_layers": 1},
        {"input_values": (2, 1, 7680)},
    ),
    "spectrogram under the name of values": (
        "ASTConfig",
        "ASTModel",
        {**BODY, "max_length": 64, "num_mel_bins": 32},
        {"input_values": (2, 64, 32)},
    ),
    "time series": (
        "PatchTSTConfig",
        "PatchTSTForPrediction",
        {"num_input_channels": 3, "context_length": 24, "d_model": 16, "ffn_dim": 32, "num_hidden_layers": 1},
        {"past_values": (2, 24, 3)},
    ),
    "time features": (
        "InformerConfig",
        "InformerModel",
        {
            "prediction_length": 4,
            "context_length": 12,
            "lags_sequence": [1, 2],
            "num_time_features": 2,
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
        },
        {"past_values": (2, 14), "past_time_features": (2, 14, 2), "future_time_features": (2, 4, 2)},
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_kinds(case: str) -> None:
    config_name, model_name, values, shapes = OTHERS[case]
    torch.manual_seed(0)
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**values)).eval()
    sample = sample_inputs(model)
    assert {name: tuple(sample[name].shape) for name in shapes} == shapes
    with torch.no_grad():
        model(**sample)


def test_the_mask_tells_frames_from_mel_bins() -> None:
    """The same name holds both orders, so a mask beside the features decides where there is one."""
    features, mask = torch.zeros(2, 64, 16), torch.ones(2, 64)
    alone = axes.label_axes({"input_features": features.transpose(1, 2)})
    masked = axes.label_axes({"input_features": features, "attention_mask": mask})
    assert alone == {"input_features": ("batch", "mel_bins", "frames")}
    assert masked == {"input_features": ("batch", "frames", "mel_bins"), "attention_mask": ("batch", "frames")}


def test_a_table_grows_by_tokens_and_not_by_kinds() -> None:
    inputs = {"input_ids": torch.zeros(2, 7, dtype=torch.int64), "token_type_ids": torch.zeros(2, 7, 4)}
    labels = axes.label_axes(inputs)
    assert labels["token_type_ids"] == ("batch", "sequence", "kinds")
    assert resizing.resize(inputs, labels, {"sequence": 9})["token_type_ids"].shape == (2, 9, 4)


def test_what_counts_the_images_of_a_row_grows_with_them() -> None:
    """A mask of cameras beside images, and the aspect ratios and tiles of each image."""
    cameras = {"pixel_values": torch.zeros(2, 1, 3, 8, 8), "pixel_attention_mask": torch.ones(2, 1)}
    larger = resizing.resize(cameras, axes.label_axes(cameras), {"images_per_row": 3})
    assert [value.shape[:2] for value in larger.values()] == [(2, 3)] * 2
    tiled = {
        "pixel_values": torch.zeros(2, 1, 4, 3, 8, 8),
        "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.int64),
        "aspect_ratio_mask": torch.ones(2, 1, 4),
    }
    larger = resizing.resize(tiled, axes.label_axes(tiled), {"images_per_row": 3})
    assert [value.shape[:2] for value in larger.values()] == [(2, 3)] * 3


def test_a_mask_over_a_token_of_the_model_stays_one_longer_than_the_states() -> None:
    inputs = {"hidden_states": torch.zeros(2, 24, 8), "attention_mask": torch.ones(2, 25)}
    larger = resizing.resize(inputs, axes.label_axes(inputs), {"sequence": 49})
    assert (larger["hidden_states"].shape[1], larger["attention_mask"].shape[1]) == (49, 50)
