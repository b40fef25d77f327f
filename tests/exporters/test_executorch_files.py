# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch programs: their memory, what is in the file, and backends from outside of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch_programs import Twice, export, ids, llama
from transformers import BertConfig, BertModel

from transporters import AutoExportConfig, ExecutorchConfig, ExecutorchExporter, ExportedModel
from transporters.errors import ArtifactError, ConfigError, ExportError, MissingBackendError, RunError
from transporters.exporters import executorch_lowering, exporter_executorch
from transporters.exporters.executorch_backends.preparation import Preparation
from transporters.exporters.exporter_executorch import _BACKEND_PREPARE

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def exported() -> ExportedModel:
    """A decoder on XNNPACK, with a bound of the caller's for its batch."""
    return export(llama(), max_dims={"batch": 3})


# ── Memory ──


def test_without_a_mask_the_arena_is_finite() -> None:
    inputs = {"input_ids": ids(2, 7)["input_ids"]}
    found = export(llama(), inputs, max_dims={"batch": 2})
    assert (
        0
        < found.runner.describe()["planned_memory"]
        < 4 * export(llama(), max_dims={"batch": 2}).runner.describe()["planned_memory"]
    )
    assert found.verify().verified


LOADING = """
import resource, sys
from executorch.runtime import Runtime
runtime = Runtime.get()
def used(): return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
data = open(sys.argv[1], "rb").read()
before = used()
program = runtime.load_program(data)
method = program.load_method("forward")
print(used() - before)
"""


def test_loading_takes_the_memory_that_is_stated(tmp_path: Path) -> None:
    found = export(llama(positions=512), max_dims={"batch": 16, "sequence": 512})
    stated = found.runner.describe()["planned_memory"]
    assert stated > 50_000_000
    folder = found.save(tmp_path / "llama")
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(folder / "model.pte")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) <= 1.1 * stated


def test_memory_planning_can_leave_inputs_out() -> None:
    given = {"x": torch.rand(2, 3)}
    planned = [
        export(Twice().eval(), given, memory_planning={"alloc_graph_input": switch}).runner.describe()["planned_memory"]
        for switch in (True, False)
    ]
    assert planned[1] < planned[0]


# ── Files ──


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    for tied in (True, False):
        model = llama(tied=tied, vocabulary=20_000)
        folder = export(model).save(tmp_path / f"tied {tied}")
        stored = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        assert (folder / "model.pte").stat().st_size <= 1.05 * stored


def test_two_exports_are_the_same_bytes(exported: ExportedModel) -> None:
    assert export(llama(), max_dims={"batch": 3}).program["pte"] == exported.program["pte"]


def test_saved_and_loaded_it_does_the_same(exported: ExportedModel, tmp_path: Path) -> None:
    loaded = ExportedModel.load(exported.save(tmp_path / "llama"))
    assert torch.equal(loaded(**ids(2, 65)).logits, exported(**ids(2, 65)).logits)
    assert loaded.runner.describe() == exported.runner.describe()
    assert loaded.manifest["program"]["planned_memory"] > 0
    assert {"Lower", "Plan", "Load"} <= {stage.name for stage in loaded.run.stages}
    assert loaded.export_config["backend"] == "xnnpack"
    AutoExportConfig.from_dict(loaded.export_config)


def test_a_damaged_file_is_named(exported: ExportedModel, tmp_path: Path) -> None:
    folder = exported.save(tmp_path / "llama")
    (folder / "model.pte").unlink()
    with pytest.raises(ArtifactError, match=r"model\.pte"):
        ExportedModel.load(folder)
    with pytest.raises(RunError, match="cannot load the program"):
        _ = ExportedModel(**{**vars(exported), "program": {"pte": b"nothing", "facts": {}}, "_runner": None}).runner


@pytest.mark.parametrize("backend", ["xnnpack", "portable"])
def test_half_precision_runs(backend: str) -> None:
    found = export(llama().half(), backend=backend)
    report = found.verify()
    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations if v.status != "verified"]
    assert found.outputs[0]["dtype"] == "float16"


