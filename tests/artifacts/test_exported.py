# SPDX-License-Identifier: Apache-2.0
"""Calling, saving and loading: names, the manifest, and nothing half-written."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from tiny import build
from transporters import DynamoExporter, ExportedModel
from transporters.artifacts.manifest import SCHEMA_VERSION
from transporters.errors import ArtifactError, RunError, UsageError
from transporters.inputs.samples import sample_inputs

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def exported():
    model = build("bert")
    return DynamoExporter().export(model, sample_inputs(model))


@pytest.fixture
def saved(exported, tmp_path):
    return exported.save(tmp_path / "bert", task="feature-extraction")


def manifest_of(folder):
    return json.loads((folder / "export.json").read_text())


def test_the_manifest_says_what_the_program_is(saved):
    manifest = manifest_of(saved)
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert manifest["export_format"] == "torch"
    assert manifest["model_class"].endswith(":BertModel")
    assert manifest["versions"]["torch"].startswith("2.13")
    ids = manifest["inputs"][0]
    assert ids == {"name": "input_ids", "dtype": "int64", "shape": ["batch", "sequence"]}
    hidden = manifest["outputs"][0]
    assert hidden == {"name": "last_hidden_state", "dtype": "float32", "shape": ["batch", "sequence", 32]}
    assert [s["name"] for s in manifest["stages"]][1:] == list(DynamoExporter.stages)
    assert manifest["workarounds"]
    assert manifest["files"]["model.pt2"] == (saved / "model.pt2").stat().st_size


def test_a_fresh_process_runs_it_without_the_model(saved, exported):
    inputs = sample_inputs(build("bert"), batch=3)
    expected = exported(**inputs).last_hidden_state
    torch.save(inputs, saved.parent / "inputs.pt")
    code = f"""
        import torch
        from transporters import ExportedModel
        inputs = torch.load({str(saved.parent / "inputs.pt")!r})
        outputs = ExportedModel.load({str(saved)!r})(**inputs)
        torch.save(outputs.last_hidden_state, {str(saved.parent / "out.pt")!r})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=saved.parent)
    assert torch.equal(torch.load(saved.parent / "out.pt"), expected)


def test_the_folder_can_be_moved_and_linked_to(saved, exported, tmp_path):
    moved = saved.rename(tmp_path / "elsewhere")
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in moved.iterdir():
        (linked / file.name).symlink_to(file)
    inputs = sample_inputs(build("bert"))
    for folder in (moved, linked):
        assert torch.equal(ExportedModel.load(folder)(**inputs)[0], exported(**inputs)[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda i: i.pop("attention_mask"), "'attention_mask' is missing"),
        (lambda i: i.update(atention_mask=i["input_ids"]), "no input 'atention_mask'"),
        (lambda i: i.update(input_ids=i["input_ids"].double()), "refuses"),
        (lambda i: i.update(input_ids=i["input_ids"][:, :3]), "refuses"),
    ],
)
def test_wrong_inputs_are_one_clear_error(exported, change, words):
    inputs = sample_inputs(build("bert"))
    change(inputs)
    with pytest.raises(RunError, match=words):
        exported(**inputs)


def test_absent_arguments_may_be_given_as_none(exported):
    inputs = sample_inputs(build("bert"))
    assert torch.equal(exported(**inputs, token_type_ids=None)[0], exported(**inputs)[0])


def test_a_constant_can_be_repeated_but_not_changed():
    model = build("llama")
    inputs = sample_inputs(model)
    program = DynamoExporter().export(model, {**inputs, "use_cache": False})
    program(**inputs, use_cache=False)
    with pytest.raises(RunError, match="use_cache=True"):
        program(**inputs, use_cache=True)


def test_saving_again_replaces_an_artifact(saved, exported):
    (saved / "model.pt2").write_bytes(b"old")
    exported.save(saved)
    ExportedModel.load(saved)
    assert not list(saved.parent.glob(".*incomplete*"))


