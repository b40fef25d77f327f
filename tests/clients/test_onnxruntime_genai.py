# SPDX-License-Identifier: Apache-2.0
"""Exported folders in ONNX Runtime GenAI itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime_genai
import pytest
import torch

import real_models
import tiny
from transporters import AutoExporter, clients
from transporters.errors import UsageError
from transporters.zoo import build


def generate(folder: Path, ids: list[list[int]], steps: int) -> list[list[int]]:
    """Greedy continuations of rows of one length."""
    model = onnxruntime_genai.Model(str(folder))
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(ids[0]) + steps, batch_size=len(ids))
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)][len(ids[0]) :] for row in range(len(ids))]


@pytest.mark.real
@pytest.mark.xdist_group("smollm2")
@pytest.mark.parametrize("chat", [0, 1, *(pytest.param(chat, marks=pytest.mark.slow) for chat in range(2, 8))])
def test_chats_of_a_real_decoder(smollm2: Path, chat: int) -> None:
    """From the text to the ids, by the client alone."""
    loaded = real_models.smollm2()
    prompt = real_models.prompts(8)[chat]
    model = onnxruntime_genai.Model(str(smollm2))
    ids = [int(token) for token in onnxruntime_genai.Tokenizer(model).encode(prompt)]
    encoded = loaded.tokenizer(prompt, return_tensors="pt")
    assert ids == encoded["input_ids"][0].tolist()
    with torch.no_grad():
        expected = loaded.model.generate(**encoded, max_new_tokens=64, do_sample=False)[0, len(ids) :].tolist()
    end = loaded.tokenizer.eos_token_id
    found = generate(smollm2, [ids], 64)[0]
    assert found == [token for token in expected if token != end]  # the client leaves the end out


@pytest.mark.real
@pytest.mark.xdist_group("smollm2")
def test_two_graphs_have_one_file_of_weights(smollm2: Path) -> None:
    """The client's own graph, with fused attention, stands beside the program."""
    written = json.loads((smollm2 / "genai_config.json").read_text(encoding="utf-8"))
    assert written["model"]["decoder"]["filename"] == "onnx/genai_model.onnx"
    assert written["search"]["past_present_share_buffer"] is True
    sizes = {path.name: path.stat().st_size for path in (smollm2 / "onnx").iterdir()}
    assert set(sizes) == {"model.onnx", "model.onnx_data", "genai_model.onnx"}
    assert sizes["genai_model.onnx"] < 0.01 * sizes["model.onnx_data"]


def adapted(model: Any) -> tuple[Any, Any]:
    exported = AutoExporter.from_format("onnx").export_for_generation(model)
    (client,) = clients.find(["onnxruntime-genai"], "onnx")
    client.adapt(exported, None)
    return exported, client


@pytest.mark.model
def test_windows(tmp_path: Path) -> None:
    """The client never crops a window's cache."""
    model = build("MistralForCausalLM")
    exported, client = adapted(model)
    folder = exported.save(tmp_path / "decoder", assets=[client])
    written = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
    assert written["decoder"]["filename"] == "model.onnx"
    assert written["decoder"]["num_hidden_layers"] == model.config.num_hidden_layers
    vocabulary = model.config.vocab_size
    ids = torch.randint(5, vocabulary, (2, 7), generator=torch.Generator().manual_seed(0))
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[:, 7:].tolist()
    assert not {model.config.eos_token_id} & {token for row in expected for token in row}, "the client would stop"
    assert generate(folder, ids.tolist(), 12) == expected


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("llama", torch.bfloat16, "has no bfloat16"),
        ("gpt2", torch.float32, "does not know the model type gpt2"),
    ],
)
def test_what_the_client_cannot_run_is_refused(name: str, dtype: torch.dtype, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        adapted(tiny.build(name).to(dtype))


@pytest.mark.model
def test_a_program_without_a_cache_is_refused() -> None:
    model = tiny.build("llama")
    from transporters.inputs.samples import sample_inputs

    exported = AutoExporter.from_format("onnx").export(model, sample_inputs(model))
    (client,) = clients.find(["onnxruntime-genai"], "onnx")
    with pytest.raises(UsageError, match="decoders with their cache only"):
        client.adapt(exported, None)
