# SPDX-License-Identifier: Apache-2.0
"""Full-size configs for classes whose own defaults are no whole model.

Some configs leave a size open (``None``) that every published model fills in, some name a backbone of a package that
is not a dependency, and some are only put together of other configs. What stands here is what a published model has,
in full size; it is shrunk afterwards like everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MOE = {"n_routed_experts": 64, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "n_shared_experts": 2}


def _strips(long: int) -> dict[str, list[Any]]:
    """Convolutions over strips and squares of three sizes: kernel, stride, padding."""
    found: dict[str, list[Any]] = {"reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0]}
    for name, size in (("longratio", long), ("midratio", long - 2), ("shortratio", long - 4)):
        pad = size // 2
        found[f"vertical_long_to_small_conv_{name}"] = [[size, 1], 1, [pad, 0]]
        found[f"horizontal_small_to_long_conv_{name}"] = [[1, size], 1, [0, pad]]
        found[f"symmetric_conv_long_{name}"] = [[size, size], 1, [pad, pad]]
    return found


_INTRACLASS = _strips(7)

#: Arguments by name of the config class.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "AutoformerConfig": {"prediction_length": 6, "context_length": 14, "num_time_features": 1},
    "InformerConfig": {"prediction_length": 6, "context_length": 14, "num_time_features": 1},
    "TimeSeriesTransformerConfig": {"prediction_length": 6, "context_length": 14, "num_time_features": 1},
    "BambaConfig": {"attn_layer_indices": [9, 18, 27]},
    "GraniteMoeHybridConfig": {"layer_types": (["mamba"] * 3 + ["attention"]) * 8},
    "DeepseekV2Config": {"num_experts_per_tok": 6, "n_group": 8, "topk_group": 3},
    "Dots1Config": {**_MOE, "first_k_dense_replace": 1},
    "EsmConfig": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "HunYuanDenseV1Config": {"head_dim": 128},
    "HunYuanMoEV1Config": {"head_dim": 128, "num_experts": 16, "moe_topk": 2},
    "HunYuanVLTextConfig": {
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 16, 16, 16]},
    },
    "NemotronConfig": {"head_dim": 128, "num_key_value_heads": 8},
    "MinistralConfig": {"head_dim": 128},
    "CohereCompassTextConfig": {
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 10,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "DbrxAttentionConfig": {"rope_theta": 10000.0, "clip_qkv": 8.0},
    "DeepseekOcr2TextConfig": {"mlp_layer_types": ["dense"] + ["sparse"] * 11, **_MOE},
    "Lfm2MoeConfig": {"layer_types": (["conv"] * 3 + ["full_attention"]) * 8},
    "Pix2StructTextConfig": {"initializer_range": 0.02},
    "Qwen2_5OmniThinkerConfig": {"vision_start_token_id": 151652, "vision_end_token_id": 151653},
    "Qwen3OmniMoeThinkerConfig": {"vision_start_token_id": 151652, "vision_end_token_id": 151653},
    "Qwen3OmniMoeTalkerTextConfig": {"shared_expert_intermediate_size": 768},
    "Qwen4ExpTextConfig": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
    },
    "ShieldGemma2Config": {"yes_token_index": 10784, "no_token_index": 3771},
    "Step3p7TextConfig": {"sliding_window": 512},
    "T5Config": {"decoder_start_token_id": 0},
    "T5Gemma2DecoderConfig": {"dropout_rate": 0.0},
    "T5Gemma2TextConfig": {"dropout_rate": 0.0},
    "VoxtralConfig": {"audio_token_id": 24},
    "Wav2Vec2BertConfig": {"vocab_size": 32},
    "Wav2Vec2ConformerConfig": {"vocab_size": 32},
    "DiffusionGemmaTextConfig": {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
    "PPDocLayoutV2Config": {"class_thresholds": [0.5] * 25, "class_order": list(range(25))},
    "NemotronH_Omni_Reasoning_V3_Config": {"image_token_id": 18},
    "PPOCRV5ServerDetConfig": {
        "intraclass_block_config": _INTRACLASS,
        "kernel_list": [3, 2, 2],
        "scale_factor_list": [1, 2, 4, 8],
    },
    "Granite4VisionConfig": {"deepstack_layer_map": [[-1, 0], [-2, 1]], "downsample_rate": "1/2"},
    "LwDetrConfig": {"projector_scale_factors": [1.0]},
    "MoonshineStreamingConfig": {"num_key_value_heads": 8},
    "MoshiConfig": {"audio_vocab_size": 2048},
    "Qwen3OmniMoeTalkerConfig": {"spatial_merge_size": 2},
}

_SAPIENS_HEADS = (
    "Sapiens2ForImageMatting",
    "Sapiens2ForNormalEstimation",
    "Sapiens2ForPointmapEstimation",
    "Sapiens2ForPoseEstimation",
    "Sapiens2ForSemanticSegmentation",
)
_SAPIENS_ARGUMENTS: dict[str, Any] = {
    "head_config": {
        "upsample_out_channels": [256, 256],
        "upsample_kernel_sizes": [4, 4],
        "conv_out_channels": [256, 256],
        "conv_kernel_sizes": [1, 1],
        "scale_conv_out_channels": [64],
        "scale_conv_kernel_sizes": [1],
        "scale_final_hidden_sizes": [32, 16],
    }
}

#: Further arguments of the config, by model class: heads that others of the family do not have.
CLASS_ARGUMENTS: dict[str, dict[str, Any]] = {
    "BeitForMaskedImageModeling": {"use_mask_token": True},
    "BeitForSemanticSegmentation": {"out_indices": [3, 5, 7, 11]},
    "Blip2ForImageTextRetrieval": {"qformer_config": {"use_qformer_text_input": True}},
    "Blip2TextModelWithProjection": {"qformer_config": {"use_qformer_text_input": True}},
    "BridgeTowerForContrastiveLearning": {"contrastive_hidden_size": 512, "logit_scale_init_value": 2.6592},
    "HieraForPreTraining": {"decoder_hidden_size": 512, "decoder_depth": 8, "decoder_num_heads": 16},
    **dict.fromkeys(_SAPIENS_HEADS, _SAPIENS_ARGUMENTS),
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
}

_Maker = Callable[[type[Any]], Any]

#: Makers by name of the config class.
MAKERS: dict[str, _Maker] = {}


def maker(*names: str) -> Callable[[_Maker], _Maker]:
    """Register what makes the full-size configs of these classes."""

    def register(make: _Maker) -> _Maker:
        for name in names:
            MAKERS[name] = make
        return make

    return register


def default_config(config_class: type[Any], model_class: str = "") -> Any:
    """A full-size config of a whole model; a model class may need more of it than its family does."""
    make = MAKERS.get(config_class.__name__)
    given = {**ARGUMENTS.get(config_class.__name__, {}), **CLASS_ARGUMENTS.get(model_class, {})}
    config = config_class(**given) if make is None else make(config_class)
    _complete(config)
    return config


def _complete(config: Any) -> None:
    """Fill in the parts; backbones that need timm become ResNets, which the same models also take."""
    from transformers import PreTrainedConfig, ResNetConfig

    for name, part in list(vars(config).items()):
        if not isinstance(part, PreTrainedConfig):
            continue
        kind = type(part).__name__
        if kind == "TimmBackboneConfig":
            count = len(getattr(part, "out_indices", None) or [4])
            setattr(config, name, ResNetConfig(out_features=[f"stage{place}" for place in range(5 - count, 5)]))
        elif kind in ARGUMENTS:
            for key, value in ARGUMENTS[kind].items():
                setattr(part, key, value)
        _complete(part)


@maker("EncoderDecoderConfig")
def _encoder_decoder(config_class: type[Any]) -> Any:
    from transformers import BertConfig

    return config_class.from_encoder_decoder_configs(BertConfig(), BertConfig())


@maker("VisionEncoderDecoderConfig")
def _vision_encoder_decoder(config_class: type[Any]) -> Any:
    from transformers import BertConfig, ViTConfig

    return config_class.from_encoder_decoder_configs(ViTConfig(), BertConfig())


@maker("SpeechEncoderDecoderConfig")
def _speech_encoder_decoder(config_class: type[Any]) -> Any:
    from transformers import BertConfig, Wav2Vec2Config

    return config_class.from_encoder_decoder_configs(Wav2Vec2Config(), BertConfig())


@maker("VisionTextDualEncoderConfig")
def _vision_text(config_class: type[Any]) -> Any:
    from transformers import BertConfig, ViTConfig

    return config_class.from_vision_text_configs(ViTConfig(), BertConfig())


@maker("RagConfig")
def _rag(config_class: type[Any]) -> Any:
    from transformers import BartConfig, DPRConfig

    parts = (DPRConfig(), BartConfig())
    return config_class.from_question_encoder_generator_configs(*parts, n_docs=2)


@maker("NougatConfig")
def _nougat(config_class: type[Any]) -> Any:
    from transformers import DonutSwinConfig, MBartConfig

    decoder = MBartConfig(is_decoder=True, add_cross_attention=True)
    return config_class(encoder=DonutSwinConfig().to_dict(), decoder=decoder.to_dict())


@maker("Gemma4AssistantConfig")
def _assistant(config_class: type[Any]) -> Any:
    """An assistant has no embeddings per layer."""
    from transformers import Gemma4TextConfig

    return config_class(text_config=Gemma4TextConfig(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0))


@maker("ChameleonConfig")
def _chameleon(config_class: type[Any]) -> Any:
    """Its image tokens are found by their names in the vocabulary: letters in place of digits."""
    names = {f"IMGIMG{chr(65 + place // 10)}{chr(65 + place % 10)}Z": 20 + place for place in range(64)}
    return config_class(vocabulary_map={**names, "<image>": 90}, image_token_id=90)


@maker("Emu3Config")
def _emu3(config_class: type[Any]) -> Any:
    """Its image tokens are found by their names in the vocabulary, which end in six digits."""
    names = {f"<|visual token {place:06d}|>": 20 + place for place in range(64)}
    return config_class(vocabulary_map={**names, "<image>": 90, "<|extra_200|>": 91}, image_token_id=90)
