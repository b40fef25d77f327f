# SPDX-License-Identifier: Apache-2.0
"""``transporters check``: an answer in seconds, from a config alone."""

from __future__ import annotations

import resource
import time

import pytest
from published_configs import PUBLISHED, write
from transformers.models.llama import modeling_llama

from transporters import ExportedModel
from transporters.exporters.exporter_dynamo import DynamoExporter
from transporters.verification.report import Bisection, OutputCheck, Report, Variation

#: Seconds that an answer may take, of a processor's time: what a quiet machine takes by the clock.
PATIENCE = 30


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    return {name: write(root / name, config) for name, config in PUBLISHED.items()}


def sizes(document):
    return {row["name"]: (row["full"], row["tiny"]) for row in document["shrunk"]}


@pytest.mark.model
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_checked_without_weights(command, folders, name):
    start = time.process_time()
    outcome = command("check", folders[name], "--to", "torch", "--json")
    assert time.process_time() - start < PATIENCE
    document = outcome.document
    assert outcome.code == 0, outcome.err
    assert document["status"] == "verified"
    assert document["class"] == PUBLISHED[name]["architectures"][0]
    assert document["config"] == f"the config of {folders[name]}"
    assert document["parameters"] < 100_000
    for key in ("hidden_size", "num_hidden_layers", "vocab_size"):
        full, tiny = sizes(document)[key]
        assert full == PUBLISHED[name][key]
        assert tiny < full
    (found,) = document["formats"]
    assert (found["export_format"], found["verdict"], found["error"]) == ("torch", "verified", None)
    assert list(found["stages"])[-5:] == list(DynamoExporter.stages)
    assert len(found["report"]["variations"]) > 10
    assert {axis["label"] for axis in found["shape_contract"] if axis["dynamic"]} == {"batch", "sequence"}
    assert [path.name for path in folders[name].iterdir()] == ["config.json"], "nothing is written"


@pytest.mark.model
def test_deepseek_goes_to_onnx_with_both_kinds_of_layers(command, folders):
    document = command("check", folders["deepseek-v3"], "--to", "onnx", "--json").document
    assert document["status"] == "verified"
    assert document["layers"] == {
        "model.layers": {
            "DeepseekV3DecoderLayer with DeepseekV3MLP": 1,
            "DeepseekV3DecoderLayer with DeepseekV3MoE": 1,
        }
    }
    assert sizes(document)["n_routed_experts"] == (256, 4)
    assert document["left_out"] == ["fp8 quantization: the tiny model is in float32"]
    assert "onnx:_aten_grouped_mm" in document["formats"][0]["run"]["workarounds"]


@pytest.mark.model
def test_a_process_of_its_own_answers_in_time(process, folders):
    start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    outcome = process("check", folders["llama-3.1-70b"], "--to", "torch")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start < PATIENCE
    assert outcome.code == 0, outcome.err
    assert "LlamaForCausalLM, tiny (" in outcome.out
    assert "128,256   128" in outcome.out
    assert "Layers: model.layers 2 × LlamaDecoderLayer" in outcome.out
    assert "✓ LlamaForCausalLM → torch: verified" in outcome.out
    assert "Shape contract" in outcome.out
    assert "dynamo:_fix_size_one_guards" in outcome.out
    last = outcome.out.rstrip().splitlines()[-1]
    assert last.startswith("  ✓ torch: verified, equal to eager at 12 sets of inputs (")
    assert "✓ Build tiny model" in outcome.err


