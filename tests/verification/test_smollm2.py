# SPDX-License-Identifier: Apache-2.0
"""A real decoder with real weights: SmolLM2-135M-Instruct from one GGUF file, exported from a sample of batch 1."""

from __future__ import annotations

import pytest
import torch

import real_models
from transporters import DynamoExporter

pytestmark = [pytest.mark.real, pytest.mark.model, pytest.mark.xdist_group("smollm2")]

PROMPTS = ["The capital of France is", "Once upon a time there was a small red boat that", "2 + 2 ="]


def test_exported_at_batch_1_and_right_at_batch_3_with_left_padding():
    loaded = real_models.smollm2()
    sample = loaded.tokenizer(PROMPTS[:1], return_tensors="pt")
    inputs = {"input_ids": sample["input_ids"], "attention_mask": sample["attention_mask"]}
    assert inputs["input_ids"].shape[0] == 1
    exported = DynamoExporter().export(loaded.model, inputs)
    assert all(axis.dynamic for axis in exported.contract.axes)

    batch = loaded.tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    batch = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    assert batch["attention_mask"][0, 0] == 0, "the test is blind: nothing is padded"
    logits = exported(**batch).logits
    with torch.no_grad():
        torch.testing.assert_close(logits, loaded.model(**batch).logits, rtol=1e-4, atol=1e-3)
        for row, prompt in enumerate(PROMPTS):
            alone = loaded.model(**loaded.tokenizer([prompt], return_tensors="pt")).logits[0]
            torch.testing.assert_close(logits[row, -len(alone) :], alone, rtol=1e-3, atol=5e-3)
    assert loaded.tokenizer.decode(logits[0, -1].argmax()).strip() == "Paris"

    report = exported.verify()
    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations]
    assert {"batch 2", "left padding", "left-padded rows alone"} <= {v.name for v in report.variations}
