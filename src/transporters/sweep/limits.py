# SPDX-License-Identifier: Apache-2.0
"""A case in a process of its own, which may crash, hang or eat all memory: that is a result, and not the end.

Processes are forked from a server that has the libraries loaded, so a case does not pay for imports. The server is
started once and does nothing else, so it has no threads that a fork could lose.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import MissingBackendError
from . import results
from .cases import Case
from .rehearsal import loaded_modules

#: `run_case`, as the ``module:Name`` string that a fresh process resolves.
RUN_CASE = "transporters.sweep.single:run_case"
#: For so many cases it pays to find out, in some 20 seconds, what their exports load.
_MANY = 40
#: Seconds between two looks at a process.
_PERIOD = 0.1
_MIB = 2**20
#: prctl's "send me this signal when my parent dies", from linux/prctl.h.
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Limits:
    """What a case may use.

    Attributes:
        seconds: Wall time.
        memory: MiB of memory that the case adds to what the loaded libraries take.
    """

    seconds: float = 300.0
    memory: int = 8192


def preload(cases: Sequence[Case]) -> None:
    """Have the server that processes are forked from load what the cases need, if they are many: all of it.

    Has an effect before the first case only.
    """
    modules = ["transporters.sweep.warm"]
    backends = tuple(sorted({case.backend for case in cases}))
    if len(cases) >= _MANY:
        modules += [*loaded_modules(backends), "transporters.sweep.warm_patches"]
        if "onnx" in backends:
            modules.append("transporters.sweep.warm_onnx")
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)


def run_limited(case: Case, limits: Limits, function: str = RUN_CASE) -> results.Result:
    """The result of a case, whatever becomes of its process.

    Args:
        case: What to run.
        limits: What it may use.
        function: ``module:Name`` of a function like `single.run_case`.

    Raises:
        MissingBackendError: When psutil is not installed.
    """
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="transporters-case-") as folder:
        place = Path(folder)
        process = multiprocessing.get_context("forkserver").Process(
            target=_inside, args=(case, function, folder), daemon=True
        )
        process.start()
        stopped, peak = _watch(process, limits)
        found = _found(place, process.exitcode or 0, stopped)
    return {
        **case.to_dict(),
        **found,
        "seconds": round(time.perf_counter() - start, 2),
        "peak_mib": peak,
        "versions": results.current_versions(case.backend),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _watch(process: Any, limits: Limits) -> tuple[str, int]:
    """Wait for the end of a process, or make one.

    Returns:
        Why it was stopped (a status, or nothing), and the MiB that it added to what it was forked with.
    """
    try:
        import psutil
    except ImportError as error:
        process.kill()
        raise MissingBackendError(
            "psutil is needed to hold a case to its memory", advice="pip install 'transporters[sweep]'"
        ) from error
    deadline = time.monotonic() + limits.seconds
    base = peak = 0
    stopped = ""
    while process.exitcode is None and not stopped:
        process.join(_PERIOD)
        try:
            used = psutil.Process(process.pid).memory_info().rss // _MIB
        except psutil.Error:
            continue  # it has just ended
        base = base or used
        peak = max(peak, used - base)
        stopped = "memory" if peak > limits.memory else "timeout" if time.monotonic() > deadline else ""
    if stopped:
        _kill(process)
    process.join()
    return stopped, peak


def _kill(process: Any) -> None:
    """End a process and all that it started: it leads a group of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()  # it had not made its group yet, or is gone


def _found(place: Path, exitcode: int, stopped: str) -> dict[str, Any]:
    """What a process left behind."""
    outcome = place / "result.json"
    if outcome.exists() and not stopped:
        found: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
        return found
    step = (place / "step").read_text(encoding="utf-8") if (place / "step").exists() else "Start"
    if stopped == "timeout":
        return {"status": "timeout", "stages": {}, "error": _error("Timeout", step, "It takes longer than it may.")}
    if stopped == "memory":
        return {"status": "crash", "stages": {}, "error": _error("OutOfMemory", step, "It takes more than it may.")}
    name = signal.Signals(-exitcode).name if exitcode < 0 else f"exit code {exitcode}"
    said = (place / "log").read_text(encoding="utf-8", errors="replace").strip() if (place / "log").exists() else ""
    return {"status": "crash", "stages": {}, "error": _error(name, step, said.rpartition("\n")[2])}


def _error(kind: str, stage: str, message: str) -> dict[str, str]:
    return {"type": kind, "stage": stage, "message": message[:300], "where": ""}


def _inside(case: Case, function: str, folder: str) -> None:
    """What the process does: run the case, and put its result into ``folder``, whole."""
    os.setsid()
    _die_with_parent()
    place = Path(folder)
    with (place / "log").open("wb") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def tell(step: str) -> None:
        (place / "step").write_text(step, encoding="utf-8")

    module, _, name = function.partition(":")
    run: Callable[[Case, Callable[[str], None]], dict[str, Any]] = getattr(importlib.import_module(module), name)
    found = run(case, tell)
    part = place / "result.part"
    part.write_text(json.dumps(found), encoding="utf-8")
    part.rename(place / "result.json")


def _die_with_parent() -> None:
    """Go down with the server, which goes down with the sweep: nobody else would end a case that hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
