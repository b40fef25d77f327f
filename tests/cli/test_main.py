# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import time
from importlib import metadata

import pytest

LIMIT = 0.5


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["export", "--help"], ["workarounds", "--help"]])
def test_answers_in_half_a_second(arguments):
    command = [sys.executable, "-m", "transporters.cli.main", *arguments]
    times = []
    for _ in range(4):  # the best of four: the first one compiles, and the machine may be busy
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    assert min(times) < LIMIT, times


def test_importing_the_command_line_imports_nothing_heavy():
    heavy = "{'torch', 'transformers', 'numpy', 'rich'}"
    script = f"import sys, transporters.cli.main; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_version(command):
    outcome = command("--version")
    assert (outcome.code, outcome.out) == (0, f"transporters {metadata.version('transporters')}\n")


def test_no_command_shows_the_help(command):
    outcome = command()
    assert outcome.code == 0
    for name in ("export", "verify", "run", "stages", "workarounds"):
        assert f"\n  {name} " in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["exprot"], "exprot"),
        (["export"], "MODEL"),
        (["export", "model"], "--to"),
        (["export", "model", "--to", "torch"], "--out"),
        (["export", "model", "--too", "torch"], "--too"),
        (["run", "folder", "--text", "a", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["run", "folder", "--text", "a", "--max-new-tokens", "many"], "--max-new-tokens"),
        (["workarounds"], "command"),
        (["workarounds", "show"], "ID"),
    ],
)
def test_wrong_use_is_one_message_and_exit_code_2(command, arguments, words):
    outcome = command(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("✗ ")
    assert words in outcome.err
    assert "--help" in outcome.err
    assert "Traceback" not in outcome.err


def test_wrong_use_with_json_is_one_document(command):
    outcome = command("export", "model", "--json")
    assert outcome.code == 2
    assert outcome.document["status"] == "error"
    assert outcome.document["exit_code"] == 2
    assert "--to" in outcome.document["error"]["message"]