class Several(torch.nn.Module):
    """An output that is an input, one tensor under two names, an input that is written to, an unused input."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, unused: torch.Tensor) -> dict[str, torch.Tensor]:
        y.add_(1)
        doubled = x * 2
        return {"z": doubled, "x": x, "twice": doubled, "y": y - 1}


def test_outputs_keep_their_names_and_written_inputs_are_not_among_them() -> None:
    given = {"x": torch.rand(2, 3), "y": torch.rand(2, 3), "unused": torch.rand(4)}
    kept = {name: tensor.clone() for name, tensor in given.items()}
    outputs = export(Several().eval(), given)(**given)
    assert list(outputs) == ["z", "x", "twice", "y"]
    torch.testing.assert_close(outputs["z"], kept["x"] * 2)
    torch.testing.assert_close(outputs["x"], kept["x"])
    torch.testing.assert_close(outputs["twice"], kept["x"] * 2)
    torch.testing.assert_close(outputs["y"], kept["y"])
    assert all(torch.equal(given[name], kept[name]) for name in given)


# ── Backends ──


def test_the_callers_model_stays_as_it_is() -> None:
    model = llama().half()
    before = {name: (p.data_ptr(), p.dtype, p.device, p.clone()) for name, p in model.named_parameters()}
    export(model)
    for name, parameter in model.named_parameters():
        pointer, dtype, device, values = before[name]
        assert (parameter.data_ptr(), parameter.dtype, parameter.device) == (pointer, dtype, device)
        assert torch.equal(parameter, values)


def test_a_backend_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def prepare_for_mine(model: Any, config: ExecutorchConfig) -> Preparation:
        asked.append((model, config.backend))
        return Preparation(model)

    monkeypatch.setitem(_BACKEND_PREPARE, "mine", prepare_for_mine)
    model = llama()
    found = export(model, backend="mine")
    assert asked == [(model, "mine")]
    assert found.runner.describe()["backend"] == "mine"
    assert found.runner.describe()["delegates"] == {}
    assert found.verify().verified


def test_an_unknown_backend_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no backend 'xnpack'[\s\S]*xnnpack, portable, cuda"):
        export(llama(), backend="xnpack")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_says_what_is_missing() -> None:
    with pytest.raises(MissingBackendError, match=r"torch built for CUDA|NVIDIA GPU") as caught:
        export(llama(), backend="cuda")
    assert caught.value.stage == "Backend preparation"


def test_without_the_package_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutorchExporter, "requires", ("executorch>=99",))
    with pytest.raises(MissingBackendError, match=r"executorch>=99 is needed[\s\S]*transporters\[executorch\]"):
        export(llama())


class Raised(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.sigmoid(x).unsqueeze(-1)) * 2


class Shifted(torch.nn.Module):
    """By the largest of each row, along an axis that XNNPACK claims and does not take."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(x)
        return torch.exp(x - x.max(dim=-1, keepdim=True).values)


@pytest.mark.parametrize(
    ("model", "operation", "sizes"), [(Raised(), "unsqueeze", (2, 3)), (Shifted(), "amax", (2, 3, 4, 5))]
)
def test_what_the_delegate_refuses_is_withheld_and_told(
    model: torch.nn.Module, operation: str, sizes: tuple[int, ...]
) -> None:
    found = export(model.eval(), {"x": torch.rand(sizes)})
    told = [finding for finding in found.run.findings if operation in finding.where]
    assert [finding.level for finding in told] == ["warning"]
    assert "claims it and then refuses it" in told[0].message
    assert "test_executorch_files.py" in told[0].message
    x = torch.rand(sizes)
    torch.testing.assert_close(found(x=x), model(x))


def test_what_the_runtime_refuses_to_load_is_withheld_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that loads no program in which the delegate has a sigmoid."""
    real, lowered = executorch_lowering.to_edge, []

    def to_edge(*args: Any) -> Any:
        lowered.append(real(*args))
        return lowered[-1]

    def load(pte: bytes) -> None:
        names = [str(node.target) for node in executorch_lowering.delegated(lowered[-1])]
        if any("sigmoid" in name for name in names):
            raise ExportError("error 0x22 on loading")

    monkeypatch.setattr(executorch_lowering, "to_edge", to_edge)
    monkeypatch.setattr(executorch_lowering, "load", load)

    class Curved(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x * 2 + 1) * x

    found = export(Curved().eval(), {"x": torch.rand(2, 3)})
    (told,) = [finding for finding in found.run.findings if finding.level == "warning"]
    assert "sigmoid" in told.where
    assert "error 0x22" in told.message
    assert found.runner.describe()["delegates"]["XnnpackBackend"] >= 1, "the rest is still delegated"
    torch.testing.assert_close(found(x=torch.ones(5, 7)), Curved()(torch.ones(5, 7)))

    def never(pte: bytes) -> None:
        raise ExportError("error 0x23 on loading")

    monkeypatch.setattr(executorch_lowering, "load", never)
    with pytest.raises(ExportError, match="0x23"):
        export(Curved().eval(), {"x": torch.rand(2, 3)})


def test_an_operation_without_a_kernel_is_named_with_its_line() -> None:
    class Probit(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erfinv(x)

    with pytest.raises(ExportError, match=r"no kernel for aten::erfinv.* \(.*test_executorch_files\.py"):
        export(Probit().eval(), {"x": torch.rand(2, 3)})


def test_without_partition_nothing_is_delegated() -> None:
    assert export(llama(), partition=False).runner.describe()["delegates"] == {}


def test_the_stages_of_executorch_itself_are_timed(exported: ExportedModel) -> None:
    names = [stage.name for stage in exported.run.stages]
    assert names[:2] == list(exporter_executorch.ExecutorchExporter.stages[:2])
    assert names[-6:] == [*exporter_executorch.ExecutorchExporter.stages[2:], "Lower", "Plan", "Load"]


def test_an_encoder_is_delegated_almost_whole() -> None:
    config = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    facts = export(BertModel(config).eval()).runner.describe()
    assert facts["multiply_adds"]["share"] >= 0.95
    assert facts["multiply_adds"]["total"] > 1_000_000