def test_something_else_is_never_replaced(exported, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not an artifact"):
        exported.save(tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        exported.save(tmp_path / "file")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def damage(manifest, key, value):
    if value is None:
        manifest.pop(key)
    else:
        manifest[key] = value


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("schema_version", SCHEMA_VERSION + 1, "reads up to"),
        ("schema_version", None, "no schema_version"),
        ("inputs", None, "no valid 'inputs'"),
        ("containers", ["os.path:join"], "cannot be found"),
        ("containers", ["nowhere.at_all:Thing"], "cannot be found"),
        ("export_format", "tensorrt", "no export format 'tensorrt'"),
    ],
)
def test_a_manifest_that_does_not_fit(saved, key, value, words):
    manifest = manifest_of(saved)
    damage(manifest, key, value)
    (saved / "export.json").write_text(json.dumps(manifest))
    with pytest.raises((ArtifactError, UsageError), match=words):
        ExportedModel.load(saved)


def test_missing_and_cut_files_are_named(saved):
    program = saved / "model.pt2"
    content = program.read_bytes()
    program.write_bytes(content[:-10])
    with pytest.raises(ArtifactError, match=r"model\.pt2 has"):
        ExportedModel.load(saved)
    program.unlink()
    with pytest.raises(ArtifactError, match=r"lacks the file model\.pt2"):
        ExportedModel.load(saved)
    with pytest.raises(ArtifactError, match="no folder"):
        ExportedModel.load(saved / "nowhere")


def test_a_manifest_that_is_no_json(saved):
    (saved / "export.json").write_text("{")
    with pytest.raises(ArtifactError, match="cannot be read"):
        ExportedModel.load(saved)


def test_an_artifact_with_corrupt_content_is_one_error(saved):
    size = (saved / "model.pt2").stat().st_size
    (saved / "model.pt2").write_bytes(os.urandom(size))
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        ExportedModel.load(saved)


def test_an_error_while_saving_leaves_the_old_artifact(saved, exported):
    class Failing:
        def save_pretrained(self, folder):
            raise RuntimeError("deliberate")

    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    with pytest.raises(RuntimeError, match="deliberate"):
        exported.save(saved, assets=[Failing()])
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before
    assert not list(saved.parent.glob(".*incomplete*"))


CHILD = """
import resource, signal, sys, time
sys.path.insert(0, {tests!r})
from tiny import build
from transporters import DynamoExporter
from transporters.errors import TransportersError
from transporters.inputs.samples import sample_inputs
model = build("bert")
exported = DynamoExporter().export(model, sample_inputs(model))
{action}
"""


def run_child(action, **kwargs):
    code = CHILD.format(tests=os.path.dirname(os.path.dirname(__file__)), action=textwrap.dedent(action))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, **kwargs)


def test_a_kill_in_the_middle_of_a_save_leaves_nothing_under_the_final_name(tmp_path, exported):
    target = tmp_path / "artifact"
    action = f"""
        import os
        class Killing:
            def save_pretrained(self, folder):
                os.kill(os.getpid(), signal.SIGKILL)
        exported.save({str(target)!r}, assets=[Killing()])
    """
    assert run_child(action).returncode == -signal.SIGKILL
    assert not target.exists()
    assert list(tmp_path.glob(".artifact.incomplete-*"))
    exported.save(target)
    ExportedModel.load(target)
    assert [p.name for p in tmp_path.iterdir()] == ["artifact"], "what the killed process left is cleared away"


def test_a_full_disk_is_one_error_and_the_process_lives(tmp_path):
    """A limit on the size of files stands in for the disk: the same writes fail in the same places."""
    target = tmp_path / "artifact"
    action = f"""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        try:
            exported.save({str(target)!r})
        except TransportersError as error:
            print("CAUGHT", error)
    """
    result = run_child(action)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "CAUGHT the disk is full while writing" in result.stdout
    assert list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY


def test_nothing_in_the_program_file_is_pickled_from_the_model(tmp_path):
    """torch refuses to read example inputs that hold a cache; ours are not in there."""
    model = build("llama")
    inputs = sample_inputs(model)
    with torch.no_grad():
        cache = model(**inputs).cache
    mask = torch.ones(2, 9, dtype=torch.long)
    program = DynamoExporter().export(
        model, {"input_ids": inputs["input_ids"][:, :2], "attention_mask": mask, "cache": cache}
    )
    loaded = ExportedModel.load(program.save(tmp_path / "llama"))
    assert loaded.program.example_inputs in (None, ((), {}))
    assert loaded.sample_inputs["cache"].get_seq_length() == 7
