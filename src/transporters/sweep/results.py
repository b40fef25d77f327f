# SPDX-License-Identifier: Apache-2.0
"""Files of results: a line of JSON per finished case, only ever appended to.

The last line of a case counts. A line that a kill cut short is no result: it is not read, and taken off before the next
is written.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .. import versions
from ..errors import ArtifactError, UsageError
from .cases import Case

Result = dict[str, Any]

#: All that can come of a case, from the best to the worst.
STATUSES = (
    "verified",
    "mismatch",
    "run error",
    "export error",
    "timeout",
    "crash",
    "cannot build",
)


def read(path: str | Path) -> list[Result]:
    """The results of a file, the last of each case, sorted by case.

    Raises:
        UsageError: When there is no such file.
        ArtifactError: When a whole line is not a result; the message names it.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"there is no file of results {path}", advice="run `transporters sweep` first") from error
    found: dict[str, Result] = {}
    whole = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            result = json.loads(line)
            found[case_of(result).key] = result
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"line {number} of {path} is no result of a sweep", advice="take the line out, and run with --resume"
            ) from error
    return [found[key] for key in sorted(found)]


def read_all(path: str | Path) -> list[Result]:
    """The results of a file, or of all files ``*.jsonl`` of a folder. Raises as `read`."""
    place = Path(path)
    files = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    return [result for file in files for result in read(file)]


def case_of(result: Result) -> Case:
    """The case that a result is of."""
    return Case(result["class"], result["architecture"], result["backend"], result["shapes"])


def counts(results: Iterable[Result]) -> dict[str, int]:
    """How often each status came, in the order of `STATUSES`; those that never came are left out."""
    seen = Counter(result["status"] for result in results)
    return {status: seen[status] for status in STATUSES if seen[status]}


def current_versions(backend: str) -> dict[str, str]:
    """Versions of the packages that decide a case's outcome."""
    own = {"onnx": ("onnx", "onnxscript", "onnx-ir", "onnxruntime"), "executorch": ("executorch", "torchao")}
    found = versions.report()
    others = {name for key, names in own.items() if key != backend for name in names}
    return {name: version for name, version in found.items() if name not in others}


def is_current(result: Result) -> bool:
    """Whether a result comes from the versions that are installed."""
    return bool(result.get("versions") == current_versions(result["backend"]))


class Journal:
    """A file of results that is open for more.

    Args:
        stream: The file, at its end, after a whole line.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def add(self, result: Result) -> None:
        """Write a result; when the call returns it survives a kill of this process and of the machine."""
        self._stream.write(json.dumps(result, ensure_ascii=False).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())


@contextmanager
def journal(path: Path) -> Iterator[Journal]:
    """Open a file of results for appending, alone; a line that was cut short is taken off.

    Raises:
        UsageError: When another sweep is writing it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another sweep is writing {path}", advice="wait for it, or write somewhere else with --out"
            ) from error
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)
        yield Journal(stream)
