# SPDX-License-Identifier: Apache-2.0
"""Every architecture of the acceptance list as ONNX: dynamic, verified in ONNX Runtime, valid, loaded in silence."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch

from tiny import TINY, build
from tiny_more import MORE
from transporters import ExportedModel, OnnxExporter
from transporters.inputs.samples import sample_inputs
from transporters.trees import pytrees

#: Workarounds without which the model does not export or is wrong.
NEEDED = {
    "mixtral": {"onnx:_aten_grouped_mm"},
    "qwen3_moe": {"onnx:_aten_grouped_mm"},
    "swin": {"onnx:_aten_roll"},
}


#: Graphs of thousands of nodes; `make slow` has them, and `make sample` has others like them.
LARGE = {"rt_detr", "d_fine", "mask2former", "grounding_dino", "segformer", "mamba", "led", "nllb_moe"}
MODELS = [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in (*TINY, *MORE)]


@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
def test_as_onnx(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = build(name)
    exported = OnnxExporter().export(model, sample_inputs(model))
    report = exported.verify()
    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations if v.status != "verified"]
    assert len([v for v in report.variations if v.status == "verified"]) >= 3
    assert all(v.detail.startswith("eager refuses") for v in report.variations if v.status == "not applicable")
    assert NEEDED.get(name, set()) <= set(exported.run.fired)

    path = exported.save(tmp_path / name) / "model.onnx"
    onnx.checker.check_model(path, full_check=True)
    capfd.readouterr()
    onnxruntime.InferenceSession(path)
    assert capfd.readouterr() == ("", ""), "ONNX Runtime warns of something"
    assert_loads(exported, path.parent)
    assert_names(exported, onnx.load(path).graph)


def assert_loads(exported: ExportedModel, folder: Path) -> None:
    """Saved and loaded the program does the same."""
    inputs = exported.sample_inputs
    again, first = ExportedModel.load(folder)(**inputs), exported(**inputs)
    for (left, one), (right, other) in zip(pytrees.named_leaves(first), pytrees.named_leaves(again), strict=True):
        assert left == right
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def assert_names(exported: ExportedModel, graph: onnx.GraphProto) -> None:
    """Inputs, outputs, sizes, weights and nodes have the model's own names."""
    inputs, outputs = [i.name for i in graph.input], [o.name for o in graph.output]
    assert inputs == [entry["name"] for entry in exported.inputs]
    assert outputs == [entry["name"] for entry in exported.outputs]
    assert {name.split(".")[0] for name in inputs} <= set(exported.complete_inputs(exported.sample_inputs))
    assert not set(inputs) & set(outputs)

    named = {axis.label for axis in exported.contract.axes if axis.dynamic}
    sizes = {dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    assert sizes <= named, "a size has the name that the shape contract has for it"

    weights = {name for name, _ in exported.model.named_parameters()}
    stored = {initializer.name for initializer in graph.initializer}
    # Some are not used, and some are fused into others (a batch norm into its convolution).
    assert len(weights & stored) >= 0.6 * len(weights), "weights keep their names"
    modules = {name for name, _ in exported.model.named_modules()}
    assert any(node.name.rpartition("/")[0] in modules - {""} for node in graph.node), "nodes say where they are from"


@pytest.mark.model
@pytest.mark.parametrize("name", ["bert", "mixtral"])
def test_two_exports_are_the_same_bytes(name: str, tmp_path: Path) -> None:
    def content(folder: str) -> bytes:
        model = build(name)
        saved = OnnxExporter().export(model, sample_inputs(model)).save(tmp_path / folder)
        return (saved / "model.onnx").read_bytes()

    assert content("one") == content("two")


@pytest.mark.model
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["bert", "llama", "whisper"])
def test_half_precision_verifies(name: str, dtype: torch.dtype) -> None:
    model = build(name).to(dtype)
    exported = OnnxExporter().export(model, sample_inputs(model))
    report = exported.verify()
    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations if v.status != "verified"]
    assert ("onnx:_fix_ir_bfloat16" in exported.run.fired) == (dtype == torch.bfloat16)


@pytest.mark.model
def test_without_the_optimizer() -> None:
    model = build("llama")
    exported = OnnxExporter().export(model, sample_inputs(model), {"optimize": False})
    assert exported.verify().verified


@pytest.mark.model
@pytest.mark.parametrize("opset", [21, 22, 23])
def test_other_opsets(opset: int) -> None:
    model = build("bert")
    exported = OnnxExporter().export(model, sample_inputs(model), {"opset_version": opset})
    assert exported.runner.describe()["opset"]["ai.onnx"] == opset
    assert exported.verify().verified
