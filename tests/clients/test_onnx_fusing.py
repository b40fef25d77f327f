# SPDX-License-Identifier: Apache-2.0
"""Attention and norms as ONNX Runtime's own operators: the program stays right wherever the operator takes it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import transformers

import tiny
from transporters import AutoExporter
from transporters.clients.onnx_fusing import fuse_attention, fuse_norms
from transporters.clients.onnx_packing import pack
from transporters.trees import pytrees
from transporters.zoo import build, weights


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


#: Of every layer: rotations in the attention, attentions that take one product, and residuals in a norm.
PACKED = {
    "LlamaForCausalLM": (1, 1, 2),
    "Qwen2ForCausalLM": (1, 1, 2),
    "Qwen3ForCausalLM": (1, 0, 2),
    "PhiForCausalLM": (0, 0, 0),
    "GPT2LMHeadModel": (0, 0, 0),
}


def with_heads_of(size: int, name: str) -> Any:
    """A tiny model with other heads than those of the zoo."""
    config = build(name).config
    config.hidden_size, config.head_dim = size * config.num_attention_heads, size
    with weights.seeded(0):
        model = getattr(transformers, name)(config).eval()
        weights.perturb(model)
    return model


def packed(exported: Any, context: int) -> Counter[str]:
    """Put a packed program into a decoder's export; gives its operators, and what its attentions do."""
    fused = fuse_attention(exported.program, exported.cache_contract)
    fuse_norms(fused)
    pack(fused, context)
    exported.program, exported._runner = fused, None
    found = operators(exported)
    for node in fused.graph:
        if node.op_type == "GroupQueryAttention":
            found["rotations"] += node.attributes.get_int("do_rotary", 0)
            found["products"] += node.inputs[1] is None
    return found


@pytest.mark.model
@pytest.mark.parametrize("name", list(PACKED))
def test_packed_layers_are_right(name: str) -> None:
    """Without biases, with them, with norms of heads, with rotations of a part, with positions that are learned."""
    model = with_heads_of(16, name)
    exported = AutoExporter.from_format("onnx").export_for_generation(model)
    step = first_row(exported)
    expected = exported.runner.run(step)[0]
    found = packed(exported, context=64)
    layers = model.config.num_hidden_layers
    kinds = ("rotations", "products", "SkipSimplifiedLayerNormalization")
    assert [found[kind] for kind in kinds] == [layers * count for count in PACKED[name]]
    torch.testing.assert_close(exported.runner.run(step)[0], expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(exported.runner.run(in_long_buffers(step))[0], expected, rtol=1e-5, atol=1e-4)
    right = {one.name for one in exported.verify(model=model).variations if one.status == "verified"}
    # Without a past, a verification begins at a later position all the same: the operator, which counts, at the first.
    assert right >= {"batch 1", "length 1", "greedy generation", *(["past 0"] if not found["rotations"] else [])}


@pytest.mark.model
@pytest.mark.parametrize(
    ("size", "scaling", "context"), [(8, "default", 64), (16, "dynamic", 64), (16, "default", 2**22)]
)
def test_other_rotations_stay_as_they_are(size: int, scaling: str, context: int) -> None:
    """Heads that the operator does not rotate, angles that change with the length, tables that are too large."""
    model = with_heads_of(size, "LlamaForCausalLM")
    if scaling != "default":
        model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": scaling, "factor": 2.0}
        model = type(model)(model.config).eval()
    exported = AutoExporter.from_format("onnx").export_for_generation(model)
    found = packed(exported, context)
    assert (found["rotations"], found["products"]) == (0, 0)
    right = {one.name for one in exported.verify(model=model).variations if one.status == "verified"}
    assert right >= {"batch 1", "length 1", "past 0", "greedy generation"}


@pytest.mark.model
@pytest.mark.parametrize("name", ["MistralForCausalLM", "BloomForCausalLM", "Gemma2ForCausalLM"])
def test_other_attention_stays_as_it_is(name: str) -> None:
    """A window, a bias of its own, a cap on the scores."""
    exported = AutoExporter.from_format("onnx").export_for_generation(build(name))
    before = operators(exported)
    assert fuse_attention(exported.program, exported.cache_contract) is None
    assert operators(exported) == before
