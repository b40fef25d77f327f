# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import small_models
from transformers import BertModel

from transporters import ExportedModel
from transporters.exporters.exporter_dynamo import DynamoExporter
from transporters.verification.report import OutputCheck, Report, Variation

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_models.write(tmp_path_factory.mktemp("model") / "bert", "features")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def wrong(monkeypatch):
    """Make every verification find one wrong output."""

    def verify(self, **_):
        check = OutputCheck("last_hidden_state", "mismatch", (2, 8, 32), "float32", float("nan"), 0.1, 3, 512, 1e-5)
        self.report = Report("BertModel", "torch", [Variation("sample", "mismatch", {}, (check,))])
        self.report.run = self.run.to_dict()
        return self.report

    monkeypatch.setattr(ExportedModel, "verify", verify)


def test_export_verifies_saves_and_shows_the_report(command, model, tmp_path):
    out = tmp_path / "out"
    outcome = command("export", model, "--to", "torch", "--out", out)
    assert outcome.code == 0, outcome.err
    assert "✓ BertModel → torch: verified" in outcome.out
    for stage in DynamoExporter.stages:
        assert f"✓ {stage}" in outcome.err
    assert "Writing model shards" not in outcome.err
    assert {"export.json", "report.html", "config.json", "tokenizer.json"} <= set(names(out))
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "BertModel → torch: verified" in page
    for name in ("model.pt2", "tokenizer.json", "sample_inputs.safetensors"):
        assert f"<code>{name}</code>" in page
    exported = ExportedModel.load(out)
    assert exported.report is not None
    assert exported.report.verified
    assert exported.manifest["source"]["model"] == str(model)


def test_export_as_json_is_one_document(command, model, tmp_path):
    page = tmp_path / "pages" / "page.html"
    outcome = command("export", model, "--to", "torch", "--out", tmp_path / "out", "--json", "--html", page)
    document = outcome.document
    assert (outcome.code, document["status"]) == (0, "verified")
    assert document["artifact"] == str(tmp_path / "out")
    assert [stage["name"] for stage in document["run"]["stages"]][-5:] == list(DynamoExporter.stages)
    assert document["report"]["status"] == "verified"
    assert len([v for v in document["report"]["variations"] if v["status"] == "verified"]) >= 5
    assert "export.json" in document["report"]["files"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_an_unverified_program_never_gets_the_name_that_was_asked_for(command, model, tmp_path, wrong):
    outcome = command("export", model, "--to", "torch", "--out", tmp_path / "out")
    assert outcome.code == 1
    assert names(tmp_path) == ["out-unverified"]
    assert "NOT VERIFIED" in outcome.err
    assert str(tmp_path / "out-unverified") in outcome.err
    assert "NOT verified" in outcome.out
    assert (tmp_path / "out-unverified" / "report.html").is_file()


def test_an_unverified_program_leaves_the_earlier_artifact_alone(command, pairs, tmp_path, wrong):
    pair = pairs("features")
    out = shutil.copytree(pair.artifact, tmp_path / "out")
    before = (out / "export.json").read_bytes()
    outcome = command("export", pair.model, "--to", "torch", "--out", out, "--json")
    assert outcome.code == 1
    assert outcome.document["status"] == "mismatch"
    assert outcome.document["report"]["variations"][0]["outputs"][0]["max_abs"] is None  # NaN is no JSON
    assert (out / "export.json").read_bytes() == before
    assert "still holds the earlier artifact" in outcome.err


def test_without_verification_nothing_is_claimed(command, model, tmp_path):
    outcome = command("export", model, "--to", "torch", "--out", tmp_path / "out", "--no-verify", "--json")
    assert (outcome.code, outcome.document["status"]) == (0, "exported")
    assert outcome.document["report"] is None
    assert "report.html" not in names(tmp_path / "out")


def test_static_fixes_every_axis(command, model, tmp_path):
    arguments = ("export", model, "--to", "torch", "--out", tmp_path / "out", "--static", "--no-verify", "--json")
    axes = command(*arguments).document["shape_contract"]
    assert axes
    assert not any(axis["dynamic"] for axis in axes)


def axis(document, name, index):
    return next(a for a in document["shape_contract"] if (a["input"], a["index"]) == (name, index))


def test_dynamic_shapes_are_read_from_a_file(command, model, tmp_path):
    shapes = tmp_path / "shapes.json"
    length = {"name": "length", "min": 2, "max": 16}
    shapes.write_text(json.dumps({name: {"0": "static", "1": length} for name in ("input_ids", "attention_mask")}))
    options = ("--dynamic-shapes", shapes, "--no-verify", "--json")
    document = command("export", model, "--to", "torch", "--out", tmp_path / "out", *options).document
    assert axis(document, "input_ids", 0)["cause"] == "requested"
    assert (axis(document, "input_ids", 1)["minimum"], axis(document, "input_ids", 1)["maximum"]) == (2, 16)
    kept = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))["config"]
    assert kept["dynamic_shapes"]["input_ids"] == {"0": "static", "1": length}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("{'input_ids': 1}", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"input_idz": {"1": "auto"}}', "input_ids"),
        ('{"input_ids": {"1": "dynamc"}}', "dynamc"),
        ('{"input_ids": {"7": "auto"}}', "axis 7"),
    ],
)
def test_dynamic_shapes_that_cannot_be_meant_are_wrong_use(command, model, tmp_path, text, words):
    shapes = tmp_path / "shapes.json"
    if text is not None:
        shapes.write_text(text, encoding="utf-8")
    outcome = command("export", model, "--to", "torch", "--out", tmp_path / "out", "--dynamic-shapes", shapes)
    assert outcome.code == 2, outcome.err
    assert words in outcome.err
    assert not (tmp_path / "out").exists()


