# SPDX-License-Identifier: Apache-2.0
"""An export leaves the caller's model, configuration and inputs exactly as they were, also when it fails."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache

from tiny import build
from transporters import DynamoExporter
from transporters.errors import TransportersError
from transporters.inputs.samples import sample_inputs
from transporters.trees import pytrees


def picture(model):
    """All of a model that a caller could see: objects by identity, tensors by content too."""
    modules = {}
    for name, module in model.named_modules():
        attributes = {k: id(v) for k, v in vars(module).items()}
        tables = {k: list(v) for k, v in vars(module).items() if isinstance(v, dict)}
        modules[name] = (attributes, tables, module.training)
    tensors = {n: (id(t), t.data_ptr(), t.clone()) for n, t in [*model.named_parameters(), *model.named_buffers()]}
    return modules, tensors, copy.deepcopy(model.config.to_dict()), model.config._attn_implementation


def assert_same_picture(before, after):
    assert before[0] == after[0]
    assert before[2:] == after[2:]
    assert before[1].keys() == after[1].keys()
    for name, (identity, pointer, content) in before[1].items():
        assert (identity, pointer) == after[1][name][:2], name
        assert torch.equal(content, after[1][name][2]), name


def leaves_of(inputs):
    return {n: (id(t), t.clone()) for n, t in pytrees.named_leaves(inputs) if isinstance(t, torch.Tensor)}


@pytest.mark.model
@pytest.mark.parametrize("name", ["bert", "gemma3", "nllb_moe", "mamba", "qwen2_vl", "t5"])
def test_after_export_and_verification(name):
    model = build(name)
    inputs = sample_inputs(model)
    before, given = picture(model), leaves_of(inputs)
    DynamoExporter().export(model, inputs).verify()
    assert_same_picture(before, picture(model))
    after = leaves_of(inputs)
    assert all(given[n][0] == after[n][0] and torch.equal(given[n][1], after[n][1]) for n in given)


@pytest.mark.model
def test_a_cache_among_the_inputs_is_not_written_to():
    model = build("llama")
    cache = DynamicCache(config=model.config)
    ids = sample_inputs(model)["input_ids"]
    with torch.no_grad():
        model(input_ids=ids, cache=cache)
    keys = cache.layers[0].keys
    exported = DynamoExporter().export(model, {"input_ids": ids[:, :3], "cache": cache})
    exported(input_ids=ids[:, :3], cache=cache)
    assert cache.layers[0].keys is keys
    assert cache.get_seq_length() == ids.shape[1]


@pytest.mark.model
@pytest.mark.parametrize("failing", ["mlp", "lm_head"])
def test_after_a_failure_in_the_middle_of_the_trace(failing):
    model = build("llama")
    inputs = sample_inputs(model)
    victim = model.model.layers[1].mlp if failing == "mlp" else model.lm_head
    calls = 0

    def fail_while_tracing(*_):
        nonlocal calls
        calls += 1
        if torch.compiler.is_exporting():
            raise ValueError("deliberate")

    hook = victim.register_forward_hook(fail_while_tracing)
    before = picture(model)
    with pytest.raises(TransportersError, match="deliberate") as caught:
        DynamoExporter().export(model, inputs)
    assert caught.value.stage == "Dynamic shapes"
    assert calls
    assert_same_picture(before, picture(model))
    hook.remove()
    assert DynamoExporter().export(model, inputs).verify().verified


@pytest.mark.model
def test_exporting_a_second_and_third_time_gives_the_same():
    model = build("gemma3")
    inputs = sample_inputs(model)
    codes = [DynamoExporter().export(model, inputs).program.graph_module.code for _ in range(3)]
    assert codes[0] == codes[1] == codes[2]


@pytest.mark.model
@pytest.mark.parametrize("implementation", ["flex_attention", "flash_attention_2", "paged|sdpa"])
def test_untraceable_attention_is_swapped_and_put_back(implementation, monkeypatch):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = build("llama")
    inputs = sample_inputs(model)
    model.config._attn_implementation_internal = implementation
    # What the kernels compute is eager's business; that eager runs at all is what the preflight needs here.
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, implementation, ALL_ATTENTION_FUNCTIONS["sdpa"])
    monkeypatch.setattr("transporters.exporters.exporter_dynamo.preflight", lambda *_: None)
    exported = DynamoExporter().export(model, inputs)
    assert model.config._attn_implementation == implementation
    assert any(f"attention {implementation!r} is traced as 'sdpa'" in f.message for f in exported.run.findings)
    reference = build("llama")
    with torch.no_grad():
        expected = reference(**inputs).logits
    torch.testing.assert_close(exported(**inputs).logits, expected)
