# SPDX-License-Identifier: Apache-2.0
"""Runs an ExecuTorch program with ExecuTorch's runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import torch

from ..errors import ArtifactError, RunError
from ..trees import pytrees

FILE = "model.pte"
METHOD = "forward"


class ExecutorchRunner:
    """The method ``forward`` of a program, loaded.

    Args:
        program: ``pte``, the file's bytes, and ``facts``, what the export knows of it.
        inputs: The manifest's description of its inputs.
        outputs: The same of its outputs.

    Raises:
        RunError: When the runtime cannot load the program, for example because it has no kernel for an operation.
    """

    #: Delegates lay out their memory in the first run, for its sizes.
    remembers_sizes: ClassVar[bool] = True

    def __init__(self, program: dict[str, Any], inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> None:
        from executorch.runtime import Runtime

        self._program = program
        self._inputs = inputs
        self._outputs = outputs
        try:
            self._loaded = Runtime.get().load_program(program["pte"])  # which the method needs to stay alive
            self._method = self._loaded.load_method(METHOD)
        except Exception as error:
            raise RunError(
                f"ExecuTorch cannot load the program: {_readable(error)}",
                backend="executorch",
                advice="export it again; the delegate or a kernel is missing in this build of ExecuTorch",
            ) from error
        self._bounds = self._largest_sizes()

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        """Output leaves, in the program's order. Inputs that the program writes into are not among them.

        Args:
            inputs: Forward argument to tensor or container, in the program's order.

        Raises:
            RunError: When a size is larger than the program's memory was planned for, or a dtype is another one, or
                the runtime fails.
        """
        given = dict(pytrees.named_leaves(inputs))
        leaves = [self._checked(entry, given[entry["name"]]) for entry in self._inputs]
        assert self._method is not None, "loaded in the constructor"
        try:
            results = self._method.execute(leaves)
        except Exception as error:
            raise RunError(
                f"ExecuTorch fails on these inputs: {_readable(error)}",
                backend="executorch",
                advice="compare their shapes with the artifact's shape contract (`transporters verify` prints it)",
            ) from error
        # Tensors that the program writes back into its inputs come first.
        return list(results)[len(results) - len(self._outputs) :]

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest.

        Returns:
            ``backend``, ``delegates``, ``operators`` (left to the kernels), and the delegate's share of ``nodes`` and
            ``multiply_adds``; ``bounds``: input to the largest shape; ``planned_memory``: bytes that loading takes for
            activations.
        """
        return {**self._program["facts"], "bounds": self._bounds}

    def output_bounds(self) -> dict[str, list[int]]:
        """By output tensor, the largest sizes that the program can give."""
        meta = self._loaded.metadata(METHOD)
        first = meta.num_outputs() - len(self._outputs)  # after those that it writes back into its inputs
        tensors = [(first + i, entry["name"]) for i, entry in enumerate(self._outputs) if entry["shape"] is not None]
        return {name: list(meta.output_tensor_meta(i).sizes()) for i, name in tensors}

    @staticmethod
    def part_file(part: str) -> str:
        """The file of one of several programs of a model."""
        return f"{part}.pte"

    @staticmethod
    def write(program: dict[str, Any], folder: Path, file: str = FILE) -> None:
        """Save the program as ``model.pte``, or another ``file``, and what is known of it beside it.

        Raises:
            OSError: When the folder cannot be written, for example because the disk is full.
        """
        (folder / file).write_bytes(program["pte"])
        (folder / _facts(file)).write_text(json.dumps(program["facts"], indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path, file: str = FILE) -> dict[str, Any]:
        """Inverse of `write`.

        Raises:
            ArtifactError: When a file is missing or damaged.
        """
        for name in (file, _facts(file)):
            if not (folder / name).is_file():
                raise ArtifactError(f"{folder} lacks the file {name}", advice="export the model again")
        try:
            facts = json.loads((folder / _facts(file)).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ArtifactError(
                f"{folder / _facts(file)} is damaged: {error}", advice="export the model again"
            ) from error
        return {"pte": (folder / file).read_bytes(), "facts": facts}

    def _largest_sizes(self) -> dict[str, list[int]]:
        """By input, the sizes that memory is planned for, as the file itself says."""
        meta = self._loaded.metadata(METHOD)
        tensors = [(i, entry["name"]) for i, entry in enumerate(self._inputs) if entry["shape"] is not None]
        return {name: list(meta.input_tensor_meta(i).sizes()) for i, name in tensors}

    def _checked(self, entry: dict[str, Any], leaf: Any) -> Any:
        """A leaf as the runtime takes it; it would end the process or read past the end on some that do not fit."""
        name = entry["name"]
        if entry["shape"] is None or not isinstance(leaf, torch.Tensor):
            return leaf
        if str(leaf.dtype) != f"torch.{entry['dtype']}":
            raise RunError(f"{name} has dtype {leaf.dtype}, the program takes {entry['dtype']}", backend="executorch")
        if leaf.ndim != len(entry["shape"]):
            raise RunError(
                f"{name} has {leaf.ndim} axes, the program takes {len(entry['shape'])}", backend="executorch"
            )
        for axis, (size, label, most) in enumerate(zip(leaf.shape, entry["shape"], self._bounds[name])):
            if isinstance(label, int) and size != most:
                raise RunError(f"axis {axis} of {name} is {size}, the program fixes it to {most}", backend="executorch")
            if size > most:
                raise RunError(
                    f"axis {axis} ({label}) of {name} is {size}, the program's memory is planned for up to {most}",
                    backend="executorch",
                    advice=f"export again with max_dims={{{label!r}: {size}}}",
                )
        return leaf.detach().cpu().contiguous()


def _facts(file: str) -> str:
    """Name of the file with what is known of a program."""
    return f"{file}.json"


def _readable(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
