# SPDX-License-Identifier: Apache-2.0
"""A causal language model through the command line: with its cache, without, and folders that do not fit."""

from __future__ import annotations

import json
import shutil

import pytest
import small_models
import torch
from transformers import BertConfig, BertLMHeadModel, GPTNeoConfig, GPTNeoForCausalLM

pytestmark = pytest.mark.model

PROMPTS = ("the train leaves", "it")
CHAT = "{% for message in messages %}the {{ message['content'] }} is{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_models.write(tmp_path_factory.mktemp("model") / "llama", "causal")


@pytest.fixture(scope="module", params=["torch", "onnx"])
def artifact(request, model, tmp_path_factory):
    """Verified, with the report that the command printed beside it."""
    from transporters.cli.main import dispatch

    out = tmp_path_factory.mktemp("decoder") / request.param
    assert dispatch(["export", str(model), "--to", request.param, "--out", str(out)]) == 0
    return out


@pytest.fixture
def changed(artifact, tmp_path):
    """A copy of the artifact whose manifest does not know sizes, so that its files can be changed."""
    folder = shutil.copytree(artifact, tmp_path / "copy")
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    (folder / "export.json").write_text(json.dumps({**manifest, "files": {}}), encoding="utf-8")
    return folder


def texts(*values):
    return [part for value in values for part in ("--text", value)]


def expected(model, prompts, steps):
    """Eager's new ids for a batch that is padded on the left."""
    encoded = small_models.tokenizer(causal=True)(list(prompts), padding=True, padding_side="left", return_tensors="pt")
    eager = small_models.load(model, "causal")
    with torch.no_grad():
        found = eager.generate(**encoded, max_new_tokens=steps, do_sample=False, pad_token_id=0)
    rows = found[:, encoded["input_ids"].shape[1] :].tolist()
    return [row[: row.index(3) + 1] if 3 in row else row for row in rows]


def test_the_report_tells_of_a_loop(artifact):
    manifest = json.loads((artifact / "export.json").read_text(encoding="utf-8"))
    assert manifest["task"] == "text-generation"
    assert manifest["cache_contract"]["layers"]
    report = manifest["verification"]
    (loop,) = (v for v in report["variations"] if v["name"] == "greedy generation")
    assert loop["status"] == "verified"
    assert loop["outputs"][0]["shape"] == [2, 12]
    assert "padded on the left" in loop["detail"]
    assert loop["detail"] in [finding["message"] for finding in report["run"]["findings"]]
    assert "padded on the left" in (artifact / "report.html").read_text(encoding="utf-8")


def test_a_batch_of_texts_is_continued_as_eager_does(command, artifact, model):
    outcome = command("run", artifact, *texts(*PROMPTS), "--max-new-tokens", 9, "--json")
    assert outcome.code == 0, outcome.err
    rows = outcome.document["results"]
    assert [row["ids"] for row in rows] == expected(model, PROMPTS, 9)
    tokenizer = small_models.tokenizer(causal=True)
    for prompt, row in zip(PROMPTS, rows, strict=True):
        assert row["text"] == prompt
        assert row["continuation"] == tokenizer.decode(row["ids"], skip_special_tokens=True)


def test_the_table_has_the_text_and_not_the_ids(command, artifact):
    outcome = command("run", artifact, *texts(PROMPTS[0]), "--max-new-tokens", 3)
    assert "Continuation" in outcome.out
    assert "Ids" not in outcome.out


def test_a_chat_template_is_used_when_asked_for(command, changed, model):
    refused = command("run", changed, *texts("train"), "--chat")
    assert (refused.code, "no chat template" in refused.err) == (2, True)
    (changed / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    rows = command("run", changed, *texts("train"), "--chat", "--max-new-tokens", 5, "--json").document["results"]
    assert [row["ids"] for row in rows] == expected(model, ["the train is"], 5)
    assert rows[0]["text"] == "train"


def test_verify_runs_the_loop_again(command, artifact):
    report = command("verify", artifact, "--json").document["report"]
    assert [v["status"] for v in report["variations"] if v["name"] == "greedy generation"] == ["verified"]


def test_a_wrong_cache_is_found_by_the_loop(artifact, model):
    """A program whose steps lose the cache is right at every set of inputs, and wrong in the loop."""
    from transporters import ExportedModel
    from transporters.generation.loop import ProgramCache

    exported = ExportedModel.load(artifact)
    advance = ProgramCache.advance

    def forgetful(self, inputs):
        logits = advance(self, inputs)
        held = {name: self.steps.tensor(value).clone() for name, value in self.buffers.items()}
        self.buffers = {name: self.steps.buffer(torch.zeros_like(value)) for name, value in held.items()}
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgramCache, "advance", forgetful)
        report = exported.verify(model=small_models.load(model, "causal"))
    assert [v.name for v in report.variations if v.status == "mismatch"] == ["greedy generation"]
    assert not report.verified


def test_without_a_cache_when_asked_for(command, model, tmp_path):
    out = tmp_path / "plain"
    document = command("export", model, "--to", "torch", "--out", out, "--no-cache", "--no-verify", "--json").document
    assert document["notes"] == []
    manifest = json.loads((out / "export.json").read_text(encoding="utf-8"))
    assert (manifest["task"], "cache_contract" in manifest) == ("text-generation", False)
    rows = command("run", out, *texts(PROMPTS[0]), "--max-new-tokens", 4, "--json").document["results"]
    tokenizer = small_models.tokenizer(causal=True)
    (ids,) = expected(model, PROMPTS[:1], 4)
    assert rows == [{"text": PROMPTS[0], "continuation": tokenizer.decode(ids, skip_special_tokens=True)}]
    assert command("run", out, *texts(PROMPTS[0]), "--chat").code == 2


