# SPDX-License-Identifier: Apache-2.0
"""Where a model comes from: a local folder or a hub id, checked before anything heavy is loaded."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ..errors import UsageError
from ..versions import installed

#: Weight files that ``from_pretrained`` looks for, single ones first, then the indexes of sharded ones.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

#: Packages that Transformers needs to read a GGUF file.
GGUF_PACKAGES = ("gguf", "accelerate")

_LFS_POINTER = b"version https://git-lfs"
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@dataclass(frozen=True)
class Source:
    """A model's place: ``name`` is an absolute folder or a hub id; ``folder`` is None for a hub id.

    ``gguf_file`` names a file inside of it whose weights, config and tokenizer are to be used. ``offline`` is True when
    the hub cannot be reached, so that only its local cache is looked at.
    """

    name: str
    folder: Path | None = None
    gguf_file: str | None = None
    offline: bool = False
    _seen: dict[str, Path | None] = field(default_factory=dict, compare=False, repr=False)

    def file(self, relative: str) -> Path | None:
        """The local path of one file of the model (fetched from the hub if need be), or None if there is none."""
        if relative not in self._seen:
            self._seen[relative] = self._locate(relative)
        return self._seen[relative]

    def loading_arguments(self) -> dict[str, Any]:
        """What every ``from_pretrained`` of this model is to be called with, apart from the name."""
        arguments: dict[str, Any] = {"local_files_only": True} if self.offline else {}
        return {**arguments, "gguf_file": self.gguf_file} if self.gguf_file else arguments

    def _locate(self, relative: str) -> Path | None:
        pure = PurePosixPath(relative)
        if pure.is_absolute() or ".." in pure.parts:
            return None
        if self.folder is not None:
            path = self.folder.joinpath(*pure.parts)
            return path if path.is_file() else None
        from transformers.utils import cached_file

        found = cached_file(
            self.name,
            relative,
            local_files_only=self.offline,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return Path(found) if found else None


def find_source(source: str, gguf_file: str | None = None, *, weights: bool = True) -> Source:
    """Check a folder or hub id as far as that is possible without loading the model.

    Args:
        source: A model folder, a ``.gguf`` file, or a hub id (``"org/name"``).
        gguf_file: Name of a GGUF file in the folder or repository.
        weights: Whether a folder must hold weights.

    Raises:
        UsageError: If the folder, its ``config.json``, its weights or the GGUF file is missing or cannot be read.
    """
    path = Path(source).expanduser()
    if path.is_file() and path.suffix == ".gguf" and gguf_file is None:
        path, gguf_file = path.parent, path.name
    if path.is_file():
        raise UsageError(f"{source} is a file.", advice="Give the folder that holds the model's config.json.")
    if gguf_file is not None:
        _require_gguf_packages()
    if path.is_dir():
        folder = path.resolve()
        _check_folder(folder, gguf_file, weights)
        return Source(str(folder), folder, gguf_file)
    if not _may_be_hub_id(source):
        near = _siblings(path)
        raise UsageError(
            f"There is no folder {source}.",
            advice=f"Did you mean {near}?" if near else "Check the path; a hub id looks like 'org/name'.",
        )
    return Source(source, None, gguf_file, offline=not _hub_answers())


def _may_be_hub_id(source: str) -> bool:
    """Whether a string that is no folder can be the id of a model on the hub."""
    parts = source.split("/")
    if len(parts) > 2 or not all(parts) or source.startswith((".", "~")):
        return False
    return all(character.isalnum() or character in "-_./" for character in source)


def _hub_answers() -> bool:
    """Whether the hub's host name resolves. Saves the long series of retries of a machine without network."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    address = urlsplit(constants.ENDPOINT)
    try:
        socket.getaddrinfo(address.hostname, address.port or 443)
    except OSError:
        return False
    return True


def _siblings(path: Path) -> str | None:
    """A folder beside the missing one whose name is close to it."""
    if not path.parent.is_dir():
        return None
    names = [entry.name for entry in path.parent.iterdir() if entry.is_dir()]
    near = get_close_matches(path.name, names, n=1)
    return str(path.parent / near[0]) if near else None


def _check_folder(folder: Path, gguf_file: str | None, weights: bool) -> None:
    if gguf_file is not None:
        _check_gguf(folder, gguf_file)
        return
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json.", advice=_advice_without_config(folder))
    if weights:
        _check_weights(folder)


def _advice_without_config(folder: Path) -> str:
    """The next step for a folder that is not a model folder, by what lies in it."""
    gguf = sorted(entry.name for entry in folder.glob("*.gguf"))
    if gguf:
        return f"It holds GGUF weights: add --gguf-file {gguf[0]} (gguf_file={gguf[0]!r})."
    if (folder / "adapter_config.json").is_file():
        return "It holds an adapter: merge it into its base model and save that first."
    if (folder / "model_index.json").is_file():
        return "It holds a diffusers pipeline: give the folder of one Transformers model inside of it."
    inner = sorted(entry.parent.name for entry in folder.glob("*/config.json"))
    if inner:
        return f"There is one in its folder {inner[0]!r}: give {folder / inner[0]}."
    return "Save a model there with save_pretrained, or give another folder."


def _check_gguf(folder: Path, gguf_file: str) -> None:
    path = folder / gguf_file
    if not path.is_file():
        present = sorted(entry.name for entry in folder.glob("*.gguf"))
        raise UsageError(
            f"{folder} has no file {gguf_file}.",
            advice=f"Its GGUF files are: {', '.join(present)}." if present else "It holds no GGUF file at all.",
        )
    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise UsageError(f"{path} is not a GGUF file.", advice="Fetch the file again.")


def _check_weights(folder: Path) -> None:
    for name in WEIGHTS:
        if (folder / name).is_file():
            _refuse_pointer(folder / name)
            return
    for name in INDEXES:
        if (folder / name).is_file():
            _check_shards(folder, name)
            return
    adapter = (folder / "adapter_config.json").is_file()
    raise UsageError(
        f"{folder} has a config.json but no weights.",
        advice="It holds an adapter: merge it into its base model and save that first."
        if adapter
        else f"Put {WEIGHTS[0]} (or {INDEXES[0]} and its shards) there.",
    )


def _check_shards(folder: Path, index: str) -> None:
    """Every shard that an index names must be there."""
    try:
        shards = set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{folder / index} is not an index of weights.", advice="Fetch the file again.") from error
    missing = sorted(name for name in shards if not (folder / name).is_file())
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(shards)} weight files are missing in {folder}: {', '.join(missing[:3])}.",
            advice="Fetch the model again.",
        )
    for name in shards:
        _refuse_pointer(folder / name)


def _refuse_pointer(path: Path) -> None:
    """A clone without git-lfs has a line of text where the weights should be."""
    with path.open("rb") as stream:
        head = stream.read(len(_LFS_POINTER))
    if head == _LFS_POINTER:
        raise UsageError(f"{path} is a git-lfs pointer, not weights.", advice="Run 'git lfs pull' in the folder.")
    if not head:
        raise UsageError(f"{path} is empty.", advice="Fetch the file again.")


def _require_gguf_packages() -> None:
    absent = [name for name in GGUF_PACKAGES if installed(name) is None]
    if absent:
        raise UsageError(
            f"Reading a GGUF file needs the packages {' and '.join(absent)}.",
            advice='Install them: pip install "transporters[gguf]".',
        )
