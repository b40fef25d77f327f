# SPDX-License-Identifier: Apache-2.0
"""Every architecture of the acceptance list as an ExecuTorch program, verified in ExecuTorch's runtime."""

from __future__ import annotations

import pytest

from tiny import TINY, build
from transporters import ExecutorchExporter, ExportedModel
from transporters.inputs.samples import sample_inputs

pytestmark = pytest.mark.model

#: Workarounds without which the model does not export or is wrong.
NEEDED = {
    "gemma3": {"executorch:_fix_gelu_tanh"},
    "gpt2": {"executorch:_fix_view_of_attention"},
    "mixtral": {"executorch:_patch_experts"},
    "qwen2_vl": {"executorch:_fix_conv3d_of_patches"},
    "qwen3_moe": {"executorch:_patch_experts"},
    "wav2vec2": {"executorch:_fix_conv1d"},
}
#: These lower for half a minute; `make slow` has them, and `make sample` has others like them.
LARGE = {"detr", "swin", "mamba"}
MODELS = [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in TINY]


def verified(name: str, config: dict[str, object]) -> ExportedModel:
    """The model's program, equal to eager at every variation that eager takes and that lies inside the bounds."""
    model = build(name)
    exported = ExecutorchExporter().export(model, sample_inputs(model), config)
    report = exported.verify()
    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations if v.status != "verified"]
    return exported


@pytest.mark.parametrize("name", MODELS)
def test_dynamic_on_xnnpack(name: str) -> None:
    exported = verified(name, {})
    assert exported.report is not None
    assert all(v.detail.startswith("eager refuses") for v in exported.report.variations if v.status == "not applicable")
    assert len([v for v in exported.report.variations if v.status == "verified"]) >= 3
    assert NEEDED.get(name, set()) <= set(exported.run.fired)
    facts = exported.runner.describe()
    assert facts["multiply_adds"]["share"] >= 0.95
    assert facts["nodes"]["delegated"] > 0
    assert facts["delegates"]["XnnpackBackend"] > 0
    assert all(axis.maximum for axis in exported.contract.axes if axis.dynamic)


@pytest.mark.parametrize("name", ["bert", "vit", "wav2vec2", "qwen2_vl"])
def test_static_on_xnnpack(name: str) -> None:
    exported = verified(name, {"dynamic": False})
    assert exported.runner.describe()["multiply_adds"]["share"] >= 0.95
    assert not any(axis.dynamic for axis in exported.contract.axes)


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_dynamic_on_the_portable_kernels(name: str) -> None:
    exported = verified(name, {"backend": "portable"})
    facts = exported.runner.describe()
    assert facts["delegates"] == {}
    assert facts["multiply_adds"]["delegated"] == 0
    assert facts["multiply_adds"]["total"] > 0