def test_static_and_dynamic_shapes_exclude_each_other(command, model, tmp_path):
    (tmp_path / "shapes.json").write_text("{}", encoding="utf-8")
    options = ("--static", "--dynamic-shapes", tmp_path / "shapes.json")
    outcome = command("export", model, "--to", "torch", "--out", tmp_path / "out", *options)
    assert outcome.code == 2
    assert "exclude each other" in outcome.err
    assert "Load model" not in outcome.err


def test_an_axis_that_the_trace_fixes_must_be_allowed_by_name(command, model, tmp_path, monkeypatch):
    forward = BertModel.forward

    def held(self, input_ids, **others):
        assert int(input_ids.shape[1]) > 0  # int() makes the trace keep the sample's length
        return forward(self, input_ids, **others)

    monkeypatch.setattr(BertModel, "forward", functools.wraps(forward)(held))
    arguments = ("export", model, "--to", "torch", "--out", tmp_path / "out", "--no-verify", "--json")
    refused = command(*arguments)
    assert (refused.code, refused.document["error"]["type"]) == (1, "FrozenAxisError")
    assert "--allow-static sequence" in refused.document["error"]["advice"]
    allowed = command(*arguments, "--allow-static", "sequence")
    assert allowed.code == 0, allowed.err
    assert axis(allowed.document, "input_ids", 1)["cause"] == "guard"
    assert axis(allowed.document, "input_ids", 0)["dynamic"]


def test_dtype_and_task_are_taken(command, model, tmp_path):
    options = ("--dtype", "bfloat16", "--task", "fill-mask", "--no-verify", "--json")
    document = command("export", model, "--to", "torch", "--out", tmp_path / "out", *options).document
    assert document["status"] == "exported"
    assert document["notes"]  # the head is not in the checkpoint
    manifest = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert manifest["task"] == "fill-mask"
    assert manifest["outputs"][0]["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("nowhere/at-all",), "nowhere/at-all"),
        (("MODEL", "--to", "onxx"), "onxx"),
        (("MODEL", "--task", "text-classificaton"), "text-classification"),
        (("MODEL", "--dtype", "float33"), "float32"),
        (("MODEL", "--skip-workaround", "dynamo:_patch_nothing"), "dynamo:_patch_nothing"),
        (("MODEL", "--gguf-file", "none.gguf"), "none.gguf"),
        (("MODEL", "--for", "transformer.js"), "did you mean 'transformers.js'"),
        (("MODEL", "--for", "transformers.js"), "transformers.js runs onnx, not torch"),
    ],
)
def test_wrong_use_is_one_message_and_leaves_nothing(command, model, tmp_path, options, words):
    arguments = [model if option == "MODEL" else option for option in options]
    arguments += [] if "--to" in arguments else ["--to", "torch"]
    outcome = command("export", *arguments, "--out", tmp_path / "out")
    assert outcome.code == 2, outcome.err
    assert words in outcome.err
    assert outcome.err.count("✗ ") <= 2  # the step that failed, and the message
    assert "Traceback" not in outcome.err
    assert names(tmp_path) == []
    assert command("export", *arguments, "--out", tmp_path / "out", "--json").document["status"] == "error"