def test_where_no_cache_is_possible_a_note_says_so(command, model, tmp_path):
    options = ("--to", "torch", "--static", "--no-verify", "--json")
    outcome = command("export", model, "--out", tmp_path / "out", *options)
    assert outcome.code == 0, outcome.err
    (note,) = outcome.document["notes"]
    assert "--static fixes every axis" in note


@pytest.mark.parametrize(
    ("kind", "words"), [("gpt_neo", "executorch cannot keep this cache yet"), ("bert", "gives no cache back")]
)
def test_a_cache_that_executorch_cannot_keep_is_left_out(command, tmp_path, kind, words):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    made = {
        "gpt_neo": lambda: GPTNeoForCausalLM(
            GPTNeoConfig(vocab_size=64, hidden_size=32, num_heads=2, num_layers=1, attention_types=[[["local"], 1]])
        ),
        "bert": lambda: BertLMHeadModel(BertConfig(vocab_size=64, **sizes)),
    }
    made[kind]().save_pretrained(tmp_path / kind)
    options = ("--to", "executorch", "--task", "text-generation", "--no-verify", "--json")
    outcome = command("export", tmp_path / kind, "--out", tmp_path / "out", *options)
    assert outcome.code == 0, outcome.err
    (note,) = outcome.document["notes"]
    assert words in note
    manifest = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert "cache_contract" not in manifest


def test_executorch_keeps_the_cache_inside(command, model, tmp_path):
    """Two texts of different lengths, one after the other, up to the length that the program has room for."""
    out = tmp_path / "out"
    options = ("--to", "executorch", "--for", "executorch", "--max-context", 20, "--json")
    outcome = command("export", model, "--out", out, *options)
    assert outcome.code == 0, outcome.err
    assert outcome.document["notes"] == []
    assert (out / "tokenizer.json").is_file()
    long = " ".join(["the train leaves the station"] * 3)
    rows = command("run", out, *texts(long, PROMPTS[1]), "--max-new-tokens", 8, "--json").document["results"]
    assert [row["ids"] for row in rows] == [
        expected(model, [long], 5)[0],  # and fifteen words are twenty
        expected(model, [PROMPTS[1]], 8)[0],
    ]


def test_a_model_without_a_cache_is_refused_with_the_way_out(command, tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertLMHeadModel(BertConfig(vocab_size=64, **sizes)).save_pretrained(tmp_path / "bert")
    outcome = command("export", tmp_path / "bert", "--to", "torch", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "gives no cache back" in outcome.err
    assert "--no-cache" in outcome.err


def test_a_task_can_still_be_named(command, model, tmp_path):
    options = ("--task", "feature-extraction", "--no-verify", "--json")
    command("export", model, "--to", "torch", "--out", tmp_path / "out", *options)
    manifest = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert manifest["model_class"].endswith(":LlamaModel")
    assert "cache_contract" not in manifest


def test_a_missing_file_is_named(command, artifact, tmp_path):
    for name in ("tokenizer.json", "generation_config.json"):
        folder = shutil.copytree(artifact, tmp_path / name)
        (folder / name).unlink()
        outcome = command("run", folder, *texts("it"))
        assert outcome.code == 1
        assert f"lacks the file {name}" in outcome.err


def test_a_newer_manifest_is_refused(command, changed):
    manifest = json.loads((changed / "export.json").read_text(encoding="utf-8"))
    (changed / "export.json").write_text(json.dumps({**manifest, "schema_version": 99}), encoding="utf-8")
    outcome = command("run", changed, *texts("it"))
    assert outcome.code == 1
    assert "schema version 99" in outcome.err


def test_another_model_s_tokenizer_is_refused(command, changed):
    tokenizer = small_models.tokenizer(causal=True)
    tokenizer.eos_token = "train"
    tokenizer.save_pretrained(changed)
    outcome = command("run", changed, *texts("it"))
    assert outcome.code == 2
    assert "its eos_token_id is 7, the model's configuration says 3" in outcome.err
    tokenizer = small_models.tokenizer(causal=True)
    tokenizer.add_tokens([f"word{number}" for number in range(60)])
    tokenizer.save_pretrained(changed)
    outcome = command("run", changed, *texts("it"))
    assert outcome.code == 2
    assert "its ids go up to 78 for 64 embeddings" in outcome.err


def test_a_folder_without_a_tokenizer_takes_no_text(command, changed):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (changed / name).unlink()
    outcome = command("run", changed, *texts("it"))
    assert outcome.code == 2
    assert "holds no tokenizer" in outcome.err


def test_a_text_that_fills_the_model_is_refused_and_a_long_one_leaves_less_room(command, artifact):
    long = " ".join(["the"] * 32)
    outcome = command("run", artifact, *texts(long))
    assert outcome.code == 2
    assert "32 tokens" in outcome.err
    nearly = " ".join(["the"] * 30)
    rows = command("run", artifact, *texts(nearly), "--json").document["results"]
    assert 1 <= len(rows[0]["ids"]) <= 2
