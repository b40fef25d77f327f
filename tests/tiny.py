# SPDX-License-Identifier: Apache-2.0
"""Seeded tiny random models, built so that a graph that drops a feature gives visibly other outputs.

Weights are drawn wide (0.2 in place of 0.02), and every norm weight and bias gets noise: with default initialisation a
lost mask or expert moves the output by less than a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from transformers import PreTrainedModel

SEED = 0
WIDE = 0.2

BODY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": WIDE,
}
TEXT = {**BODY, "vocab_size": 99}
_GROUPED = {**TEXT, "num_key_value_heads": 2}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}

TINY: dict[str, Callable[[], PreTrainedModel]] = {}

_Builder = Callable[[], PreTrainedModel]


def registered_in(models: dict[str, _Builder]) -> Callable[[_Builder], _Builder]:
    """A decorator that puts a builder into ``models`` under its name."""

    def register(builder: _Builder) -> _Builder:
        """Its models are seeded, noisy and in evaluation mode."""

        def build() -> PreTrainedModel:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                model = builder()
                _add_noise(model)
            return model.eval()

        models[builder.__name__] = build
        return build

    return register


_tiny = registered_in(TINY)


def build(name: str) -> PreTrainedModel:
    """A fresh model of `TINY` or `tiny_more.MORE`; the same weights every time."""
    if name in TINY:
        return TINY[name]()
    from tiny_more import MORE  # which takes this module's helpers

    return MORE[name]()


def _add_noise(model: PreTrainedModel) -> None:
    """Give norm weights and all biases values that matter, and batch norms a past."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            owner = name.rpartition(".")[0].rpartition(".")[2].lower()
            is_norm = "norm" in owner or owner.startswith("ln_")
            if name.endswith("bias") or (is_norm and parameter.ndim == 1):
                parameter += 0.1 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.1 * torch.randn_like(buffer)
            if name.endswith("running_var"):
                buffer *= 0.8 + 0.4 * torch.rand_like(buffer)


@_tiny
def bert() -> PreTrainedModel:
    return tf.BertModel(tf.BertConfig(**TEXT))


@_tiny
def gpt2() -> PreTrainedModel:
    config = tf.GPT2Config(
        vocab_size=99,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        initializer_range=WIDE,
        bos_token_id=1,
        eos_token_id=2,
    )
    return tf.GPT2LMHeadModel(config)


@_tiny
def llama() -> PreTrainedModel:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**_GROUPED))


@_tiny
def qwen3() -> PreTrainedModel:
    return tf.Qwen3ForCausalLM(tf.Qwen3Config(**_GROUPED, head_dim=16))


@_tiny
def gemma3() -> PreTrainedModel:
    layers = ["sliding_attention", "full_attention"]
    return tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**_GROUPED, head_dim=8, sliding_window=4, layer_types=layers))


@_tiny
def mixtral() -> PreTrainedModel:
    return tf.MixtralForCausalLM(tf.MixtralConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2))


@_tiny
def qwen3_moe() -> PreTrainedModel:
    config = tf.Qwen3MoeConfig(
        **_GROUPED, head_dim=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=1
    )
    return tf.Qwen3MoeForCausalLM(config)


@_tiny
def nllb_moe() -> PreTrainedModel:
    config = tf.NllbMoeConfig(
        **SEQ2SEQ, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2, init_std=WIDE, expert_capacity=64
    )
    return tf.NllbMoeForConditionalGeneration(config)


@_tiny
def mamba() -> PreTrainedModel:
    config = tf.MambaConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8, intermediate_size=64, initializer_range=WIDE
    )
    return tf.MambaForCausalLM(config)


@_tiny
def t5() -> PreTrainedModel:
    """Factor 1: a larger one drowns the relative bias, which is drawn from N(0, 2)."""
    config = tf.T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        decoder_start_token_id=0,
        initializer_factor=1.0,
    )
    model = tf.T5ForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            torch.nn.init.normal_(parameter, std=2.0)
    return model


@_tiny
def bart() -> PreTrainedModel:
    return tf.BartForConditionalGeneration(tf.BartConfig(**SEQ2SEQ, max_position_embeddings=64, init_std=WIDE))


@_tiny
def whisper() -> PreTrainedModel:
    config = tf.WhisperConfig(
        **SEQ2SEQ,
        num_mel_bins=16,
        max_source_positions=30,
        max_target_positions=40,
        init_std=WIDE,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return tf.WhisperForConditionalGeneration(config)


@_tiny
def wav2vec2() -> PreTrainedModel:
    config = tf.Wav2Vec2Config(
        **{**TEXT, "vocab_size": 32},
        conv_dim=(16, 16, 16),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        num_feat_extract_layers=3,
    )
    return tf.Wav2Vec2ForCTC(config)


@_tiny
def vit() -> PreTrainedModel:
    return tf.ViTModel(tf.ViTConfig(**BODY, image_size=32, patch_size=8))


@_tiny
def swin() -> PreTrainedModel:
    config = tf.SwinConfig(
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        initializer_range=WIDE,
    )
    return tf.SwinModel(config)


@_tiny
def detr() -> PreTrainedModel:
    backbone = tf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    sizes = {name: value for name, value in SEQ2SEQ.items() if name != "vocab_size"}
    config = tf.DetrConfig(
        **sizes,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone_config=backbone,
        backbone=None,
        num_queries=6,
        init_std=WIDE,
    )
    return tf.DetrForObjectDetection(config)


@_tiny
def clip() -> PreTrainedModel:
    config = tf.CLIPConfig(
        text_config={
            **TEXT,
            "max_position_embeddings": 40,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "projection_dim": 16,
        },
        vision_config={**BODY, "image_size": 32, "patch_size": 8, "projection_dim": 16},
        projection_dim=16,
        initializer_factor=5.0,
    )
    return tf.CLIPModel(config)


@_tiny
def qwen2_vl() -> PreTrainedModel:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 32,
        "num_heads": 4,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "initializer_range": WIDE,
    }
    config = tf.Qwen2VLConfig(
        text_config={**_GROUPED, "rope_parameters": rope},
        vision_config=vision,
        image_token_id=5,
        video_token_id=6,
        vision_start_token_id=7,
        vision_end_token_id=8,
    )
    return tf.Qwen2VLForConditionalGeneration(config)
