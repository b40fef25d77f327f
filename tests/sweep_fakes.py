# SPDX-License-Identifier: Apache-2.0
"""Cases that end in every way in which a case can end."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transporters.sweep.cases import Case


def run(case: Case, tell: Callable[[str], None]) -> dict[str, Any]:
    """Do what the case's name says."""
    tell("Build")
    tell("Trace")
    print("said on the way", flush=True)
    action, _, argument = case.name.partition(":")
    if action == "hang":
        time.sleep(600)
    if action == "segfault":
        ctypes.string_at(0)
    if action == "exit":
        os._exit(int(argument))
    if action == "memory":
        kept = [bytearray(b"x" * 2**20) for _ in range(int(argument))]
        time.sleep(600)
        print(len(kept))
    if action == "child":
        Path(argument).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)
    if action == "raise":
        raise ValueError(argument)
    if action == "count":  # leaves a trace of every time that it ran
        folder, name = argument.rsplit("/", 1)
        with (Path(folder) / "ran").open("a") as stream:
            stream.write(f"{name}\n")
        time.sleep(0.3)
    return {"status": "verified", "stages": {"Build": 0.1, "Trace": 0.2}, "tried": 1, "ran": 1, "worst": 0.0}
