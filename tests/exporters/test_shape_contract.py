# SPDX-License-Identifier: Apache-2.0
"""No axis freezes in silence: samples of size 1, guards, bounds, overrides, and what the error says."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

from tiny import build
from transporters import DynamoConfig, DynamoExporter, zoo
from transporters.errors import ConfigError, FrozenAxisError, RunError
from transporters.inputs.samples import sample_inputs


class Looping(nn.Module):
    """A Python loop over the second axis, which a trace unrolls."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        total = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            total = total * self.scale + x[:, step]
        return {"y": total}


class Flat(nn.Module):
    """Takes any batch and exactly four columns."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return {"y": self.layer(x)}


def axis(exported, name, index):
    return next(a for a in exported.contract.axes if (a.input, a.index) == (name, index))


def test_an_axis_that_a_guard_froze_is_an_error_that_names_the_line():
    with pytest.raises(FrozenAxisError) as caught:
        DynamoExporter().export(Looping().eval(), {"x": torch.rand(2, 5)})
    text = str(caught.value)
    assert "axis 1 (x.1) of x" in text
    assert "fixes it to 5" in text
    assert "test_shape_contract.py" in text
    assert "allow_static=['x.1']" in text


@pytest.mark.parametrize("allowed", ["x.1", "x"])
def test_the_caller_can_allow_it_by_name(allowed):
    exported = DynamoExporter().export(Looping().eval(), {"x": torch.rand(2, 5)}, {"allow_static": [allowed]})
    row = axis(exported, "x", 1)
    assert not row.dynamic
    assert row.cause == "guard"
    assert axis(exported, "x", 0).dynamic
    report = exported.verify()
    assert report.verified


def test_an_axis_that_the_model_fixes_is_reported_with_its_error():
    exported = DynamoExporter().export(Flat().eval(), {"x": torch.rand(2, 4)})
    row = axis(exported, "x", 1)
    assert (row.dynamic, row.cause) == (False, "model")
    assert "cannot be multiplied" in row.reason
    assert "test_shape_contract.py" in row.source


def test_an_axis_that_the_model_fixes_cannot_be_asked_for_by_name():
    with pytest.raises(FrozenAxisError, match=r"axis 1 \(x\.1\) of x"):
        DynamoExporter().export(Flat().eval(), {"x": torch.rand(2, 4)}, {"dynamic_shapes": {"x": {1: "auto"}}})


@pytest.mark.model
@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_a_sample_of_batch_1_gives_a_dynamic_batch(name):
    model = build(name)
    inputs = sample_inputs(model, batch=1)
    assert all(v.shape[0] == 1 for v in inputs.values())
    exported = DynamoExporter().export(model, inputs)
    assert all(a.dynamic and a.minimum == 1 for a in exported.contract.axes if a.label == "batch")
    larger = sample_inputs(model, batch=3, seed=5)
    with torch.no_grad():
        expected = model(**larger)[0]
    torch.testing.assert_close(exported(**larger)[0], expected, rtol=1e-4, atol=1e-5)
    assert exported.verify().verified


@pytest.mark.model
def test_a_sample_of_one_token_takes_a_hundred():
    model = build("llama")
    exported = DynamoExporter().export(model, sample_inputs(model, batch=1, length=1))
    for batch, length in ((1, 1), (3, 11), (2, 100)):
        inputs = sample_inputs(model, batch=batch, length=length, seed=length)
        with torch.no_grad():
            expected = model(**inputs).logits
        torch.testing.assert_close(exported(**inputs).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.model
def test_equal_numbers_do_not_tie_axes():
    """Batch and length are both 3 in the sample."""
    model = build("bert")
    exported = DynamoExporter().export(model, sample_inputs(model, batch=3, length=3))
    inputs = sample_inputs(model, batch=2, length=9, seed=1)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
    torch.testing.assert_close(exported(**inputs).last_hidden_state, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.model
def test_static_fixes_every_axis_and_says_that_it_was_asked():
    model = build("bert")
    exported = DynamoExporter().export(model, sample_inputs(model), DynamoConfig(dynamic=False))
    assert not any(a.dynamic for a in exported.contract.axes)
    assert {a.cause for a in exported.contract.axes} == {"requested"}
    report = exported.verify()
    assert report.verified
    assert {v.status for v in report.variations} == {"verified", "not applicable"}
    with pytest.raises(RunError):
        exported(**sample_inputs(model, batch=3))


@pytest.mark.model
@pytest.mark.parametrize("as_json", [False, True])
def test_bounds_are_kept(as_json):
    model = build("llama")
    spec = {0: Dim("batch", max=8), 1: Dim("sequence", min=2, max=64)}
    config = DynamoConfig(dynamic_shapes={"input_ids": spec, "attention_mask": spec})
    if as_json:
        config = DynamoConfig.from_json(config.to_json())
    exported = DynamoExporter().export(model, sample_inputs(model), config)
    assert (axis(exported, "input_ids", 0).maximum, axis(exported, "input_ids", 1).maximum) == (8, 64)
    assert axis(exported, "input_ids", 1).minimum == 2
    inputs = sample_inputs(model, batch=8, length=64)
    with torch.no_grad():
        expected = model(**inputs).logits
    torch.testing.assert_close(exported(**inputs).logits, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(RunError, match="input_ids"):
        exported(**sample_inputs(model, batch=8, length=65))


@pytest.mark.model
def test_a_static_override_leaves_the_rest_dynamic():
    model = build("llama")
    config = {"dynamic_shapes": {"input_ids": {1: "static"}, "attention_mask": {"1": None}}}
    exported = DynamoExporter().export(model, sample_inputs(model), config)
    assert not axis(exported, "input_ids", 1).dynamic
    assert axis(exported, "input_ids", 0).dynamic


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"input_idz": {0: "auto"}}, "did you mean 'input_ids'"),
        ({"input_ids": {5: "auto"}}, "axis 5 of input_ids"),
        ({"input_ids": {0: "free"}}, "none of 'auto', 'dynamic', 'static'"),
        ({"input_ids": {"first": "auto"}}, "not a number"),
        ({"input_ids": 3}, "takes a dict from axis"),
    ],
)
def test_wrong_overrides_are_named(shapes, words):
    model = build("bert")
    with pytest.raises(ConfigError, match=words):
        DynamoExporter().export(model, sample_inputs(model), {"dynamic_shapes": shapes})


def test_an_allowance_that_fits_no_axis_is_refused():
    with pytest.raises(ConfigError, match="'sequense', which is no axis") as caught:
        DynamoExporter().export(Flat().eval(), {"x": torch.rand(2, 4)}, {"allow_static": ["sequense"]})
    assert "x.1" in caught.value.advice


@pytest.mark.model
def test_the_length_of_a_position_table_is_the_maximum():
    model = build("bert")
    exported = DynamoExporter().export(model, sample_inputs(model))
    longest = model.config.max_position_embeddings
    assert axis(exported, "input_ids", 1).maximum == longest
    assert exported(**sample_inputs(model, length=longest)).last_hidden_state.shape[1] == longest
    with pytest.raises(RunError):
        exported(**sample_inputs(model, length=longest - 1) | sample_inputs(model, length=longest + 1))


@pytest.mark.model
def test_a_guard_that_narrows_is_reported():
    """A cut below eight columns is another program; the trace takes one side, and says which."""

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return {"y": x * self.scale if x.shape[1] > 7 else x + self.scale}

    exported = DynamoExporter().export(Branching().eval(), {"x": torch.rand(2, 10)})
    row = axis(exported, "x", 1)
    assert (row.dynamic, row.minimum) == (True, 8)
    assert "the model takes it, a guard of the trace does not" in row.reason
    assert any(f.level == "warning" and "takes sizes from 8 up" in f.message for f in exported.run.findings)
    report = exported.verify()
    assert report.verified
    with pytest.raises(RunError):
        exported(x=torch.rand(2, 5))


class Tied(nn.Module):
    """Two rows of as many columns as there are weights."""

    def forward(self, x, weights):
        return {"y": x.view(2, weights.shape[0]) * weights}


def test_an_axis_that_moves_with_others_only_has_no_bounds_of_its_own():
    exported = DynamoExporter().export(Tied().eval(), {"x": torch.rand(6, 4), "weights": torch.rand(12)})
    row = axis(exported, "weights", 0)
    assert (row.dynamic, row.minimum, row.maximum) == (True, 1, None)
    assert any("only sizes with" in finding.message for finding in exported.run.findings)
    x, weights = torch.rand(5, 8), torch.rand(20)
    torch.testing.assert_close(exported(x=x, weights=weights)["y"], x.view(2, 20) * weights)


@pytest.mark.model
def test_an_axis_of_what_is_computed_from_other_inputs_has_no_bounds_of_its_own():
    """Of Qwen2.5-VL's index of windows nobody can give another size alone: the trace's guard on it held it at 12."""
    model, inputs = zoo.build_with_inputs("Qwen2_5_VisionTransformerPretrainedModel")
    exported = DynamoExporter().export(model, inputs)
    row = axis(exported, "window_index", 0)
    assert (row.dynamic, row.minimum, row.maximum) == (True, 1, None)


@pytest.mark.model
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_one_row_of_positions_stands_for_all_rows(name):
    model = build(name)
    sample = sample_inputs(model)
    sample["position_ids"] = torch.arange(sample["input_ids"].shape[1])[None] + 1
    exported = DynamoExporter().export(model, sample)
    row = axis(exported, "position_ids", 0)
    assert (row.dynamic, row.cause, row.size) == (False, "model", 1)
    assert axis(exported, "input_ids", 0).dynamic
    assert axis(exported, "position_ids", 1).dynamic
    report = exported.verify()
    assert {"batch 3", "batch 1", "length 37", "batch 4, length 13"} <= verified_names(report)


@pytest.mark.model
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_mask_of_queries_and_keys_grows_with_the_text(name):
    model = build(name)
    sample = sample_inputs(model)
    length = sample["input_ids"].shape[1]
    sample["attention_mask"] = torch.ones(2, 1, length, length, dtype=torch.bool).tril()
    exported = DynamoExporter().export(model, sample)
    assert not axis(exported, "attention_mask", 1).dynamic
    assert {"batch 3", "length 37", "length 1", "batch 4, length 13"} <= verified_names(exported.verify())


def verified_names(report):
    assert report.verified, [(v.name, v.detail) for v in report.variations if v.status != "verified"]
    return {v.name for v in report.variations if v.status == "verified"}
