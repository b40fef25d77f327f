# SPDX-License-Identifier: Apache-2.0
"""A crash, a hang, too much memory: each is a result."""

from __future__ import annotations

import psutil
import pytest

from transporters.sweep.cases import Case
from transporters.sweep.limits import Limits, run_limited

FAKE = "sweep_fakes:run"


def ended(name: str, seconds: float = 60.0, memory: int = 4096) -> dict:
    return run_limited(Case(name, "fake", "torch", "dynamic"), Limits(seconds, memory), FAKE)


def test_a_case_gives_what_it_returned_with_versions_and_date():
    result = ended("fine")
    assert result["status"] == "verified"
    assert (result["class"], result["architecture"], result["backend"]) == ("fine", "fake", "torch")
    assert result["versions"]["torch"].startswith("2.")
    assert "onnx" not in result["versions"], "a package that the backend does not use decides nothing"
    assert result["seconds"] > 0
    assert result["date"].endswith("+00:00")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("segfault", "SIGSEGV", ""),
        ("exit:7", "exit code 7", "said on the way"),
        ("raise:something odd", "exit code 1", "ValueError: something odd"),
    ],
)
def test_a_crash_names_its_signal_its_step_and_its_last_words(name, kind, message):
    result = ended(name)
    assert result["status"] == "crash"
    assert result["error"]["type"] == kind
    assert result["error"]["stage"] == "Trace"
    assert message in result["error"]["message"]


def test_a_hang_ends_and_says_where_it_hung():
    result = ended("hang", seconds=2.0)
    assert result["status"] == "timeout"
    assert result["error"]["stage"] == "Trace"


def test_what_a_case_started_goes_with_it(tmp_path):
    note = tmp_path / "child"
    assert ended(f"child:{note}", seconds=4.0)["status"] == "timeout"
    child = int(note.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_too_much_memory_ends_the_case_and_no_other():
    result = ended("memory:900", memory=300)
    assert result["status"] == "crash"
    assert result["error"]["type"] == "OutOfMemory"
    assert 300 < result["peak_mib"] < 1500
    assert ended("fine")["status"] == "verified"
