# SPDX-License-Identifier: Apache-2.0
"""``transporters sweep``: it resumes after a kill, refuses what it would overwrite, and compares."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from transporters.cli.main import dispatch

#: Small, quick, and three classes.
ONLY = ["--only", "poolformer", "--only", "MobileViTFor*", "--backend", "torch", "--shapes", "static"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "transporters.cli.main", "sweep", *arguments]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_killed_sweep_resumes_without_losing_or_repeating_a_case(tmp_path):
    path = tmp_path / "torch-static.jsonl"
    first = subprocess.Popen(command(*ONLY, "--out", str(tmp_path)), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not lines(path):
        assert first.poll() is None, "the sweep ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(first.pid).children(recursive=True)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    before = lines(path)
    assert len(before) < 4
    again = subprocess.run(command(*ONLY, "--out", str(tmp_path), "--resume", "--json"), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    after = lines(path)
    assert after[: len(before)] == before, "what was finished stays as it was"
    names = [result["class"] for result in after]
    assert len(names) == len(set(names)) == 4
    assert json.loads(again.stdout)["ran"] == 4 - len(before)
    left = [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not left, "what a killed sweep was running goes with it"


def test_a_file_of_results_is_not_written_over(tmp_path, capsys):
    (tmp_path / "torch-dynamic.jsonl").write_text("")
    assert dispatch(["sweep", "--backend", "torch", "--out", str(tmp_path)]) == 2
    assert "--resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend", "onx"], "did you mean 'onnx'?"),
        (["--backend", "torch", "--shapes", "moving"], "dynamic or static, not 'moving'"),
        (["--backend", "torch", "--only", "Nothing*"], "no model class fits 'Nothing*'"),
        (["--backend", "torch", "--only", "BertModel", "--engine", "dask"], "no engine 'dask'"),
    ],
)
def test_wrong_use_is_named(arguments, said, tmp_path, capsys):
    assert dispatch(["sweep", *arguments, "--out", str(tmp_path)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_two_sweeps_compare(tmp_path, capsys):
    def line(name: str, status: str) -> str:
        facts = {"class": name, "architecture": "x", "backend": "torch", "shapes": "static", "status": status}
        return json.dumps({**facts, "error": {"message": f"{name} said no"}}) + "\n"

    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text(line("A", "verified") + line("B", "crash"))
    new.write_text(line("A", "mismatch") + line("B", "verified"))
    assert dispatch(["sweep", "--compare", str(old), str(new), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [change["case"]["name"] for change in found["worse"]] == ["A"]
    assert [change["case"]["name"] for change in found["better"]] == ["B"]
    assert dispatch(["sweep", "--compare", str(new), str(new)]) == 0
    assert "2 cases have the same status; 0 are in" in capsys.readouterr().out
    assert dispatch(["sweep", "--compare", str(old), str(tmp_path / "none.jsonl")]) == 2