def test_a_config_without_weights_is_wrong_use(command, model, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    outcome = command("export", folder, "--to", "torch", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "weights" in outcome.err


def test_a_folder_with_other_things_is_refused_before_any_work(command, model, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    outcome = command("export", model, "--to", "torch", "--out", tmp_path)
    assert outcome.code == 2
    assert "Load" not in outcome.err
    assert names(tmp_path) == ["thesis.txt"]


def test_an_unexpected_error_is_one_message(command, model, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(DynamoExporter, "run_stages", broken)
    arguments = ("export", model, "--to", "torch", "--out", tmp_path / "out")
    outcome = command(*arguments)
    assert outcome.code == 1
    assert "✗ Unexpected ZeroDivisionError: by zero" in outcome.err
    assert "--verbose" in outcome.err
    assert "Traceback" not in outcome.err
    assert "Traceback" in command(*arguments, "--verbose").err
    document = command(*arguments, "--json").document
    assert document["error"]["type"] == "ZeroDivisionError"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_page_on_a_full_disk_is_one_message(command, model, tmp_path):
    outcome = command("export", model, "--to", "torch", "--out", tmp_path / "out", "--html", "/dev/full/page.html")
    assert outcome.code == 2
    assert "/dev/full" in outcome.err


FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # a write beyond fails as on a full disk
from transporters.cli.main import dispatch
sys.exit(dispatch(sys.argv[1:]))
"""


def test_a_full_disk_is_one_message_and_leaves_nothing(model, tmp_path):
    arguments = ["export", str(model), "--to", "torch", "--no-verify", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-B", "-c", FULL_DISK, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("the disk is full") == 1
    assert names(tmp_path) == []


def test_a_kill_in_the_middle_leaves_no_half_artifact(model, tmp_path):
    command = [sys.executable, "-m", "transporters.cli.main", "export", str(model), "--to", "torch", "--no-verify"]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "out")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.iterdir()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    out = tmp_path / "out"
    assert not out.exists() or ExportedModel.load(out)
    assert subprocess.run([*command, "--out", str(out)], check=False, capture_output=True).returncode == 0
    assert names(tmp_path) == ["out"]


def test_verify_compares_a_saved_artifact_again(command, pairs, tmp_path):
    pair = pairs("features")
    page = tmp_path / "page.html"
    outcome = command("verify", pair.artifact, "--html", page)
    assert outcome.code == 0, outcome.err
    assert "✓ BertModel → torch: verified" in outcome.out
    assert page.is_file()
    assert command("verify", pair.artifact, "--json").document["status"] == "verified"


def test_verify_finds_that_the_model_is_another_one(command, pairs, tmp_path):
    import torch

    pair = pairs("features")
    other = pair.eager()
    with torch.no_grad():
        other.encoder.layer[1].output.dense.weight *= 1.5
    other.save_pretrained(tmp_path / "other")
    outcome = command("verify", pair.artifact, "--model", tmp_path / "other", "--json")
    assert outcome.code == 1
    assert outcome.document["status"] == "mismatch"
    assert "NOT verified" in command("verify", pair.artifact, "--model", tmp_path / "other").out


def test_verify_needs_to_know_the_model(command, pairs, tmp_path):
    folder = shutil.copytree(pairs("features").artifact, tmp_path / "copy")
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    (folder / "export.json").write_text(json.dumps({**manifest, "source": None}), encoding="utf-8")
    outcome = command("verify", folder)
    assert outcome.code == 2
    assert "--model" in outcome.err


def test_verify_refuses_what_is_no_artifact(command, tmp_path):
    assert command("verify", tmp_path).code == 2
    assert command("verify", tmp_path / "none", "--json").document["error"]["type"] == "UsageError"


def test_formats_have_options_of_their_own(command, model, tmp_path):
    """ONNX and ExecuTorch take what concerns their files; another format refuses it before anything is loaded."""
    out = tmp_path / "onnx"
    outcome = command("export", model, "--to", "onnx", "--out", out, "--external-data", "--opset", "21", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["program"]["opset"] == {"ai.onnx": 21}
    assert outcome.document["program"]["providers"]["CPUExecutionProvider"]["MatMul"] > 0
    assert (out / "model.onnx").is_file()

    out = tmp_path / "executorch"
    sizes = ["--max-dim", "sequence=32", "--max-dim", "batch=4"]
    outcome = command("export", model, "--to", "executorch", "--out", out, "--backend", "portable", *sizes, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["program"]["backend"] == "portable"
    assert outcome.document["program"]["bounds"]["input_ids"] == [4, 32]


@pytest.mark.parametrize("wrong", ["sequence", "sequence=many", "=4"])
def test_a_largest_size_that_is_none(command, model, tmp_path, wrong):
    outcome = command("export", model, "--to", "executorch", "--out", tmp_path / "out", "--max-dim", wrong)
    assert outcome.code == 2
    assert "LABEL=N" in outcome.err
    assert "sequence=2048" in outcome.err


def test_an_option_of_another_format(command, model, tmp_path):
    outcome = command("export", model, "--to", "torch", "--out", tmp_path / "out", "--opset", "20")
    assert outcome.code == 2
    assert "opset_version" in outcome.err
