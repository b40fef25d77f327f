# SPDX-License-Identifier: Apache-2.0
"""Where a command may write, and how: checked before the work starts, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ..artifacts import storage
from ..errors import UsageError

UNVERIFIED_SUFFIX = "-unverified"


def check_target(directory: Path) -> None:
    """Refuse a folder that an artifact must not or cannot be written to.

    Raises:
        UsageError: When ``directory`` is a file, a folder with other things in it, or cannot be made.
    """
    storage.check_target(directory)
    _check_writable(directory)


def check_artifact(directory: Path) -> None:
    """Refuse a folder that cannot be an artifact, before anything heavy is loaded.

    Raises:
        UsageError: When there is no such folder, or it holds no manifest.
    """
    if not directory.is_dir():
        raise UsageError(f"there is no folder {directory}", advice="name the folder that `transporters export` wrote")
    if not (directory / storage.MANIFEST).is_file():
        raise UsageError(
            f"{directory} holds no {storage.MANIFEST}, so it is no artifact",
            advice="name the folder that `transporters export` wrote",
        )


def check_file(path: Path | None) -> None:
    """Refuse a file that cannot be written.

    Raises:
        UsageError: When ``path`` is a folder, or its folder cannot be written to.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file", advice="name the file to write")
    _check_writable(path)


def _check_writable(path: Path) -> None:
    """The nearest folder above ``path`` that exists must let us write."""
    ancestor = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not ancestor.is_dir():
        raise UsageError(f"{ancestor} is a file, so {path} cannot be made", advice="choose another place")
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise UsageError(f"{ancestor} may not be written to", advice="choose another place, or change its permissions")


def unverified(directory: Path) -> Path:
    """Where an artifact goes whose verification failed: never under the name that was asked for."""
    absolute = directory.absolute()
    return absolute.with_name(absolute.name + UNVERIFIED_SUFFIX)


def file_sizes(directory: Path) -> dict[str, int]:
    """Every file below a folder: its relative name and its size in bytes."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in paths}


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        UsageError: When the file cannot be read, is not JSON, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", advice="name a JSON file") from error
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}", advice="correct the file") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds a {type(data).__name__}, not a JSON object", advice="correct the file")
    return data


def write_text(path: Path, text: str) -> None:
    """Write a text file under its final name only when it is complete; folders above it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(draft, 0o666 & ~mask)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