@pytest.mark.model
def test_an_architecture_means_its_richest_class(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    outcome = command("check", "gemma3_text", "--to", "torch", "--static")
    assert outcome.code == 0, outcome.err
    assert "Gemma3ForCausalLM, tiny" in outcome.out
    assert "from the defaults of Gemma3TextConfig" in outcome.out
    assert "Kinds kept: layer_types sliding_attention 22 → 1, full_attention 4 → 1" in outcome.out


@pytest.mark.model
def test_a_class_may_be_named_and_may_be_a_part(command):
    document = command("check", "DetrDecoder", "--to", "torch", "--static", "--json").document
    assert (document["status"], document["class"], document["architecture"]) == ("verified", "DetrDecoder", "detr")
    assert document["dynamic"] is False


def _depends_on_data(self, hidden):
    return hidden if hidden.sum() > 0 else -hidden


@pytest.mark.model
def test_a_refusal_names_stage_error_and_line_and_the_next_format_has_its_turn(command, monkeypatch):
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", _depends_on_data)
    outcome = command("check", "LlamaModel", "--to", "torch", "--to", "onnx")
    assert outcome.code == 1
    assert "LlamaModel → torch: refused" in outcome.out
    for line, name in zip(outcome.out.rstrip().splitlines()[-2:], ("torch", "onnx"), strict=True):
        assert line.startswith(f"  ✗ {name}: refused in stage Dynamic shapes at modeling_llama.py:")
    document = command("check", "LlamaModel", "--to", "torch", "--json").document
    assert document["status"] == "not verified"
    (found,) = document["formats"]
    assert (found["verdict"], found["report"], found["run"]) == ("refused", None, None)
    assert found["error"]["stage"] == "Dynamic shapes"
    assert found["error"]["where"].startswith("modeling_llama.py:")
    assert "Dynamic shapes" in found["stages"]


@pytest.mark.model
def test_a_mismatch_says_what_differs_and_where_it_begins(command, monkeypatch):
    def verify(self, **_):
        check = OutputCheck("logits", "mismatch", (2, 8, 32), "float32", 0.5, 0.1, 3, 512, 1e-5)
        report = Report("LlamaModel", "torch", [Variation("batch 3", "mismatch", {}, (check,))])
        report.bisection = Bisection("batch 3", (), "Dynamic shapes", "layers.1")
        return report

    monkeypatch.setattr(ExportedModel, "verify", verify)
    monkeypatch.setenv("COLUMNS", "160")
    outcome = command("check", "LlamaModel", "--to", "torch")
    assert outcome.code == 1
    last = outcome.out.rstrip().splitlines()[-1]
    assert last == "  ✗ torch: mismatch in stage Dynamic shapes at layers.1: Mismatch: batch 3: logits (mismatch)"


WRONG = {
    "an architecture": ("lama", "no architecture and no model class 'lama'", "llama"),
    "a class": ("LlamaForCausalLMM", "no model class 'LlamaForCausalLMM'", "LlamaForCausalLM"),
    "a config class": ("LlamaConfig", "no model class 'LlamaConfig'", "llama"),
    "what cannot be built": ("dinat", "'dinat' cannot be built: It needs the package natten", "config.json"),
    "a class that cannot be built": ("BarkModel", "'BarkModel' cannot be built", "config.json"),
    "a hub id offline": ("org/name", "the hub cannot be reached", "HF_HUB_OFFLINE"),
    "a missing folder": ("./nowhere", "There is no folder ./nowhere", "hub id"),
}


@pytest.mark.parametrize(("given", "message", "advice"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_one_message_with_what_was_meant(command, monkeypatch, given, message, advice):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    outcome = command("check", given, "--to", "torch", "--json")
    assert outcome.code == 2
    assert message in outcome.document["error"]["message"]
    assert advice in outcome.document["error"]["advice"]


def test_a_wrong_format_ends_before_anything_is_loaded(command):
    outcome = command("check", "llama", "--to", "torch", "--to", "onx", "--json")
    assert outcome.code == 2
    assert "did you mean 'onnx'?" in outcome.document["error"]["advice"]
    assert "Load libraries" not in outcome.err


def test_code_of_the_repository_is_not_run(command, tmp_path):
    config = {"model_type": "own_thing", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    outcome = command("check", write(tmp_path / "own", config), "--to", "torch")
    assert outcome.code == 2
    assert "needs model code from its own repository, which is not run here" in outcome.err


def test_a_config_that_its_class_does_not_take_fails_with_the_reason(command, tmp_path):
    config = {"model_type": "dinat", "architectures": ["DinatModel"]}
    outcome = command("check", write(tmp_path / "dinat", config), "--to", "torch", "--json")
    assert outcome.code == 1
    assert "DinatModel cannot be built tiny from the config of" in outcome.document["error"]["message"]
    assert outcome.document["error"]["advice"] == "It needs the package natten."
