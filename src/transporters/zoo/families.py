# SPDX-License-Identifier: Apache-2.0
"""What the general rules cannot know about a family of models: a few lines each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

#: Sizes by model type; a dotted name leads into a part.
OVERRIDES: dict[str, dict[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "blip-2": {"image_token_id": 95},
    "instructblip": {"image_token_id": 95},
    "instructblipvideo": {"video_token_id": 95, "image_token_id": 95},
    "bridgetower_vision_model": {"hidden_size": 64},
    # A quarter of the hidden size is cut into eight even parts.
    "bros": {
        "hidden_size": 128,
        "dim_bbox_projection": 32,
        "dim_bbox_sinusoid_emb_2d": 32,
        "dim_bbox_sinusoid_emb_1d": 4,
    },
    "clipseg": {"extract_layers": [0, 1, 2], "vision_config.num_hidden_layers": 3},
    # Rotary embeddings of at least 32 channels per head.
    "clvp_encoder": {"hidden_size": 64, "num_attention_heads": 2, "projection_dim": 64},
    "clvp_decoder": {"hidden_size": 64, "num_attention_heads": 2},
    "clvp": {"projection_dim": 64},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320},
    "align_vision_model": {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320},
    "levit": {
        "hidden_sizes": [16, 32, 64],
        "num_attention_heads": [2, 4, 4],
        "key_dim": [8, 8, 8],
        "depths": [2, 2, 2],
        "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 4, 4, 2, 2]],
        "image_size": 64,
        "patch_size": 16,
    },
    "blt": {"use_cache": False},  # its cache asks for a number of layers that the config does not have
    "efficientloftr": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "fine_matching_slice_dim": 4,
    },
    "radio": {"patch_dim": 192},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "align": {"projection_dim": 80},
    # Codes of images and sounds stand behind the text's ids.
    "apertus1p5": {
        "image_token_offset": 64,
        "audio_token_offset": 96,
        "vision_config.codebook_size": 32,
        "audio_config.codebook_size": 32,
    },
    "molmo2_vision": {"num_position_embeddings": 16},
    "blt_local_decoder": {"hidden_size_global": 64},
    "blt_local_encoder": {"hidden_size_global": 64},
    "dory": {"use_cache": False},  # its loops would need a cache each
    "dots3_note_audio_encoder": {"conv_output_size": 128},
    "neucodec": {"quantization_dim": 64},
    "qwen2_5_omni_bigvgan": {"upsample_initial_channel": 64},  # halved six times
    "sapiens2_head": {"scale_final_input_size": 128},
    "xcodec2": {"quantization_dim": 64},
    "blt_global_transformer": {"hidden_size": 64, "head_dim": 16},  # two local states make up a global one
    "bridgetower": {"hidden_size": 64},
    "bridgetower_text_model": {"hidden_size": 64},
    # As many codes as there are image tokens in the vocabulary.
    "chameleon_vqgan": {"num_embeddings": 64},
    "clap_audio_model": {"num_mel_bins": 32},
    "dots3_note_text": {"head_dim": 32},
    "janus_vqgan": {"num_patches": 4},
    "kosmos_2_5_vision_model": {"patch_embed_hidden_size": 192},
    "muse_glimmer": {"out_hidden_size": 128},  # four patches
    "muse_spark": {"out_hidden_size": 128},
    "muse_glimmer_vision": {"pos_emb_height": 8, "pos_emb_width": 8, "max_position_embeddings": 64},
    "muse_spark_vision": {"pos_emb_height": 8, "pos_emb_width": 8, "max_position_embeddings": 64},
    "phi4_multimodal_audio": {"input_size": 80},
    "sam2_prompt_encoder": {"patch_size": 16},
    "sam2_vision_model": {"backbone_feature_sizes": [[8, 8], [4, 4], [2, 2]]},
    "sam3_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "uvdoc_backbone": {
        "_out_features": [f"stage{place}" for place in range(1, 7)],
        "_out_indices": list(range(1, 7)),
    },
    "depth_pro": {"patch_size": 32, "intermediate_hook_ids": [1, 0]},
    "emu3_vqgan": {"hidden_size": 64, "codebook_size": 64},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},  # stacks run 2 · (3 + 1) times
    "minimax_m3_vl": {"merged_hidden_size": 128},
    "neomme": {"head_dim": 16},
    "pp_doclayout_v3": {"x4_feat_dim": 8},
    # Shapes are joined with others, which are tuples.
    "reformer": {"axial_pos_embds_dim": (8, 24), "axial_pos_shape": (8, 16)},
    "vitmatte": {"backbone_config.patch_size": 16, "backbone_config.image_size": 64},
    "vibevoice_acoustic_tokenizer": {"num_filters": 2},
    "xcodec": {"codebook_dim": 96},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "sam2_hiera_det_model": {"global_attention_blocks": [4]},
    "superpoint": {"keypoint_decoder_dim": 65},
    "tvp": {"visual_prompt_size": 8, "max_img_size": 64},
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 2},
    "vibevoice_acoustic_tokenizer_decoder": {"num_filters": 2},
    "lilt": {"hidden_size": 48},  # boxes are embedded by sixths
    "llama4_vision_model": {"intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32},
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevit": {"image_size": 64},
    "mobilevitv2": {"image_size": 64},
    "pi0": {"dit_config.head_dim": 8},  # both attend to one cache
    "pix2struct_vision_model": {"patch_embed_hidden_size": 192},
}

#: More than sizes: functions of the tiny config and the full one, by model type.
ADJUSTMENTS: dict[str, Callable[[Any, Any], None]] = {}

_A = TypeVar("_A", bound=Callable[[Any, Any], None])


def _adjusts(*model_types: str) -> Callable[[_A], _A]:
    def register(change: _A) -> _A:
        ADJUSTMENTS.update(dict.fromkeys(model_types, change))
        return change

    return register


@_adjusts("zamba", "zamba2")
def _shared_block(tiny: Any, full: Any) -> None:
    """Two layers, so that there is something to share the one block of attention with."""
    plain = next(kind for kind in tiny.layers_block_type if kind != "hybrid")
    tiny.layers_block_type = [plain, "hybrid", plain, "hybrid"]
    tiny.num_hidden_layers = 4
    if getattr(tiny, "hybrid_layer_ids", None) is not None:
        tiny.hybrid_layer_ids = [1, 3]


@_adjusts("pp_lcnet", "pp_lcnet_v3")
def _scaled_blocks(tiny: Any, full: Any) -> None:
    """Blocks are made smaller by one factor, which their channels must stand."""
    for name in ("block_configs", "stem_channels", "stage_out_channels"):
        if hasattr(full, name):
            setattr(tiny, name, getattr(full, name))
    tiny.scale = 0.25


@_adjusts("mllama")
def _features_of_layers(tiny: Any, full: Any) -> None:
    """The vision tower gives the states of some layers beside its last."""
    vision = tiny.vision_config
    vision.vision_output_dim = vision.hidden_size * (1 + len(vision.intermediate_layers_indices))


@_adjusts("glm4v_moe_text")
def _half_rotary(tiny: Any, full: Any) -> None:
    """Half of a head is rotated, in three sections."""
    tiny.head_dim = 16
    tiny.rope_parameters = {**tiny.rope_parameters, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}


#: Text models whose rotary embedding has these sections when the config names none.
SECTIONS: dict[str, list[int]] = {
    "cosmos3_edge_text": [24, 20, 20],
    "ernie4_5_vl_moe_text": [22, 22, 20],
    "glm4v_text": [8, 12, 12],
    "glm4v_moe_text": [8, 12, 12],
    "glm_image_text": [8, 12, 12],
    "glm_ocr_text": [8, 12, 12],
    "hy_v4_vl_text": [24, 20, 20],
    "paddleocr_vl_text": [16, 24, 24],
    "qwen2_5_omni_text": [16, 24, 24],
    "qwen2_5_omni_talker": [16, 24, 24],
    "qwen2_5_vl_text": [16, 24, 24],
    "qwen2_vl_text": [16, 24, 24],
    "qwen3_5_text": [11, 11, 10],
    "qwen3_5_moe_text": [11, 11, 10],
    "qwen3_omni_moe_text": [24, 20, 20],
    "qwen3_omni_moe_talker_text": [24, 20, 20],
    "qwen3_vl_text": [24, 20, 20],
    "qwen3_vl_moe_text": [24, 20, 20],
    "qwen4_exp_text": [11, 11, 10],
    "cohere_compass_text": [24, 20, 20],
}


def adjust(tiny: Any, full: Any) -> None:
    """Apply what is known about the family, to every part first and then to the whole."""
    from transformers import PreTrainedConfig

    for name, value in list(vars(tiny).items()):
        if isinstance(value, PreTrainedConfig):
            adjust(value, getattr(full, name, value))
    for path, value in OVERRIDES.get(tiny.model_type, {}).items():
        owner = tiny
        *parts, last = path.split(".")
        for part in parts:
            owner = getattr(owner, part)
        setattr(owner, last, value)
    change = ADJUSTMENTS.get(tiny.model_type)
    if change is not None:
        change(tiny, full)


_STACKS = ("MT5Stack", "Pop2PianoStack", "SwitchTransformersStack", "T5Stack", "UMT5Stack", "UdopStack")

#: What one class needs of its config, where others of its family do not.
CLASS_NEEDS: dict[str, dict[str, Any]] = {
    "ConditionalDetrForSegmentation": {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
    "DetrForSegmentation": {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
    "PerceiverForImageClassificationConvProcessing": {"num_cross_attention_heads": 1},
    "PerceiverForImageClassificationFourier": {"num_cross_attention_heads": 1},
    "PerceiverForImageClassificationLearned": {"num_cross_attention_heads": 1},
    "PerceiverForMultimodalAutoencoding": {"num_cross_attention_heads": 1},
    "PerceiverForOpticalFlow": {"num_cross_attention_heads": 1},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "ViltForImagesAndTextClassification": {"num_images": 2, "modality_type_vocab_size": 3},
    # A stack is an encoder unless its whole says otherwise, and encoders have no cache.
    **{name: {"use_cache": False} for name in _STACKS},
}


def prepare(name: str, config: Any) -> None:
    """Set what one model class needs."""
    if name.startswith(
        "SeamlessM4Tv2TextToUnit"
    ):  # the whole gives it a config with its own sizes in place of the text's
        for key, value in list(vars(config).items()):
            if key.startswith("t2u_"):
                setattr(config, key.removeprefix("t2u_"), value)
    for key, value in CLASS_NEEDS.get(name, {}).items():
        setattr(config, key, value)
