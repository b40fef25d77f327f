# SPDX-License-Identifier: Apache-2.0
"""From a name to a class and a config, and what the tiny config has less of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers as tf

from transporters import zoo
from transporters.errors import TransportersError, UsageError
from transporters.inputs.loading import load_config
from transporters.zoo.choosing import build_twin, choose
from transporters.zoo.classes import _sources, names
from transporters.zoo.differences import layer_kinds, layer_modules, shrunk

MIXED: dict[str, Any] = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "hidden_size": 640,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}


def folder(place: Path, config: dict[str, Any]) -> str:
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(place)


@pytest.mark.parametrize(
    ("given", "name", "config_class"),
    [
        ("llama", "LlamaForCausalLM", "LlamaConfig"),
        ("BertForTokenClassification", "BertForTokenClassification", "BertConfig"),
        ("DetrDecoder", "DetrDecoder", "DetrConfig"),
        ("exaone", "LlamaForCausalLM", "ExaoneConfig"),
    ],
)
def test_architectures_classes_and_parts_are_found(given: str, name: str, config_class: str) -> None:
    choice = choose(given)
    assert (choice.name, type(choice.config).__name__) == (name, config_class)
    assert choice.origin == f"the defaults of {config_class}"


def test_a_folder_gives_its_config_and_the_class_it_names(tmp_path: Path) -> None:
    named = folder(tmp_path / "named", {**MIXED, "architectures": ["Gemma3ForCausalLM"]})
    choice = choose(named)
    assert (choice.name, choice.config.hidden_size, choice.origin) == (
        "Gemma3ForCausalLM",
        640,
        f"the config of {named}",
    )
    bare = choose(folder(tmp_path / "bare", MIXED))
    assert bare.name == "Gemma3TextModel", "the base model when the config names no class"
    config, model_class = load_config(named)
    assert (type(config), model_class) == (tf.Gemma3TextConfig, tf.Gemma3ForCausalLM)


def test_a_folder_goes_before_an_architecture_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "bert", MIXED)
    (tmp_path / "llama").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    assert choose("bert").name == "Gemma3TextModel"
    assert choose("llama").name == "LlamaForCausalLM", "the folder holds no config"
    with pytest.raises(UsageError, match=r"has no config\.json"):
        choose("other")


def test_a_class_that_the_config_names_must_be_a_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model class 'LlamaTokenizer'"):
        choose(folder(tmp_path / "odd", {"model_type": "llama", "architectures": ["LlamaTokenizer"]}))


def test_the_tiny_model_follows_the_given_config() -> None:
    choice = choose("llama")
    choice.config.attention_bias = True
    model, inputs = build_twin(choice)
    again, _ = build_twin(choice)
    assert model.model.layers[0].self_attn.q_proj.bias is not None
    assert choice.config.hidden_size == 4096, "the config is left alone"
    assert set(inputs) == {"input_ids", "attention_mask"}
    for (name, one), (_, other) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert one.equal(other), name


def test_what_cannot_be_built_says_why() -> None:
    choice = choose("llama")
    choice.config.hidden_act = "no_such_function"
    with pytest.raises(TransportersError, match="LlamaForCausalLM cannot be built tiny from the defaults of"):
        build_twin(choice)


def test_the_difference_is_sizes_and_not_tokens() -> None:
    full = tf.Gemma3Config()
    found = {size.name: (size.full, size.tiny) for size in shrunk(full, zoo.tiny_config(full))}
    assert found["text_config.num_hidden_layers"] == (26, 2)
    assert found["vision_config.image_size"] == (224, 32)
    assert not [name for name in found if "token_id" in name or "index" in name]


def test_kinds_of_layers_are_counted_on_both_sides() -> None:
    full = tf.Gemma3TextConfig(num_hidden_layers=6)
    (kinds,) = layer_kinds(full, zoo.tiny_config(full))
    assert kinds.name == "layer_types"
    assert kinds.full == {"sliding_attention": 5, "full_attention": 1}
    assert kinds.tiny == {"sliding_attention": 1, "full_attention": 1}
    assert layer_kinds(tf.LlamaConfig(), zoo.tiny_config(tf.LlamaConfig())) == []


def test_layers_of_one_class_are_told_apart_by_their_parts() -> None:
    model = zoo.build("DeepseekV3Model")
    assert layer_modules(model) == {
        "layers": {"DeepseekV3DecoderLayer with DeepseekV3MLP": 1, "DeepseekV3DecoderLayer with DeepseekV3MoE": 1}
    }
    assert layer_modules(zoo.build("LlamaModel")) == {"layers": {"LlamaDecoderLayer": 2}}


def test_names_are_listed_without_loading_models() -> None:
    assert {"LlamaForCausalLM", "BertModel"} <= set(names())
    assert "LlamaConfig" not in names()


def test_every_class_is_found_by_the_text_that_defines_it() -> None:
    assert [entry.name for entry in zoo.classes() if entry.module not in _sources().get(entry.name, ())] == []
