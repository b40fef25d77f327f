# SPDX-License-Identifier: Apache-2.0
"""What broke for users of other exporters, each as a tiny model. A recipe first shows that it is not blind."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from tiny import build
from transporters import DynamoExporter, ExportedModel

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
WIDE = {**SMALL, "num_key_value_heads": 2, "initializer_range": 0.2}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

pytestmark = pytest.mark.model


def make(model_class, config):
    torch.manual_seed(0)
    return model_class(config).eval()


def ids(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 99, (batch, length), generator=generator)


def text(batch, length, seed=0):
    return {"input_ids": ids(batch, length, seed), "attention_mask": torch.ones(batch, length, dtype=torch.long)}


def eager(model, **inputs):
    with torch.no_grad():
        return model(**inputs)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


ROPE = {
    "dynamic": lambda: make(
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            **WIDE,
            max_position_embeddings=16,
            rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
        ),
    ),
    "longrope": lambda: make(
        transformers.Phi3ForCausalLM,
        transformers.Phi3Config(
            **WIDE,
            **SPECIAL,
            max_position_embeddings=64,
            original_max_position_embeddings=16,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 16,
                "short_factor": [1.0] * 4,
                "long_factor": [3.0, 5.0, 7.0, 9.0],
            },
        ),
    ),
}


@pytest.mark.parametrize("kind", ROPE)
def test_rope_scaling_that_switches_on_length(kind):
    """Right on both sides of the switch, in any order, and the model's own tables are unhurt."""
    model = ROPE[kind]()
    tables = {n: b.clone() for n, b in model.named_buffers()}
    exported = DynamoExporter().export(model, text(2, 7))
    assert any("RoPE scaling" in f.message for f in exported.run.findings)
    for length in (40, 7, 16, 17, 3):
        inputs = text(2, length, seed=length)
        close(exported(**inputs).logits, eager(ROPE[kind](), **inputs).logits)
    assert all(torch.equal(tables[n], b) for n, b in model.named_buffers())
    unscaled = ROPE[kind]()
    unscaled.model.rotary_emb.rope_type = "default"
    inputs = text(2, 40)
    moved = (eager(unscaled, **inputs).logits - eager(ROPE[kind](), **inputs).logits).abs().max()
    assert moved > 1e-2, "the test is blind: the scaling does not matter"


def test_a_mask_of_ones_in_the_sample_does_not_switch_padding_off():
    model = build("llama")
    exported = DynamoExporter().export(model, text(2, 7))
    inputs = text(3, 11)
    inputs["attention_mask"][0, :6] = 0
    inputs["attention_mask"][1, :1] = 0
    close(exported(**inputs).logits[0, 6:], eager(model, **inputs).logits[0, 6:])
    alone = eager(model, input_ids=inputs["input_ids"][:1, 6:]).logits[0]
    close(exported(**inputs).logits[0, 6:], alone)


def test_a_row_that_is_padding_altogether_gives_no_nan():
    model = build("llama")
    exported = DynamoExporter().export(model, text(2, 7))
    inputs = text(3, 5)
    inputs["attention_mask"][1] = 0
    actual, expected = exported(**inputs).logits, eager(model, **inputs).logits
    assert actual.isfinite().all()
    close(actual[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("with_mask", [True, False])
def test_attention_kinds_with_and_without_a_mask(attention, with_mask):
    model = build("llama")
    model.set_attn_implementation(attention)
    inputs = text(2, 7) if with_mask else {"input_ids": ids(2, 7)}
    exported = DynamoExporter().export(model, inputs)
    for batch, length in ((1, 1), (3, 40)):
        new = text(batch, length) if with_mask else {"input_ids": ids(batch, length)}
        close(exported(**new).logits, eager(model, **new).logits)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 19])
