# SPDX-License-Identifier: Apache-2.0
"""What is refused, and what is noted, before a trace begins."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tiny import build
from transporters import DynamoExporter
from transporters.errors import InputError
from transporters.exporters.prepare import prepare
from transporters.exporters.run import ExportRun
from transporters.inputs.samples import sample_inputs


def export(model, inputs, **config):
    return DynamoExporter().export(model, inputs, config)


def messages(exported):
    return [f"{f.level} {f.where}: {f.message}" for f in exported.run.findings]


@pytest.fixture
def bert():
    return build("bert")


@pytest.fixture
def inputs(bert):
    return sample_inputs(bert)


def test_labels_are_refused(bert, inputs):
    with pytest.raises(InputError, match=r"'labels'.*loss") as caught:
        export(bert, {**inputs, "labels": torch.tensor([0, 1])})
    assert "leave 'labels' out" in caught.value.advice


def test_training_mode_is_refused(bert, inputs):
    with pytest.raises(InputError, match="training mode") as caught:
        export(bert.train(), inputs)
    assert "model.eval()" in caught.value.advice


def test_one_submodule_in_training_mode_is_named(bert, inputs):
    bert.encoder.layer[1].attention.train()
    with pytest.raises(InputError, match=r"encoder\.layer\.1\.attention"):
        export(bert, inputs)


def test_unknown_argument_names_the_nearest(bert, inputs):
    with pytest.raises(InputError, match="'atention_mask'") as caught:
        export(bert, {"input_ids": inputs["input_ids"], "atention_mask": inputs["attention_mask"]})
    assert "attention_mask" in caught.value.advice


def test_float_ids_are_refused(bert, inputs):
    with pytest.raises(InputError, match="input_ids has dtype float32") as caught:
        export(bert, {**inputs, "input_ids": inputs["input_ids"].float()})
    assert "input_ids.long()" in caught.value.advice


def test_inputs_that_eager_refuses_are_refused_with_its_words(bert, inputs):
    with pytest.raises(InputError, match="the model itself fails on the sample inputs: IndexError"):
        export(bert, {**inputs, "input_ids": inputs["input_ids"] + 1_000_000})


@pytest.mark.parametrize("given", [[1, 2], torch.ones(2, 3), "text"])
def test_inputs_must_be_a_mapping(bert, given):
    with pytest.raises(InputError, match="not a mapping"):
        export(bert, given)


def test_no_tensor_at_all(bert):
    with pytest.raises(InputError, match="no tensor"):
        export(bert, {"return_dict": True})


def test_a_model_without_weights(inputs):
    with torch.device("meta"):
        from transformers import BertConfig, BertModel

        model = BertModel(BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2)).eval()
    with pytest.raises(InputError, match="meta device"):
        export(model, inputs)


def test_something_that_is_no_model(inputs):
    with pytest.raises(InputError, match="not a model"):
        export("bert", inputs)


@pytest.mark.model
def test_the_same_tensor_twice_stays_two_inputs(bert, inputs):
    ones = torch.ones_like(inputs["input_ids"])
    exported = export(bert, {"input_ids": inputs["input_ids"], "attention_mask": ones, "token_type_ids": ones})
    assert any("is the same tensor object as attention_mask" in m for m in messages(exported))
    mask = ones.clone()
    mask[0, 4:] = 0
    types = torch.zeros_like(ones)
    with torch.no_grad():
        expected = bert(input_ids=inputs["input_ids"], attention_mask=mask, token_type_ids=types)
        merged = bert(input_ids=inputs["input_ids"], attention_mask=mask, token_type_ids=mask)
    actual = exported(input_ids=inputs["input_ids"], attention_mask=mask, token_type_ids=types)
    torch.testing.assert_close(actual.last_hidden_state, expected.last_hidden_state)
    assert (merged.last_hidden_state - expected.last_hidden_state).abs().max() > 1e-3, "the test is blind"


@pytest.mark.model
def test_an_ignored_argument_stays_an_input(bert, inputs):
    class Ignoring(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x, unused):
            return {"y": self.layer(x)}

    exported = export(Ignoring().eval(), {"x": torch.rand(2, 3), "unused": torch.rand(2, 5)})
    assert any("unused: the model ignores this argument" in m for m in messages(exported))
    assert [entry["name"] for entry in exported.inputs] == ["x", "unused"]
    assert exported(x=torch.rand(4, 3), unused=torch.rand(4, 5))["y"].shape == (4, 3)


@pytest.mark.model
def test_random_outputs_are_noted():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return {"y": x * self.scale + torch.rand_like(x)}

    found = messages(export(Noisy().eval(), {"x": torch.rand(2, 3)}))
    assert any(m.startswith("warning y: differs between two eager runs") for m in found)
    assert any("aten.rand_like" in m and "is random" in m for m in found)


@pytest.mark.model
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_inputs_follow_the_models_dtype(dtype):
    model = build("vit").to(dtype)
    exported = export(model, {"pixel_values": torch.rand(2, 3, 32, 32)})
    assert any("pixel_values: cast from torch.float32" in m for m in messages(exported))
    assert exported.inputs[0]["dtype"] == str(dtype).removeprefix("torch.")
    assert exported.verify().verified


@pytest.mark.model
def test_the_old_name_of_the_cache_is_understood():
    model = build("llama")
    ids = sample_inputs(model)["input_ids"]
    with torch.no_grad():
        cache = model(input_ids=ids).cache
    exported = export(model, {"input_ids": ids[:, :2], "past_key_values": cache})
    assert any("passed on as 'cache'" in m for m in messages(exported))
    assert {e["name"].split(".")[0] for e in exported.inputs} == {"input_ids", "cache"}


@pytest.mark.model
def test_flags_become_constants_of_the_program():
    model = build("llama")
    inputs = sample_inputs(model)
    exported = export(model, {**inputs, "use_cache": False, "logits_to_keep": 1, "output_hidden_states": True})
    outputs = exported(**inputs)
    assert "cache" not in outputs
    assert outputs.logits.shape[1] == 1
    assert len(outputs.hidden_states) == model.config.num_hidden_layers + 1
    assert "hidden_states.2" in [entry["name"] for entry in exported.outputs]
    assert exported.verify().verified


def test_an_argument_that_only_a_layer_takes_is_passed_on():
    """Swin's layers read ``always_partition`` from ``**kwargs``, which its own signature does not name."""
    model = build("swin")
    given = sample_inputs(model)
    prepared = prepare(model, {**given, "always_partition": True}, ExportRun("dynamo"))
    assert prepared.constants == {"always_partition": True}
    with pytest.raises(InputError, match="no argument 'always_partitioned'"):
        prepare(model, {**given, "always_partitioned": True}, ExportRun("dynamo"))
