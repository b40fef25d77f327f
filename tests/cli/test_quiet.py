# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import logging, os, sys, warnings
logging.basicConfig()
from transporters.cli.console import session
from transporters.errors import ExportError, UsageError
error, verbose, as_json = eval(sys.argv[1])
with session(verbose=verbose, as_json=as_json) as screen:
    print("from python")
    warnings.warn("from warnings")
    logging.getLogger("torch").warning("from logging")
    os.system("echo from a child")
    os.write(1, b"from the library\\n")
    os.write(2, b"step 1\\rstep 2\\rstep 3\\n")
    os.write(2, b"Loading:   0%| \\rLoading: 100%|##|\\n")
    if error:
        raise error("it broke")
    screen.result({"answer": 42}, "answer 42")
print("afterwards")
"""
NOISE = ("from python", "from warnings", "from logging", "from a child", "from the library", "step 3")


def run(error: str = "None", *, verbose: bool = False, as_json: bool = False) -> subprocess.CompletedProcess[str]:
    argument = f"({error}, {verbose}, {as_json})"
    return subprocess.run([sys.executable, "-c", SCRIPT, argument], capture_output=True, text=True, check=False)


def test_noise_is_not_shown_when_all_is_well():
    done = run()
    assert done.stdout == "answer 42\nafterwards\n"
    assert done.stderr == ""


def test_noise_is_shown_on_failure_with_progress_bars_settled():
    done = run("ExportError")
    assert done.stdout == ""
    for line in NOISE:
        assert line in done.stderr
    assert "step 2" not in done.stderr
    assert "Loading" not in done.stderr
    assert "\n✗ it broke\n" in done.stderr


def test_noise_is_not_shown_on_wrong_use():
    assert run("UsageError").stderr.splitlines()[0] == "✗ it broke"


@pytest.mark.parametrize("as_json", [False, True])
def test_verbose_shows_noise_on_standard_error_only(as_json):
    done = run(verbose=True, as_json=as_json)
    for line in NOISE:
        assert line in done.stderr
        assert line not in done.stdout


def test_json_is_the_only_thing_on_standard_output():
    done = run(as_json=True)
    assert done.stdout.removesuffix("afterwards\n").strip() == '{\n  "answer": 42\n}'


def test_a_crash_in_native_code_is_seen():
    script = "import os\nfrom transporters.cli.console import session\nwith session():\n    os.abort()\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode < 0
    assert "Fatal Python error: Aborted" in done.stderr
