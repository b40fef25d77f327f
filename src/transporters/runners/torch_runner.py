# SPDX-License-Identifier: Apache-2.0
"""Runs a `torch.export` program with PyTorch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..errors import ArtifactError, RunError
from ..trees import pytrees

FILE = "model.pt2"


class TorchRunner:
    """A program, unlifted into a module whose weights are the program's own.

    Args:
        program: The exported program.
        inputs: The manifest's description of its inputs.
    """

    def __init__(self, program: ExportedProgram, inputs: list[dict[str, Any]]) -> None:
        self._module = program.module()
        self._inputs = inputs

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        """Output leaves, in the program's order.

        Args:
            inputs: Forward argument to tensor or container, in the program's order.

        Raises:
            RunError: When torch refuses the inputs (a size outside of its bounds, a dtype) or fails.
        """
        try:
            with torch.no_grad():
                outputs = self._module(**inputs)
        except Exception as error:
            raise RunError(
                f"torch refuses these inputs: {_readable(error)}",
                backend="torch",
                advice="compare their shapes with the artifact's shape contract (`transporters verify` prints it)",
            ) from error
        return pytrees.leaves(outputs)

    @staticmethod
    def write(program: ExportedProgram, folder: Path) -> None:
        """Save the program as ``model.pt2`` in a folder.

        Raises:
            OSError: When the folder cannot be written; torch's own error hides the cause, so it is looked up.
        """
        with (folder / FILE).open("wb") as stream:
            torch.export.save(program, stream)

    @staticmethod
    def read(folder: Path) -> ExportedProgram:
        """Load ``model.pt2`` from a folder.

        Raises:
            ArtifactError: When the file is missing or is not a program of this torch version.
        """
        path = folder / FILE
        if not path.is_file():
            raise ArtifactError(f"{folder} lacks {FILE}", advice="export the model again")
        try:
            return torch.export.load(path)
        except Exception as error:
            raise ArtifactError(
                f"{path} cannot be loaded: {_readable(error)}",
                advice="the file is damaged, or was written by a torch version that this one cannot read",
            ) from error


def _readable(error: BaseException) -> str:
    """The first lines of an error, without torch's hints on how to debug torch."""
    text = re.split(r"\n\s*(?:For more|The following call raised|To fix the error|Exception raised)", str(error))[0]
    return f"{type(error).__name__}: {' '.join(text.split())[:500]}"
