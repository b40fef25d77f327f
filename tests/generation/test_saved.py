# SPDX-License-Identifier: Apache-2.0
"""A decoder as an artifact: what its manifest says, what it weighs, and that it generates once it is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from transporters import AutoExporter, ExportedModel
from transporters.zoo import build

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("generation")]

GREEDY: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.mark.parametrize("export_format", ["torch", "onnx"])
def test_saved_and_loaded(export_format: str, model: Any, program: Any, text: Any, tmp_path: Path) -> None:
    eager = model("Gemma3ForCausalLM")
    exported = program("Gemma3ForCausalLM", export_format)
    exported.save(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert manifest["model_class"].endswith(":Gemma3ForCausalLM")
    layers = manifest["cache_contract"]["layers"]
    assert [layer["kind"] for layer in layers] == ["window", "full"]
    first = layers[0]["tensors"][0]
    assert first == {
        "input": "past_key_values.0.key",
        "output": "present.0.key",
        "dtype": "float32",
        "shape": ["batch", 2, "window", 16],
        "window": 4,
    }
    again = ExportedModel.load(tmp_path / "out")
    ids = text(eager, 2, 7)
    assert again.generate(ids, **GREEDY).tolist() == eager.generate(ids, **GREEDY).tolist()
    assert again.verify(model=eager).verified


def test_names_that_clients_know(program: Any) -> None:
    graph = program("llama", "onnx").program.graph
    assert [value.name for value in graph.inputs] == [
        "input_ids",
        "attention_mask",
        "position_ids",
        *(f"past_key_values.{layer}.{part}" for layer in (0, 1) for part in ("key", "value")),
    ]
    assert [value.name for value in graph.outputs] == [
        "logits",
        *(f"present.{layer}.{part}" for layer in (0, 1) for part in ("key", "value")),
    ]
    sizes = {value.name: [str(size) for size in value.shape] for value in graph.inputs}
    assert sizes["attention_mask"] == ["batch", "total_sequence"]
    assert sizes["past_key_values.1.key"] == ["batch", "2", "past_sequence", "8"]
    hybrid = program("FalconH1ForCausalLM", "onnx").program.graph
    names = {value.name for value in (*hybrid.inputs, *hybrid.outputs)}
    assert {"past_conv.0", "past_ssm.1", "present_conv.1", "present_ssm.0", "past_key_values.0.key"} <= names


def test_weights_keep_their_names(model: Any, program: Any) -> None:
    names = {name for name, _ in model("llama").named_parameters()}
    assert set(program("llama", "onnx").program.graph.initializers) >= names
    assert set(program("llama", "torch").program.state_dict) >= names


@pytest.mark.parametrize("export_format", ["torch", "onnx"])
def test_tied_embeddings_are_stored_once(export_format: str, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = LlamaConfig(vocab_size=40000, tie_word_embeddings=True, **sizes)
    tied = LlamaForCausalLM(config).eval()
    weights = sum(parameter.nbytes for parameter in tied.parameters())
    exported = AutoExporter.from_format(export_format).export_for_generation(tied)
    folder = exported.save(tmp_path / "out")
    stored = sum(path.stat().st_size for path in folder.glob("model.*"))
    assert stored <= 1.05 * weights


def test_an_expert_that_no_token_chose(text: Any) -> None:
    """The sample is one token over and over, which leaves experts out; a text of many tokens uses them all."""
    eager = build("MixtralForCausalLM")

    def chosen(ids: torch.Tensor) -> set[tuple[int, int]]:
        with torch.no_grad():
            logits = eager(input_ids=ids, output_router_logits=True).router_logits
        best = [layer.topk(eager.config.num_experts_per_tok, dim=-1).indices.unique() for layer in logits]
        return {(layer, int(expert)) for layer, found in enumerate(best) for expert in found}

    sample = torch.full((2, 4), 7)
    ids = text(eager, 3, 20)
    assert chosen(ids) - chosen(sample.repeat(1, 3)), "every expert was chosen while tracing"
    exported = AutoExporter.from_format("onnx").export_for_generation(eager, {"input_ids": sample})
    assert exported.generate(ids, **GREEDY).tolist() == eager.generate(ids, **GREEDY).tolist()
