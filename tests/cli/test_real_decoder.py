# SPDX-License-Identifier: Apache-2.0
"""A real chat model with its real weights, as one graph with its cache, through the command line."""

from __future__ import annotations

import json

import pytest

import real_models

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("smollm2")]


def answers(command, folder, count, steps):
    texts = [part for text in real_models.CHATS[:count] for part in ("--text", text)]
    outcome = command("run", folder, *texts, "--chat", "--max-new-tokens", steps, "--json")
    assert outcome.code == 0, outcome.err
    return outcome.document["results"]


def test_two_chats(command, smollm2):
    rows = answers(command, smollm2, 2, 16)
    assert [row["ids"] for row in rows] == real_models.expected_ids(2, 16)
    assert "Paris" in rows[0]["continuation"]
    assert len(rows[1]["ids"]) == 16


def test_the_report_tells_of_the_loop(smollm2):
    report = json.loads((smollm2 / "export.json").read_text(encoding="utf-8"))["verification"]
    assert report["status"] == "verified"
    loop = report["variations"][-1]
    assert (loop["name"], loop["status"], loop["outputs"][0]["verdict"]) == ("greedy generation", "verified", "equal")


def test_the_tied_weights_are_stored_once(smollm2):
    model = real_models.smollm2().model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    checkpoint = sum(parameter.nbytes for parameter in model.parameters())
    stored = sum(path.stat().st_size for path in smollm2.rglob("*") if path.is_file())
    assert stored <= 1.02 * checkpoint


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_eight_chats(form, command, smollm2, tmp_path):
    folder = smollm2 if form == "onnx" else real_models.export_smollm2(tmp_path / "out", to=form)
    rows = answers(command, folder, 8, 64)
    assert [row["ids"] for row in rows] == real_models.expected_ids(8, 64)
    assert sum(len(row["ids"]) for row in rows) > 8 * 24, "the texts ended before there was much to compare"
