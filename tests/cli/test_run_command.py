# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shutil

import pytest
import small_models
import torch
from PIL import Image

pytestmark = pytest.mark.model

SENTENCES = small_models.SENTENCES


def texts(*values: str) -> list[str]:
    return [part for value in values for part in ("--text", value)]


def eager_vectors(pair, sentences, *, pooling="mean"):
    encoded = small_models.tokenizer()(list(sentences), padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = pair.eager()(**encoded).last_hidden_state
    if pooling == "cls":
        return torch.nn.functional.normalize(hidden[:, 0])
    weight = encoded["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1))


def embeddings(outcome):
    assert outcome.code == 0, outcome.err
    return torch.tensor([row["embedding"] for row in outcome.document["results"]])


def test_embeddings_in_one_batch_and_one_by_one(command, pairs):
    pair = pairs("features")
    expected = eager_vectors(pair, SENTENCES)
    together = embeddings(command("run", pair.artifact, *texts(*SENTENCES), "--json"))
    alone = [embeddings(command("run", pair.artifact, *texts(sentence), "--json")) for sentence in SENTENCES]
    for found in (together, torch.cat(alone)):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_table_shows_a_short_preview(command, pairs):
    outcome = command("run", pairs("features").artifact, *texts(*SENTENCES))
    assert outcome.code == 0
    assert "it rains" in outcome.out
    assert outcome.out.count("…") == len(SENTENCES)
    assert "✓ Run" in outcome.err


def test_a_recipe_beside_the_program_is_followed(command, pairs, tmp_path):
    pair = pairs("features")
    folder = shutil.copytree(pair.artifact, tmp_path / "copy")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}), encoding="utf-8")
    found = embeddings(command("run", folder, *texts(*SENTENCES), "--json"))
    torch.testing.assert_close(found, eager_vectors(pair, SENTENCES, pooling="cls"), atol=1e-5, rtol=1e-5)


def test_a_text_that_is_too_long_is_cut_and_named(command, pairs):
    outcome = command("run", pairs("features").artifact, *texts("the train " * 40, "it rains"), "--json")
    assert [row["tokens"] for row in outcome.document["results"]] == [32, 4]
    assert outcome.err.count("cut at 32 tokens") == 1


def test_a_static_program_takes_texts_of_any_length_and_number(command, pairs):
    pair = pairs("features", "--static")
    found = embeddings(command("run", pair.artifact, *texts(*SENTENCES), "--json"))
    torch.testing.assert_close(found[:2], eager_vectors(pair, SENTENCES[:2]), atol=1e-5, rtol=1e-5)
    assert found.shape[0] == len(SENTENCES)


def test_a_continuation_is_the_greedy_one(command, pairs):
    pair = pairs("causal", "--no-cache")
    model, tokenizer = pair.eager(), small_models.tokenizer(causal=True)
    outcome = command("run", pair.artifact, *texts(*SENTENCES[:2]), "--max-new-tokens", 4, "--json")
    assert outcome.code == 0, outcome.err
    for text, row in zip(SENTENCES, outcome.document["results"], strict=False):
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(**encoded, max_new_tokens=4, do_sample=False)[0, encoded["input_ids"].shape[1] :]
        assert row == {"text": text, "continuation": tokenizer.decode(ids, skip_special_tokens=True)}


def test_an_encoder_and_its_decoder_write_a_batch(command, pairs):
    """Two programs in the folder, without being asked for; the shorter text is padded."""
    pair = pairs("seq2seq")
    manifest = json.loads((pair.artifact / "export.json").read_text(encoding="utf-8"))
    assert manifest["task"] == "text2text-generation"
    assert list(manifest["parts"]) == ["encoder"]
    tokenizer = small_models.tokenizer()
    outcome = command("run", pair.artifact, *texts(*SENTENCES), "--max-new-tokens", 6, "--json")
    assert outcome.code == 0, outcome.err
    for text, row in zip(SENTENCES, outcome.document["results"], strict=True):
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            ids = pair.eager().generate(**encoded, max_new_tokens=6, do_sample=False)[0, 1:]
        assert row["ids"] == ids.tolist()
        assert row["continuation"] == tokenizer.decode(ids, skip_special_tokens=True)
    checked = command("verify", pair.artifact, "--json").document
    assert checked["status"] == "verified"
    assert {"encoder: sample", "greedy generation"} <= {entry["name"] for entry in checked["report"]["variations"]}


def test_executorch_writes_behind_an_encoder(command, pairs):
    """One text after the other, up to what the decoder's cache holds."""
    pair = pairs("seq2seq", "--to", "executorch", "--max-context", "6")
    manifest = json.loads((pair.artifact / "export.json").read_text(encoding="utf-8"))
    assert manifest["task"] == "text2text-generation"
    assert list(manifest["parts"]) == ["encoder"]
    outcome = command("run", pair.artifact, *texts(*SENTENCES), "--max-new-tokens", 9, "--json")
    assert outcome.code == 0, outcome.err
    for text, row in zip(SENTENCES, outcome.document["results"], strict=True):
        with torch.no_grad():
            encoded = small_models.tokenizer()(text, return_tensors="pt")
            ids = pair.eager().generate(**encoded, max_new_tokens=5, do_sample=False)[0, 1:]
        assert row["ids"] == ids.tolist()


