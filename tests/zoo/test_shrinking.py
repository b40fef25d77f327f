# SPDX-License-Identifier: Apache-2.0
"""Tiny configs keep what a model is made of, and tiny weights show what is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from transporters import zoo
from transporters.errors import InputError
from transporters.inputs.samples import sample_inputs
from transporters.inputs.text import DEFAULT_LENGTH
from transporters.zoo import outcomes, parts, shrinking, sizes, weights
from transporters.zoo.tokens import TokenMap

SPREAD = (
    "ASTForAudioClassification",
    "BartForConditionalGeneration",
    "BertModel",
    "CLIPModel",
    "DeepseekV3ForCausalLM",
    "DetrForObjectDetection",
    "EncodecModel",
    "Gemma3ForConditionalGeneration",
    "GPT2LMHeadModel",
    "JambaForCausalLM",
    "LlamaForCausalLM",
    "LongformerModel",
    "Mamba2ForCausalLM",
    "MixtralForCausalLM",
    "PatchTSTForPrediction",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3NextForCausalLM",
    "ResNetForImageClassification",
    "SegformerForSemanticSegmentation",
    "SwinForImageClassification",
    "T5ForConditionalGeneration",
    "VideoMAEModel",
    "VitsModel",
    "Wav2Vec2ForCTC",
    "WhisperForConditionalGeneration",
)


def configs(config: Any) -> list[Any]:
    """A config and all its parts."""
    inner = [value for value in vars(config).values() if isinstance(value, tf.PreTrainedConfig)]
    return [config, *(found for part in inner for found in configs(part))]


# ── Sizes ──


@pytest.mark.parametrize("name", SPREAD)
def test_relations_hold_and_the_model_is_tiny(name: str) -> None:
    model = zoo.build(name)
    assert not model.training
    assert sum(parameter.numel() for parameter in model.parameters()) < outcomes.MOST_PARAMETERS
    for config in configs(model.config):
        attributes = vars(config)
        heads, groups = attributes.get("num_attention_heads"), attributes.get("num_key_value_heads")
        if isinstance(heads, int) and isinstance(groups, int):
            assert heads % groups == 0
        if isinstance(heads, int) and "head_dim" not in attributes and isinstance(attributes.get("hidden_size"), int):
            assert attributes["hidden_size"] % heads == 0
        depth = attributes.get("num_hidden_layers")
        if isinstance(depth, int) and attributes.get("layer_types") is not None:
            assert len(attributes["layer_types"]) == depth
        window = attributes.get("sliding_window")
        assert window is None or window < DEFAULT_LENGTH


def test_special_tokens_stay_inside_and_apart() -> None:
    tiny = zoo.tiny_config(tf.Qwen2VLConfig)
    special = [tiny.image_token_id, tiny.video_token_id, tiny.vision_start_token_id, tiny.vision_end_token_id]
    assert len(set(special)) == 4
    assert max(special) < tiny.text_config.vocab_size


def test_equal_tokens_stay_equal() -> None:
    tokens = TokenMap(64, {5})
    assert tokens.place(5) == 5
    assert tokens.place(50_000) == tokens.place(50_000) != tokens.place(50_001)


def test_tokens_that_do_not_fit_are_an_error() -> None:
    tokens = TokenMap(14, set())
    tokens.place(1000)
    with pytest.raises(ValueError, match="do not fit"):
        tokens.place(1001)


def test_groups_of_heads_keep_their_kind() -> None:
    grouped = zoo.tiny_config(tf.LlamaConfig(num_attention_heads=32, num_key_value_heads=8))
    single = zoo.tiny_config(tf.LlamaConfig(num_attention_heads=32, num_key_value_heads=1))
    full = zoo.tiny_config(tf.LlamaConfig(num_attention_heads=32))
    assert [c.num_attention_heads for c in (grouped, single, full)] == [4, 4, 4]
    assert [c.num_key_value_heads for c in (grouped, single, full)] == [2, 1, 4]


def test_a_head_that_is_wider_than_its_share_stays_so() -> None:
    tiny = zoo.tiny_config(tf.Gemma3TextConfig)
    assert tiny.head_dim * tiny.num_attention_heads != tiny.hidden_size


def test_sections_have_the_right_sum() -> None:
    assert shrinking.sections([16, 24, 24], 4) == [2, 1, 1]
    assert shrinking.sections([22, 22, 20], 4) == [1, 1, 2], "height and width stay equal"
    rope = zoo.tiny_config(tf.Qwen2VLConfig).text_config.rope_parameters
    assert sum(rope["mrope_section"]) == sizes.WIDTH // sizes.HEADS // 2


# ── Layers ──


@pytest.mark.parametrize(
    "config_class", [tf.Gemma3TextConfig, tf.Qwen3NextConfig, tf.Gemma3nTextConfig, tf.DeepseekV3Config, tf.Lfm2Config]
)
def test_every_kind_of_layer_stays(config_class: type[Any]) -> None:
    full, tiny = config_class(), zoo.tiny_config(config_class)
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(full, name, None):
            assert set(getattr(tiny, name)) == set(getattr(full, name))
    assert 2 <= tiny.num_hidden_layers < full.num_hidden_layers


def test_experts_stay_experts() -> None:
    tiny = zoo.tiny_config(tf.MixtralConfig)
    assert (tiny.num_local_experts, tiny.num_experts_per_tok) == (4, 2)


def test_layers_with_sizes_of_their_own_take_them_along() -> None:
    tiny = zoo.tiny_config(tf.Gemma4TextConfig)
    wide = tiny.layer_types.index("full_attention")
    narrow = tiny.layer_types.index("sliding_attention")
    assert tiny.per_layer_config[wide].head_dim == 2 * tiny.per_layer_config[narrow].head_dim


# ── An existing config ──


def test_choices_of_a_config_object_stay_and_the_object_too() -> None:
    full = tf.LlamaConfig(hidden_act="gelu", tie_word_embeddings=True, attention_bias=True, rms_norm_eps=1e-3)
    before = full.to_dict()
    tiny = zoo.tiny_config(full)
    assert full.to_dict() == before
    assert type(tiny) is tf.LlamaConfig
    choices = ("hidden_act", "tie_word_embeddings", "attention_bias", "rms_norm_eps", "mlp_bias")
    assert [getattr(tiny, name) for name in choices] == [getattr(full, name) for name in choices]
    assert tiny.hidden_size == sizes.WIDTH


def test_a_tiny_config_survives_saving(tmp_path: Any) -> None:
    tiny = zoo.tiny_config(tf.Qwen2VLConfig)
    tiny.save_pretrained(tmp_path)
    assert tf.AutoConfig.from_pretrained(tmp_path).text_config.to_dict() == tiny.text_config.to_dict()


def test_backbones_that_need_timm_become_resnets() -> None:
    assert zoo.tiny_config(zoo.build("DetrModel").config).backbone_config.model_type == "resnet"


# ── Weights ──


def test_the_same_name_gives_the_same_weights() -> None:
    state = torch.get_rng_state()
    first, second = zoo.build("MixtralForCausalLM"), zoo.build("MixtralForCausalLM")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values()))
    other = zoo.build("MixtralModel")
    assert not torch.equal(first.model.embed_tokens.weight, other.embed_tokens.weight)


@pytest.mark.parametrize("name", ["BertModel", "LlamaForCausalLM", "ResNetForImageClassification", "Mamba2ForCausalLM"])
def test_no_weight_is_constant_or_narrow(name: str) -> None:
    for key, parameter in zoo.build(name).named_parameters():
        assert parameter.isfinite().all()
        assert parameter.numel() < 2 or float(parameter.detach().std()) > 0.02, key


def test_uninitialised_memory_becomes_weights() -> None:
    class Forgotten(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(4, 4))

    found = []
    for _ in range(2):
        with weights.seeded(1):
            module = Forgotten()
            weights.perturb(module)
        found.append(module.weight)
    assert found[0].isfinite().all()
    assert torch.equal(*found)
    assert not torch.are_deterministic_algorithms_enabled()


# ── Parts ──


def test_a_part_gets_what_its_whole_passes_to_it() -> None:
    part, inputs = zoo.build_with_inputs("DetrDecoder")
    assert type(part).__name__ == "DetrDecoder"
    assert part(**inputs).last_hidden_state.isfinite().all()


def test_a_part_that_is_not_there_or_not_called_is_an_error() -> None:
    whole = zoo.build("BertForMaskedLM")
    with pytest.raises(LookupError, match="has no"):
        parts.inside(whole, "DetrDecoder")
    with pytest.raises(LookupError, match="does not call"):
        parts.passed(whole, sample_inputs(whole), torch.nn.Linear(1, 1))


def test_an_outcome_says_what_is_wrong() -> None:
    assert outcomes.outcome("BertModel") == ""
    assert "timm" in outcomes.outcome("TimmBackbone")
    with pytest.raises(InputError):
        zoo.build_with_inputs("BertModel", batch=0)
