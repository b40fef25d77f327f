# SPDX-License-Identifier: Apache-2.0
"""More tiny random models: attention in blocks and buckets, speech, pixels to masks and boxes, tables and pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tf
from transformers import PreTrainedModel
from transformers.models.seamless_m4t.modeling_seamless_m4t import SeamlessM4TSpeechEncoder

from tiny import SEQ2SEQ, TEXT, WIDE, registered_in

#: Builders by name; `tiny.build` finds them.
MORE: dict[str, Callable[[], PreTrainedModel]] = {}

_more = registered_in(MORE)


@_more
def hubert() -> PreTrainedModel:
    config = tf.HubertConfig(
        **{**TEXT, "vocab_size": 32},
        conv_dim=(16, 16, 16),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        num_feat_extract_layers=3,
    )
    return tf.HubertModel(config)


@_more
def seamless_m4t_speech() -> PreTrainedModel:
    config = tf.SeamlessM4TConfig(
        hidden_size=32,
        speech_encoder_layers=2,
        speech_encoder_attention_heads=4,
        speech_encoder_intermediate_size=64,
        feature_projection_input_dim=16,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        conv_depthwise_kernel_size=5,
        num_adapter_layers=1,
        adaptor_kernel_size=4,
        adaptor_stride=4,
        max_source_positions=256,
        initializer_range=WIDE,
    )
    return SeamlessM4TSpeechEncoder(config)


@_more
def segformer() -> PreTrainedModel:
    config = tf.SegformerConfig(
        num_encoder_blocks=4,
        depths=[1, 1, 1, 1],
        sr_ratios=[8, 4, 2, 1],
        hidden_sizes=[8, 16, 16, 32],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
        num_labels=5,
        initializer_range=WIDE,
    )
    return tf.SegformerForSemanticSegmentation(config)


@_more
def patchtst() -> PreTrainedModel:
    config = tf.PatchTSTConfig(
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=4,
        prediction_length=6,
        d_model=32,
        num_attention_heads=4,
        num_hidden_layers=2,
        ffn_dim=64,
        init_std=WIDE,
    )
    return tf.PatchTSTForPrediction(config)


@_more
def layoutlmv3() -> PreTrainedModel:
    config = tf.LayoutLMv3Config(
        **TEXT,
        max_position_embeddings=64,
        max_2d_position_embeddings=64,
        coordinate_size=6,
        shape_size=4,
        rel_pos_bins=8,
        max_rel_pos=16,
        rel_2d_pos_bins=8,
        max_rel_2d_pos=32,
        input_size=32,
        patch_size=8,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    return tf.LayoutLMv3Model(config)


@_more
def tapas() -> PreTrainedModel:
    config = tf.TapasConfig(**TEXT, max_position_embeddings=32, type_vocab_sizes=[3, 16, 16, 2, 2, 8, 8])
    return tf.TapasModel(config)


@_more
def deberta_v2() -> PreTrainedModel:
    config = tf.DebertaV2Config(
        **TEXT,
        relative_attention=True,
        position_buckets=8,
        max_position_embeddings=64,
        max_relative_positions=-1,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        conv_kernel_size=3,
        type_vocab_size=0,
    )
    return tf.DebertaV2Model(config)


@_more
def longformer() -> PreTrainedModel:
    config = tf.LongformerConfig(
        **TEXT,
        attention_window=4,
        max_position_embeddings=128,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        sep_token_id=2,
    )
    return tf.LongformerModel(config)


@_more
def led() -> PreTrainedModel:
    config = tf.LEDConfig(
        **SEQ2SEQ,
        attention_window=4,
        max_encoder_position_embeddings=128,
        max_decoder_position_embeddings=64,
        init_std=WIDE,
    )
    return tf.LEDModel(config)


def _big_bird(attention_type: str) -> PreTrainedModel:
    config = tf.BigBirdConfig(
        **TEXT, attention_type=attention_type, block_size=4, num_random_blocks=2, max_position_embeddings=128
    )
    return tf.BigBirdModel(config)


@_more
def big_bird() -> PreTrainedModel:
    return _big_bird("original_full")


@_more
def big_bird_sparse() -> PreTrainedModel:
    return _big_bird("block_sparse")


@_more
def bigbird_pegasus() -> PreTrainedModel:
    config = tf.BigBirdPegasusConfig(
        **SEQ2SEQ,
        attention_type="block_sparse",
        block_size=4,
        num_random_blocks=2,
        max_position_embeddings=128,
        init_std=WIDE,
    )
    return tf.BigBirdPegasusModel(config)


def _resnet(config_class: Any, **more: Any) -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    return config_class(**sizes, **more)


#: What RT-DETR and D-FINE have in common.
_DETECTOR: dict[str, Any] = {
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [16, 16, 32],
    "feat_strides": [8, 16, 32],
    "encoder_layers": 1,
    "encoder_ffn_dim": 64,
    "encoder_attention_heads": 4,
    "decoder_in_channels": [32, 32, 32],
    "d_model": 32,
    "num_queries": 8,
    "decoder_layers": 2,
    "decoder_ffn_dim": 64,
    "decoder_attention_heads": 4,
    "num_labels": 5,
    "num_denoising": 0,
    "initializer_range": WIDE,
}


@_more
def rt_detr() -> PreTrainedModel:
    backbone = _resnet(tf.RTDetrResNetConfig, out_features=["stage2", "stage3", "stage4"])
    return tf.RTDetrForObjectDetection(tf.RTDetrConfig(**_DETECTOR, backbone_config=backbone))


@_more
def d_fine() -> PreTrainedModel:
    backbone = tf.HGNetV2Config(
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 8, 16, 16],
        stage_mid_channels=[8, 8, 8, 8],
        stage_out_channels=[8, 16, 16, 32],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[2, 2, 2, 2],
        hidden_sizes=[8, 16, 16, 32],
        embedding_size=8,
        out_features=["stage2", "stage3", "stage4"],
    )
    config = tf.DFineConfig(**_DETECTOR, backbone_config=backbone, hidden_expansion=1.0)
    return tf.DFineForObjectDetection(config)


def _swin(image_size: int = 64, **more: Any) -> Any:
    sizes = {
        "image_size": image_size,
        "patch_size": 4,
        "embed_dim": 16,
        "depths": [2, 1, 1, 1],
        "num_heads": [2, 2, 4, 4],
    }
    return tf.SwinConfig(**sizes, window_size=4, initializer_range=WIDE, **more)


@_more
def mask2former() -> PreTrainedModel:
    config = tf.Mask2FormerConfig(
        backbone_config=_swin(out_features=["stage1", "stage2", "stage3", "stage4"]),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=64,
        encoder_layers=2,
        decoder_layers=3,
        num_attention_heads=4,
        dim_feedforward=64,
        num_queries=6,
        num_labels=5,
        init_std=WIDE,
    )
    return tf.Mask2FormerForUniversalSegmentation(config)


@_more
def grounding_dino() -> PreTrainedModel:
    """With the tokens that end a phrase, 1029 and below, in the vocabulary."""
    config = tf.GroundingDinoConfig(
        backbone_config=_swin(96, out_features=["stage2", "stage3", "stage4"]),
        text_config={"model_type": "bert", **TEXT, "vocab_size": 1100, "max_position_embeddings": 64},
        d_model=32,
        encoder_layers=2,
        encoder_ffn_dim=64,
        encoder_attention_heads=4,
        decoder_layers=2,
        decoder_ffn_dim=64,
        decoder_attention_heads=4,
        num_queries=8,
        max_text_len=40,
        init_std=WIDE,
    )
    return tf.GroundingDinoForObjectDetection(config)
