# SPDX-License-Identifier: Apache-2.0
"""Attention and norms as ONNX Runtime's own operators: the program stays right wherever the operator takes it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import tiny
from transporters import AutoExporter
from transporters.clients.onnx_fusing import fuse_attention, fuse_norms
from transporters.trees import pytrees
from transporters.zoo import build


def operators(exported: Any) -> Counter[str]:
    return Counter(node.op_type for node in exported.program.graph)


def first_row(exported: Any) -> dict[str, Any]:
    given = exported.sample_inputs.items()
    return exported.complete_inputs({name: pytrees.map_named(lambda _, leaf: leaf[:1], tree) for name, tree in given})


def in_long_buffers(step: dict[str, Any]) -> dict[str, Any]:
    """The same step, with a cache that has room for five tokens more, in which anything may stand."""
    room = lambda _, leaf: torch.cat([leaf, torch.full_like(leaf[:, :, :5], 1e3)], dim=2)  # noqa: E731
    return {**step, "past_key_values": pytrees.map_named(room, step["past_key_values"])}


@pytest.mark.model
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "Qwen3ForCausalLM", "PhiForCausalLM"])
def test_a_fused_decoder_is_right(name: str) -> None:
    """Heads that are shared, heads that are not, norms of heads, rotations of a part."""
    model = build(name)
    exported = AutoExporter.from_format("onnx").export_for_generation(model)
    layers, outputs = model.config.num_hidden_layers, [entry["name"] for entry in exported.outputs]
    before, step = operators(exported), first_row(exported)
    expected = exported.runner.run(step)[0]
    fused = fuse_attention(exported.program, exported.cache_contract)
    assert operators(exported) == before
    exported.program, exported._runner = fused, None
    torch.testing.assert_close(exported.runner.run(step)[0], expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(exported.runner.run(in_long_buffers(step))[0], expected, rtol=1e-5, atol=1e-4)
    found = operators(exported)
    assert found["GroupQueryAttention"] == layers
    assert not found["Softmax"]
    assert [value.name for value in exported.program.graph.outputs] == outputs
    report = exported.verify(model=model)
    refused = "batch_size must be 1 when sequence_length > 1 and past context is given"
    right = {variation.name for variation in report.variations if variation.status == "verified"}
    assert right >= {"batch 1", "length 1", "past 0", "greedy generation"}
    assert all(variation.name in right or refused in variation.detail for variation in report.variations)


@pytest.mark.model
def test_norms_are_divisions() -> None:
    model = tiny.build("llama")
    exported = AutoExporter.from_format("onnx").export_for_generation(model)
    count = 2 * model.config.num_hidden_layers + 1
    assert operators(exported)["Reciprocal"] == count
    assert fuse_norms(exported.program) == count
    assert (operators(exported)["Reciprocal"], operators(exported)["Div"]) == (0, count)
    assert exported.verify(model=model).verified


@pytest.mark.model
@pytest.mark.parametrize("name", ["MistralForCausalLM", "BloomForCausalLM", "Gemma2ForCausalLM"])
def test_other_attention_stays_as_it_is(name: str) -> None:
    """A window, a bias of its own, a cap on the scores."""
    exported = AutoExporter.from_format("onnx").export_for_generation(build(name))
    before = operators(exported)
    assert fuse_attention(exported.program, exported.cache_contract) is None
    assert operators(exported) == before
