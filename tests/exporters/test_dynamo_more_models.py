# SPDX-License-Identifier: Apache-2.0
"""More architectures, dynamic, verified at all variations that eager takes."""

from __future__ import annotations

import pytest
import torch

from tiny import build
from tiny_more import MORE
from transporters import DynamoExporter, ExportedModel
from transporters.exporters.tracing import preserved_state
from transporters.inputs.samples import sample_inputs
from transporters.trees import pytrees

#: Axes that the model itself fixes, by label, and words of the model's own error that say so.
FIXED_BY_MODEL = {
    "seamless_m4t_speech": {"mel_bins": "normalized_shape"},
    "patchtst": {"past_values.1": "doesn't match model configuration", "past_values.2": "number of input channels"},
}
#: Workarounds without which the model does not export or is wrong.
_SLIDING = {"model:_patch_window_padding", "model:_patch_global_question", "model:_patch_sliding_attention"}
_BLOCKS = {"model:_patch_sparse_choice", "model:_patch_block_sparse_attention"}
_MAPS = {"model:_patch_padding", "dynamo:_patch_last_slice", "dynamo:_patch_as_tensor", "dynamo:_patch_linspace"}
NEEDED = {
    "layoutlmv3": {"dynamo:_patch_torch_int"},
    "longformer": _SLIDING,
    "led": _SLIDING,
    "big_bird_sparse": _BLOCKS,
    "bigbird_pegasus": _BLOCKS,
    "rt_detr": {"dynamo:_patch_len", "dynamo:_patch_torch_int"},
    "d_fine": {"dynamo:_patch_len", "dynamo:_patch_torch_int"},
    "mask2former": _MAPS,
    "grounding_dino": _MAPS,
}


#: Graphs of thousands of nodes; `make slow` has them, and `make sample` has others like them.
LARGE = {"d_fine", "mask2former", "grounding_dino"}
MODELS = [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in MORE]


@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
def test_exports_dynamic_and_verifies(name, tmp_path):
    model = build(name)
    inputs = sample_inputs(model)
    exported = DynamoExporter().export(model, inputs)
    report = exported.verify()

    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations if v.status != "verified"]
    ran = [v for v in report.variations if v.status == "verified"]
    assert len(ran) >= 3
    assert all(v.detail.startswith("eager refuses") for v in report.variations if v.status == "not applicable")
    assert NEEDED.get(name, set()) <= set(exported.run.fired)
    if name in ("segformer", "mask2former", "grounding_dino"):
        assert image_sizes(inputs) <= {v.name for v in ran}

    static = {a.label: a for a in exported.contract.axes if not a.dynamic and a.cause != "config"}
    assert set(static) == set(FIXED_BY_MODEL.get(name, {}))
    for label, words in FIXED_BY_MODEL.get(name, {}).items():
        assert static[label].cause == "model"
        assert words in static[label].reason
        assert static[label].source.startswith("transformers/models/")
    assert all(a.dynamic for a in exported.contract.axes if a.label in ("batch", "sequence", "decoder_sequence"))

    loaded = ExportedModel.load(exported.save(tmp_path / name))
    again, first = loaded(**inputs), exported(**inputs)
    assert type(again) is type(first)
    assert pytrees.structure(again) == pytrees.structure(first)
    for (left, one), (right, other) in zip(pytrees.named_leaves(first), pytrees.named_leaves(again), strict=True):
        assert left == right
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def image_sizes(sample):
    """Names of the variations of an image's size."""
    height, width = sample["pixel_values"].shape[-2:]
    sizes = ((height * 5 // 4, width), (height, width * 3 // 2), (2 * height, 2 * width))
    return {f"image {tall}x{wide}" for tall, wide in sizes}


@pytest.mark.slow
@pytest.mark.model
def test_phrases_are_kept_apart():
    """The tokens that end a phrase are none of the sample's, so the mask that they make is tried here."""
    model = build("grounding_dino")
    sample = sample_inputs(model)
    exported = DynamoExporter().export(model, sample)
    phrases = sample["input_ids"].clone()
    phrases[:, 0], phrases[:, 3], phrases[:, 5], phrases[:, 6] = 101, 1012, 1029, 102
    one_phrase = phrases.clone()
    one_phrase[:, 3] = sample["input_ids"][:, 3]
    outputs = []
    for ids in (phrases, one_phrase):
        with torch.no_grad():
            expected = model(**{**sample, "input_ids": ids})
        actual = exported(**{**sample, "input_ids": ids})
        torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(actual.pred_boxes, expected.pred_boxes, rtol=1e-4, atol=1e-4)
        outputs.append(expected.encoder_last_hidden_state_text[:, 1])
    assert (outputs[0] - outputs[1]).abs().max() > 1e-2, "the test is blind: phrases do not matter"


@pytest.mark.model
@pytest.mark.parametrize("name", ["longformer", "led"])
def test_global_tokens_are_seen_by_all(name):
    """Also by those far outside of the window, and by rows with another number of global tokens."""
    model = build(name)
    sample = sample_inputs(model, length=24)
    is_global = torch.zeros_like(sample["input_ids"])
    is_global[:, 0] = is_global[1, 9] = 1
    exported = DynamoExporter().export(model, {**sample, "global_attention_mask": is_global})
    report = exported.verify()
    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations if v.status != "verified"]
    with torch.no_grad():
        local = model(**sample, global_attention_mask=torch.zeros_like(is_global))[0]
        moved = (model(**sample, global_attention_mask=is_global)[0] - local).abs().max()
    assert moved > 1e-2, "the test is blind: global tokens do not matter"


@pytest.mark.model
@pytest.mark.parametrize("name", ["longformer", "led"])
@pytest.mark.parametrize(("traced", "others"), [(7, (8, 9, 24)), (8, (7, 10, 24))])
def test_lengths_of_whole_windows_and_others(name, traced, others):
    """Windows have 4 tokens: some lengths are padded, others are not."""
    model = build(name)
    exported = DynamoExporter().export(model, sample_inputs(model, length=traced))
    for length in others:
        sample = sample_inputs(model, length=length, seed=3)
        with torch.no_grad():
            expected = model(**sample)[0]
        torch.testing.assert_close(exported(**sample)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.model
@pytest.mark.parametrize("name", ["big_bird_sparse", "bigbird_pegasus"])
@pytest.mark.parametrize(("traced", "others"), [(7, (50, 36, 37)), (48, (7, 50, 1))])
def test_one_program_for_full_and_for_sparse_attention(name, traced, others):
    """Up to 36 tokens attention is full, beyond them it is sparse; texts of 50 have a last block that is not whole."""
    model = build(name)
    exported = DynamoExporter().export(model, sample_inputs(model, length=traced))
    for length in others:
        sample = sample_inputs(model, length=length, seed=3)
        sample["attention_mask"][1, length // 2 + 1 :] = 0
        with torch.no_grad(), preserved_state(model):  # a short text would switch the model to full attention for good
            expected = model(**sample)[0]
        torch.testing.assert_close(exported(**sample)[0], expected, rtol=1e-4, atol=1e-5)


def test_sparse_attention_is_not_full_attention():
    """Or the test above would pass for the wrong reason."""
    sparse, full = build("big_bird_sparse"), build("big_bird")
    sample = sample_inputs(sparse, length=50)
    with torch.no_grad():
        assert (sparse(**sample)[0] - full(**sample)[0]).abs().max() > 1e-2