def test_a_text_with_pictures(command, pairs, tmp_path):
    """Three programs in the folder, without being asked for; the processor beside them makes the inputs."""
    pair = pairs("pictures")
    manifest = json.loads((pair.artifact / "export.json").read_text(encoding="utf-8"))
    assert manifest["task"] == "image-text-to-text"
    assert list(manifest["parts"]) == ["vision_encoder", "embed_tokens"]
    processor, eager, text = small_models.processor(), pair.eager(), "the train leaves"
    found = []
    for color in ("red", "blue"):
        file = tmp_path / f"{color}.png"
        Image.effect_noise((40, 48), 90).convert("RGB").point(lambda value, c=color: value // (2 + (c == "red"))).save(
            file
        )
        with Image.open(file) as picture:
            encoded = processor(text=[f"<image> {text}"], images=[picture.convert("RGB")], return_tensors="pt")
        with torch.no_grad():
            ids = eager.generate(**encoded, max_new_tokens=8, do_sample=False)[0, encoded["input_ids"].shape[1] :]
        outcome = command("run", pair.artifact, *texts(text), "--image", file, "--max-new-tokens", 8, "--json")
        assert outcome.code == 0, outcome.err
        assert outcome.document["results"][0]["ids"] == ids.tolist()
        found.append(ids.tolist())
    assert found[0] != found[1]
    plain = command("run", pair.artifact, *texts(*SENTENCES), "--max-new-tokens", 4, "--json")
    assert plain.code == 0, plain.err
    for sentence, row in zip(SENTENCES, plain.document["results"], strict=True):
        encoded = processor.tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            ids = eager.generate(**encoded, max_new_tokens=4, do_sample=False)[0, encoded["input_ids"].shape[1] :]
        assert row["ids"] == ids.tolist()
    checked = command("verify", pair.artifact, "--json").document
    assert checked["status"] == "verified"
    assert {"vision_encoder: sample", "greedy generation"} <= {v["name"] for v in checked["report"]["variations"]}


def test_pictures_where_they_do_not_belong(command, pairs, tmp_path):
    file = tmp_path / "note.png"
    file.write_text("no picture")
    refused = command("run", pairs("pictures").artifact, *texts("it rains"), "--image", file)
    assert refused.code == 2
    assert "is no picture" in refused.err
    assert "for one text" in command("run", pairs("pictures").artifact, *texts("a", "b"), "--image", file).err
    assert "reads no pictures" in command("run", pairs("causal").artifact, *texts("it rains"), "--image", file).err


def test_an_encoder_decoder_without_its_cache_writes_too(command, pairs):
    pair = pairs("seq2seq", "--no-cache")
    tokenizer = small_models.tokenizer()
    encoded = tokenizer(SENTENCES[0], return_tensors="pt")
    with torch.no_grad():
        ids = pair.eager().generate(**encoded, max_new_tokens=4, do_sample=False)[0, 1:]
    outcome = command("run", pair.artifact, *texts(SENTENCES[0]), "--max-new-tokens", 4, "--json")
    assert outcome.document["results"][0]["continuation"] == tokenizer.decode(ids, skip_special_tokens=True)


def test_labels_come_from_the_config(command, pairs):
    pair = pairs("labels")
    outcome = command("run", pair.artifact, *texts(*SENTENCES), "--json")
    encoded = small_models.tokenizer()(list(SENTENCES), padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = pair.eager()(**encoded).logits.softmax(dim=1)
    for scores, row in zip(expected, outcome.document["results"], strict=True):
        assert row["labels"][0]["label"] == ("calm", "glad", "sad")[int(scores.argmax())]
        assert row["labels"][0]["score"] == pytest.approx(float(scores.max()), abs=1e-5)


def test_each_token_gets_a_label(command, pairs):
    rows = command("run", pairs("tags").artifact, *texts("it rains", SENTENCES[0]), "--json").document["results"]
    assert [tag["token"] for tag in rows[0]["tags"]] == ["[CLS]", "it", "rains", "[SEP]"]
    assert {tag["label"] for row in rows for tag in row["tags"]} <= {"calm", "glad", "sad"}


def test_a_mask_is_filled_and_a_text_without_one_is_refused(command, pairs):
    artifact = pairs("mask").artifact
    rows = command("run", artifact, *texts("the [MASK] leaves"), "--json").document["results"]
    assert len(rows[0]["fillings"]) == 5
    outcome = command("run", artifact, *texts("the train leaves"))
    assert outcome.code == 2
    assert "[MASK]" in outcome.err


def test_without_a_text_task_every_output_is_shown(command, pairs, tmp_path):
    folder = shutil.copytree(pairs("features").artifact, tmp_path / "copy")
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    (folder / "export.json").write_text(json.dumps({**manifest, "task": "other"}), encoding="utf-8")
    rows = command("run", folder, *texts("it rains"), "--json").document["results"]
    assert rows[0]["output"] == "last_hidden_state"
    assert rows[0]["shape"] == [1, 4, 32]
    assert rows[0]["dtype"] == "float32"
    assert len(rows[0]["first"]) == 5


def test_a_program_without_a_tokenizer_takes_no_text(command, pairs, tmp_path):
    folder = shutil.copytree(pairs("features").artifact, tmp_path / "copy")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    manifest["files"] = {name: size for name, size in manifest["files"].items() if "token" not in name}
    (folder / "export.json").write_text(json.dumps(manifest), encoding="utf-8")
    outcome = command("run", folder, *texts("it rains"))
    assert outcome.code == 2
    assert "does not take text" in outcome.err


def test_a_folder_that_is_no_artifact(command, tmp_path):
    for folder, words in ((tmp_path, "export.json"), (tmp_path / "none", "no folder")):
        outcome = command("run", folder, *texts("it rains"))
        assert outcome.code == 2
        assert words in outcome.err


def test_a_damaged_artifact_is_one_message(command, pairs, tmp_path):
    folder = shutil.copytree(pairs("features").artifact, tmp_path / "copy")
    program = next(folder.glob("*.pt2"))
    program.write_bytes(program.read_bytes()[:100])
    outcome = command("run", folder, *texts("it rains"), "--json")
    assert outcome.code == 1
    assert program.name in outcome.document["error"]["message"]
