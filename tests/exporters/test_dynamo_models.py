# SPDX-License-Identifier: Apache-2.0
"""Every architecture of the acceptance list, dynamic, verified at all variations that eager takes."""

from __future__ import annotations

import pytest
import torch

from tiny import TINY, build
from transporters import DynamoExporter, ExportedModel
from transporters.inputs.samples import sample_inputs
from transporters.trees import pytrees

#: Axes that the model itself fixes, by label, and words of the model's own error that say so.
FIXED_BY_MODEL = {
    "whisper": {"frames": "expects the mel input features", "mel_bins": "channels"},
    "vit": {"height": "doesn't match model", "width": "doesn't match model"},
    "clip": {"height": "doesn't match model", "width": "doesn't match model"},
}
#: Variations that must not be missing.
TRIED = {"swin": {"image 40x32", "image 32x48", "image 64x64", "batch 1", "batch 3"}}
#: Workarounds without which the model does not export or is wrong.
NEEDED = {
    "nllb_moe": {"dynamo:_patch_module_cast", "model:_patch_nllb_moe_experts", "dynamo:_fix_size_rounding"},
    "mamba": {"model:_patch_selective_scan", "model:_patch_conv_state_update"},
    "swin": {"model:_patch_padding", "model:_patch_window_shift", "dynamo:_patch_contiguous"},
    "qwen2_vl": {"model:_patch_split_attention", "model:_patch_attention_interface", "model:_patch_feature_split"},
}


@pytest.mark.model
@pytest.mark.parametrize("name", TINY)
def test_exports_dynamic_and_verifies(name, tmp_path):
    model = build(name)
    inputs = sample_inputs(model)
    exported = DynamoExporter().export(model, inputs)
    report = exported.verify()

    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations if v.status != "verified"]
    ran = [v for v in report.variations if v.status == "verified"]
    assert len(ran) >= 4
    assert all(v.detail.startswith("eager refuses") for v in report.variations if v.status == "not applicable")
    assert TRIED.get(name, set()) <= {v.name for v in ran}
    assert NEEDED.get(name, set()) <= set(exported.run.fired)

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


@pytest.mark.model
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "nllb_moe"])
def test_an_expert_that_no_token_chose_is_in_the_program(name):
    """Traced on one token, where most experts are idle; run on a hundred, where eager uses all."""
    model = build(name)
    small = sample_inputs(model, batch=1, length=1)
    exported = DynamoExporter().export(model, small)
    large = sample_inputs(model, batch=4, length=25, seed=3)
    with torch.no_grad():
        expected = model(**large)
    torch.testing.assert_close(exported(**large).logits, expected.logits, rtol=1e-5, atol=1e-5)

    moved = 0.0
    experts = [p for n, p in model.named_parameters() if "experts" in n]
    with torch.no_grad():
        for parameter in experts:
            parameter.mul_(1.5)
        moved = (model(**large).logits - expected.logits).abs().max().item()
    assert moved > 100 * 1e-5, "the test is blind: the experts do not matter"
