# SPDX-License-Identifier: Apache-2.0
"""What lies beside a program in its folder: sample inputs, the model's configuration, further files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..errors import ArtifactError
from ..exporters import auto
from ..trees import containers, pytrees

FILE = "sample_inputs.safetensors"


def describe(inputs: dict[str, Any]) -> dict[str, Any]:
    """The structure of the sample inputs, and those leaves that are plain numbers."""
    leaves = pytrees.named_leaves(inputs)
    return {
        "spec": pytrees.dumps(pytrees.structure(inputs)),
        "order": [name for name, _ in leaves],
        "numbers": {name: leaf for name, leaf in leaves if not isinstance(leaf, torch.Tensor)},
    }


def write(folder: Path, inputs: dict[str, Any], part: str | None = None) -> None:
    """Write the tensors of the sample inputs of an artifact, or of one of its parts."""
    tensors = {n: leaf.detach().cpu().contiguous() for n, leaf in pytrees.named_leaves(inputs) if torch.is_tensor(leaf)}
    save_file(tensors, folder / _file(part))


def read(folder: Path, description: dict[str, Any], part: str | None = None) -> dict[str, Any]:
    """Inverse of `write` and `describe`.

    Raises:
        ArtifactError: When the file does not hold what the manifest describes.
    """
    if not description:
        return {}
    try:
        tensors: dict[str, Any] = {**load_file(folder / _file(part)), **description["numbers"]}
        leaves = [tensors[name] for name in description["order"]]
        rebuilt: dict[str, Any] = pytrees.rebuild(leaves, pytrees.loads(description["spec"]))
    except (KeyError, ValueError, TypeError, OSError, SafetensorError) as error:
        raise ArtifactError(
            f"{folder / _file(part)} does not fit the manifest: {error}", advice="export again"
        ) from error
    return rebuilt


def _file(part: str | None) -> str:
    return f"{part}_{FILE}" if part else FILE


def container_names(inputs: dict[str, Any]) -> list[str]:
    """Container classes in the sample inputs."""
    return pytrees.container_names_of(pytrees.structure(inputs))


def register_containers(names: list[str]) -> None:
    """Import and register the container classes that a manifest names.

    Raises:
        ArtifactError: When one of them is not defined here.
    """
    for name in names:
        try:
            pytrees.register_found(containers.find_type(name))
        except (TypeError, ImportError, AttributeError) as error:
            raise ArtifactError(
                f"the artifact holds a {name}, which cannot be found here: {error}",
                advice="install the Transformers version that the manifest names under 'versions'",
            ) from error


def place(folder: Path, name: str, content: Path | str) -> None:
    """Put a further file at a relative name: a copy of a file, or a text."""
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, target)
    else:
        target.write_text(content, encoding="utf-8")


def read_model_config(folder: Path) -> Any:
    """The model's configuration, or None where the artifact has none."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder) if (folder / "config.json").is_file() else None


def read_generation_config(folder: Path) -> Any:
    """The model's defaults for generation, or None where the artifact has none."""
    from transformers import GenerationConfig

    return GenerationConfig.from_pretrained(folder) if (folder / "generation_config.json").is_file() else None


def read_report(data: dict[str, Any] | None) -> Any:
    """The verification report in a manifest, or None."""
    return auto.load_object("transporters.verification.report:Report").from_dict(data) if data else None
