# SPDX-License-Identifier: Apache-2.0
"""A folder that appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ArtifactError, UsageError

MANIFEST = "export.json"
_TEMPORARY = ".incomplete-"


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target`` and move it into place when the block ends well.

    A killed process leaves ``target`` as it was; what it had begun is cleared away by the next save. An artifact that
    stood at ``target`` is replaced; anything else that stands there is not touched.

    Raises:
        UsageError: When ``target`` is a file, or a folder that holds something other than an artifact.
        ArtifactError: When the disk is full or the folder cannot be written.
    """
    target = target.absolute()
    check_target(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(target)
        folder = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    except OSError as error:
        raise _write_error(target, error) from error
    folder.chmod(0o755)
    try:
        yield folder
        _flush(folder)
        _move_into_place(folder, target)
    except OSError as error:
        raise _write_error(target, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_target(target: Path) -> None:
    """Refuse a target that must not be replaced.

    Raises:
        UsageError: When something other than an artifact, or an empty folder, stands there.
    """
    if target.is_file():
        raise UsageError(f"{target} is a file", advice="name a folder for the artifact")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise UsageError(
            f"{target} exists and is not an artifact of this package ({MANIFEST} is not in it)",
            advice="name another folder, or remove this one yourself",
        )


def _move_into_place(folder: Path, target: Path) -> None:
    if target.exists():
        replaced = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
        os.rename(target, replaced)
        os.rename(folder, target)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        os.rename(folder, target)
    _sync(target.parent)


def _clear_leftovers(target: Path) -> None:
    """Remove what killed processes left; a running process's folder is kept, for its name carries the process id."""
    for leftover in target.parent.glob(f".{target.name}{_TEMPORARY}*"):
        pid = leftover.name.split(_TEMPORARY)[1].split("-")[0]
        if pid.isdigit() and int(pid) != os.getpid() and not _alive(int(pid)):
            shutil.rmtree(leftover, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _prefix(target: Path) -> str:
    return f".{target.name}{_TEMPORARY}{os.getpid()}-"


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o644)  # safetensors writes for its user alone
            _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(target: Path, error: OSError) -> ArtifactError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ArtifactError(
            f"the disk is full while writing {target}; nothing was left behind, and what stood there before still does",
            advice="free some space or name a folder on another disk",
        )
    return ArtifactError(
        f"{target} cannot be written: {error.strerror or error}", advice="check the folder's permissions"
    )
