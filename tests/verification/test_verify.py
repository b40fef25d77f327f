# SPDX-License-Identifier: Apache-2.0
"""A verification fails when the program is wrong, says where, and passes only what it has run."""

from __future__ import annotations

import pytest
import torch

from tiny import build
from transporters import DynamoExporter, ExecutorchExporter, ExportedModel
from transporters.errors import UsageError
from transporters.inputs.samples import sample_inputs
from transporters.verification.report import Report
from transporters.verification.variations import cases, unpadded_row

pytestmark = pytest.mark.model


def other_weights(model, name, factor=1.05):
    with torch.no_grad():
        model.get_parameter(name).mul_(factor)
    return model


def test_a_changed_weight_is_found_and_named(tmp_path):
    model = build("bert")
    exported = ExportedModel.load(DynamoExporter().export(model, sample_inputs(model)).save(tmp_path / "bert"))
    changed = other_weights(build("bert"), "encoder.layer.1.output.dense.weight")
    report = exported.verify(model=changed)
    assert not report.verified
    assert report.status == "mismatch"
    assert report.bisection.first_stage == "torch runtime"
    assert report.bisection.first_submodule == "encoder.layer.1.output.dense"
    assert [step.passed for step in report.bisection.steps] == [True, False]
    sample = report.variations[0]
    assert {c.name for c in sample.outputs if not c.passed} == {"last_hidden_state", "pooler_output"}


def test_a_wrong_patch_is_blamed_on_the_patched_model():
    from transporters.exporters.utils import register_patch, unregister

    @register_patch("dynamo", "torch.nn.GELU.forward", "transformers.activations.GELUActivation.forward")
    def _patch_gelu_to_relu(original):
        return lambda self, x: torch.relu(x)

    try:
        model = build("bert")
        report = DynamoExporter().export(model, sample_inputs(model)).verify()
    finally:
        unregister("dynamo:_patch_gelu_to_relu")
    assert not report.verified
    assert report.bisection.first_stage == "patched eager"


def test_a_program_that_is_wrong_only_at_another_length_is_found():
    """The sample alone would pass."""
    from transporters.exporters.utils import register_patch, unregister

    @register_patch("dynamo", "torch.nn.functional.softmax")
    def _patch_softmax_of_seven(original):
        def softmax(x, *args, **kwargs):
            scores = original(x, *args, **kwargs)
            return scores + 0.01 * (x.shape[-1] - 7)

        return softmax

    try:
        model = build("bert")
        model.set_attn_implementation("eager")
        report = DynamoExporter().export(model, sample_inputs(model, length=7)).verify()
    finally:
        unregister("dynamo:_patch_softmax_of_seven")
    status = {v.name: v.status for v in report.variations}
    assert status["sample"] == "verified"
    assert status["length 10"] == "mismatch"
    assert not report.verified


def test_the_report_survives_json(tmp_path):
    model = build("bert")
    exported = DynamoExporter().export(model, sample_inputs(model))
    report = exported.verify()
    loaded = ExportedModel.load(exported.save(tmp_path / "bert"))
    assert loaded.report.to_dict() == report.to_dict()
    assert Report.from_dict(report.to_dict()) == report
    assert loaded.report.verified


def test_a_loaded_artifact_needs_the_model_that_it_was_made_from(tmp_path):
    model = build("bert")
    loaded = ExportedModel.load(DynamoExporter().export(model, sample_inputs(model)).save(tmp_path / "bert"))
    with pytest.raises(UsageError, match="not loaded"):
        loaded.verify()
    with pytest.raises(UsageError, match="BertModel"):
        loaded.verify(model=build("llama"))
    assert loaded.verify(model=model).verified


def test_variations_of_text():
    names = [case.name for case in cases(sample_inputs(build("llama")))]
    assert names == [
        "sample",
        "batch 3",
        "batch 1",
        "length 10",
        "length 1",
        "length 37",
        "batch 4, length 13",
        "left padding",
        "right padding",
        "batch reversed",
    ]


def test_no_two_rows_of_a_larger_batch_are_equal():
    for case in cases(sample_inputs(build("llama"))):
        ids = case.inputs["input_ids"]
        if case.name.startswith("batch") and ids.shape[1] > 1:
            assert len({tuple(row.tolist()) for row in ids}) == ids.shape[0], case.name


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_are_cut_where_their_tokens_are(side):
    case = next(c for c in cases(sample_inputs(build("llama"))) if c.side == side)
    for row, length in enumerate(case.row_lengths):
        alone = unpadded_row(case, row)
        assert alone["attention_mask"].tolist() == [[1] * length]
        kept = case.inputs["input_ids"][row][case.inputs["attention_mask"][row].bool()]
        assert alone["input_ids"][0].tolist() == kept.tolist()


def test_a_row_that_eager_refuses_alone_is_named_and_no_demand(monkeypatch):
    model = build("bert")
    exported = DynamoExporter().export(model, sample_inputs(model))
    forward = model.forward

    def picky(*args, **kwargs):
        if kwargs["input_ids"].shape == (1, 3):
            raise ValueError("three tokens are too few")
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", picky)
    report = exported.verify()
    alone = [v for v in report.variations if v.name.endswith("rows alone")]
    assert len(alone) == 2
    assert report.verified
    assert all("eager refuses row" in v.detail and "three tokens are too few" in v.detail for v in alone)


def test_padding_that_leaks_is_found_by_the_rows_alone():
    """Eager itself ignores its padding here; a program that does not must fail, whatever the batch says."""
    model = build("llama")
    report = DynamoExporter().export(model, sample_inputs(model)).verify()
    alone = {v.name: v for v in report.variations if v.name.endswith("rows alone")}
    assert set(alone) == {"left-padded rows alone", "right-padded rows alone"}
    assert {c.name for c in alone["left-padded rows alone"].outputs} >= {f"logits [row {r}]" for r in range(3)}


def test_qwen_vl_takes_other_numbers_of_images():
    model = build("qwen2_vl")
    exported = DynamoExporter().export(model, sample_inputs(model))
    for images in (1, 3):
        inputs = sample_inputs(model, batch=images, seed=images)
        with torch.no_grad():
            expected = model(**inputs)
        actual = exported(**inputs)
        torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-4)
        assert len(actual.image_outputs.pooler_output) == len(expected.image_outputs.pooler_output) == images


def test_bisection_climbs_no_further_than_the_fault():
    model = build("bert")
    exported = DynamoExporter().export(model, sample_inputs(model))
    exported.rungs["patched eager"] = lambda inputs: {"last_hidden_state": torch.zeros(1)}
    report = exported.verify(model=other_weights(build("bert"), "pooler.dense.weight"))
    assert [step.name for step in report.bisection.steps] == ["eager", "patched eager"]


class Scaled(torch.nn.Module):
    """Rows that their sum scales: with one row nothing is broadcast, with more the sum is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.sigmoid(x)
        return torch.exp(torch.sigmoid(x.sum(0, keepdim=True)) * rows) * rows


@pytest.mark.parametrize("cured", [True, False])
def test_a_program_that_is_wrong_only_after_a_smaller_run_is_found(cured):
    """XNNPACK keeps the memory of its first run; the sample and larger batches alone would pass."""
    skipped = [] if cured else ["executorch:_patch_broadcast_claims"]
    exported = ExecutorchExporter().export(Scaled().eval(), {"x": torch.randn(3, 5)}, {"skip_workarounds": skipped})
    found = {variation.name: variation.status for variation in exported.verify().variations}
    assert found.pop("sample, after batch 1") == ("verified" if cured else "mismatch")
    assert found["sample"] == found["batch 4"] == "verified"