def test_prompts_around_the_sliding_window(length):
    model = build("gemma3")
    exported = DynamoExporter().export(model, text(2, 7))
    inputs = text(3, length)
    expected, actual = eager(model, **inputs), exported(**inputs)
    close(actual.logits, expected.logits)
    for mine, theirs in zip(actual.cache.layers, expected.cache.layers, strict=True):
        close(mine.keys, theirs.keys)
        assert mine.get_seq_length() == theirs.get_seq_length() == length


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_a_cache_as_input(name, tmp_path):
    """Three more tokens after six; then fed back for four steps, from the loaded artifact."""
    model = build(name)
    cache = eager(model, input_ids=ids(2, 6)).cache
    sample = {"input_ids": ids(2, 3, 1), "attention_mask": torch.ones(2, 9, dtype=torch.long), "cache": cache}
    exported = DynamoExporter().export(model, sample)
    assert exported.verify().verified
    loaded = ExportedModel.load(exported.save(tmp_path / name))
    theirs = eager(model, input_ids=ids(3, 9, 2)).cache
    mine = eager(model, input_ids=ids(3, 9, 2)).cache
    for step in range(4):
        token = ids(3, 2, 10 + step)
        mask = torch.ones(3, 9 + 2 * (step + 1), dtype=torch.long)
        actual = loaded(input_ids=token, attention_mask=mask, cache=mine)
        expected = eager(model, input_ids=token, attention_mask=mask, cache=theirs)
        close(actual.logits, expected.logits)
        mine, theirs = actual.cache, expected.cache


def test_a_static_cache_as_input():
    model = build("llama")
    kv_heads, head_dim = model.config.num_key_value_heads, model.config.head_dim

    def fresh():
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        cache.early_initialization(2, kv_heads, head_dim, torch.float32, torch.device("cpu"))
        return cache

    exported = DynamoExporter().export(model, {"input_ids": ids(2, 5), "cache": fresh()})
    capacity = {a.label: a for a in exported.contract.axes}["capacity"]
    assert (capacity.dynamic, capacity.cause) == (False, "config")
    mine, theirs = fresh(), fresh()
    for length in (5, 1, 3):
        actual = exported(input_ids=ids(2, length), cache=mine)
        expected = eager(model, input_ids=ids(2, length), cache=theirs)
        close(actual.logits, expected.logits)
        mine, theirs = actual.cache, expected.cache


def test_an_encoder_decoder_cache_as_input():
    model = build("t5")
    first = eager(model, **text(2, 7), decoder_input_ids=ids(2, 5))
    sample = {
        "encoder_outputs": transformers.modeling_outputs.BaseModelOutput(first.encoder_last_hidden_state),
        "attention_mask": torch.ones(2, 7, dtype=torch.long),
        "decoder_input_ids": ids(2, 3),
        "cache": first.cache,
    }
    assert DynamoExporter().export(model, sample).verify().verified


class Passing(nn.Module):
    """An output that is an input, another input's name as an output, and keys out of order."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x, y):
        return {"z": x * self.scale, "x": x, "a": y + 1, "y": x - 1}


def test_outputs_keep_their_names_and_order(tmp_path):
    model = Passing().eval()
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    exported = DynamoExporter().export(model, {"y": y, "x": x})
    for program in (exported, ExportedModel.load(exported.save(tmp_path / "p"))):
        outputs = program(x=x, y=y)
        assert list(outputs) == ["z", "x", "a", "y"] == [entry["name"] for entry in program.outputs]
        close(outputs["z"], 3 * x)
        close(outputs["x"], x)
        close(outputs["a"], y + 1)
        close(outputs["y"], x - 1)


class Masking(nn.Module):
    """Changes its mask in place, as GroundingDINO does."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x, mask):
        mask |= x > 0.5
        return {"y": torch.where(mask, x * self.scale, 0.0)}


def test_an_input_that_the_model_changes_in_place_is_the_callers_still():
    x, mask = torch.rand(3, 4), torch.zeros(3, 4, dtype=torch.bool)
    exported = DynamoExporter().export(Masking().eval(), {"x": x, "mask": mask})
    first, second = exported(x=x, mask=mask)["y"], exported(x=x, mask=mask)["y"]
    assert not mask.any()
    close(first, second)
    close(first, torch.where(x > 0.5, 3 * x, 0.0))


def test_sequence_classification_takes_the_last_real_token():
    config = transformers.LlamaConfig(**WIDE, pad_token_id=0)
    model = make(transformers.LlamaForSequenceClassification, config)
    exported = DynamoExporter().export(model, text(2, 7))
    for side in ("left", "right"):
        inputs = text(3, 9)
        columns = slice(0, 4) if side == "left" else slice(5, 9)
        inputs["input_ids"][0, columns] = 0
        inputs["attention_mask"][0, columns] = 0
        close(exported(**inputs).logits, eager(model, **inputs).logits)
