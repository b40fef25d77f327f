# SPDX-License-Identifier: Apache-2.0
"""Runs a `torch.export` program with PyTorch."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..errors import ArtifactError, RunError
from ..trees import pytrees

FILE = "model.pt2"


class _PatientFile(io.RawIOBase):
    """A file that keeps its first error for later.

    torch's writer finishes its archive in a destructor, where an exception ends the process; so once a write has
    failed, the rest is swallowed, and the caller raises ``error`` when torch is done.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb")
        self._position = 0
        self.error: OSError | None = None

    def writable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, or pretend to."""
        if self.error is None:
            self._position = self._file.seek(offset, whence)
        return self._position

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._position

    def write(self, data: Any) -> int:
        """Write, or pretend to."""
        size = memoryview(data).nbytes
        if self.error is None:
            try:
                self._file.write(data)
                self._file.flush()
            except OSError as error:
                self.error = error
        self._position += size
        return size

    def close(self) -> None:
        """Close the file; an error that shows only now counts too."""
        if not self._file.closed:
            try:
                self._file.close()
            except OSError as error:
                self.error = self.error or error
        super().close()


class TorchRunner:
    """A program, unlifted into a module whose weights are the program's own.

    Args:
        program: The exported program.
        inputs: The manifest's description of its inputs.
        outputs: The same of its outputs.
    """

    def __init__(self, program: ExportedProgram, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> None:
        self._program = program
        self._module = program.module()
        self._names = [entry["name"] for entry in outputs]

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
        found = {name or "output": leaf for name, leaf in pytrees.named_leaves(outputs)}
        return [found.get(name) for name in self._names]  # a rebuilt container may hold its fields in another order

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest: ``operators``, how often each operation stands in the graph."""
        targets = Counter(str(node.target) for node in self._program.graph.nodes if node.op == "call_function")
        return {"operators": dict(sorted(targets.items()))}

    @staticmethod
    def part_file(part: str) -> str:
        """The file of one of several programs of a model."""
        return f"{part}.pt2"

    @staticmethod
    def write(program: ExportedProgram, folder: Path, file: str = FILE) -> None:
        """Save the program as ``model.pt2``, or another ``file``, in a folder.

        Raises:
            OSError: When the folder cannot be written, for example because the disk is full.
        """
        examples = program._example_inputs
        # torch would pickle them, caches included, and then refuse to read such a pickle; ours lie beside the program.
        program._example_inputs = None
        try:
            with _PatientFile(folder / file) as stream:
                torch.export.save(program, stream)  # type: ignore[arg-type]
        finally:
            program._example_inputs = examples
        if stream.error is not None:
            raise stream.error

    @staticmethod
    def read(folder: Path, file: str = FILE) -> ExportedProgram:
        """Load ``model.pt2``, or another ``file``, from a folder.

        Raises:
            ArtifactError: When the file is missing or is not a program of this torch version.
        """
        path = folder / file
        if not path.is_file():
            raise ArtifactError(f"{folder} lacks {file}", advice="export the model again")
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
