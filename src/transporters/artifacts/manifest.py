# SPDX-License-Identifier: Apache-2.0
"""The manifest ``export.json``: all that is needed to run, check and explain an artifact without its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ArtifactError
from .storage import MANIFEST

SCHEMA_VERSION = 1

_REQUIRED: dict[str, type] = {
    "export_format": str,
    "model_class": str,
    "inputs": list,
    "outputs": list,
    "output_spec": str,
    "containers": list,
    "constants": dict,
    "preparers": list,
    "shape_contract": list,
    "stages": list,
    "workarounds": dict,
    "versions": dict,
}


def write(folder: Path, manifest: dict[str, Any]) -> None:
    """Write ``manifest`` with its schema version into ``folder``."""
    document = {"schema_version": SCHEMA_VERSION, **manifest}
    (folder / MANIFEST).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """Read the manifest of an artifact.

    Raises:
        ArtifactError: When the folder or the manifest is missing, is not JSON, lacks a key or has one of the wrong
            type, or comes from a newer schema. The message says which.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        raise ArtifactError(f"there is no folder {folder}", advice="export a model there first: transporters export …")
    if not path.is_file():
        raise ArtifactError(
            f"{folder} holds no {MANIFEST}, so it is no artifact", advice="name the folder of an export"
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}", advice="export the model again") from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise ArtifactError(f"{path} has no schema_version", advice="export the model again")
    if version > SCHEMA_VERSION:
        raise ArtifactError(
            f"{path} has schema version {version}, this package reads up to {SCHEMA_VERSION}",
            advice="upgrade transporters: pip install -U transporters",
        )
    for place, program in (("", manifest), *((f"parts.{name}.", of) for name, of in manifest.get("parts", {}).items())):
        for key, kind in _REQUIRED.items():
            if not isinstance(program.get(key), kind):
                raise ArtifactError(f"{path} has no valid {place + key!r}", advice="export the model again")
    _check_files(folder, manifest)
    return manifest


def _check_files(folder: Path, manifest: dict[str, Any]) -> None:
    for name, size in manifest.get("files", {}).items():
        path = folder / name
        if not path.is_file():
            raise ArtifactError(f"{folder} lacks the file {name}", advice="copy the folder whole, or export again")
        if path.stat().st_size != size:
            raise ArtifactError(
                f"{path} has {path.stat().st_size} bytes, the manifest says {size}",
                advice="the copy is incomplete or the file was changed: export again",
            )
