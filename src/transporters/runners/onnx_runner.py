# SPDX-License-Identifier: Apache-2.0
"""Runs an ONNX model with ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import ArtifactError, RunError
from ..trees import pytrees

FILE = "model.onnx"

#: Where that file may be: clients look in a folder of its own.
PLACES = (FILE, f"onnx/{FILE}")

#: What clients call the files of a model in parts; any other part is called by its name.
PART_FILES = {"encoder": "encoder_model.onnx", "decoder": "decoder_model_merged.onnx"}

#: From this many bytes on weights go into a file of their own: protobuf stops at 2 GB.
EXTERNAL_FROM = 1_500_000_000

#: Tensors in the data file begin at multiples of this, as memory maps on Windows must; smaller ones stay in the graph.
ALIGNMENT = 65536

_PROVIDERS = ("CPUExecutionProvider",)
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16, for which NumPy has no type


class OnnxRunner:
    """An inference session on the CPU.

    Args:
        program: An `onnx_ir.Model`.
        inputs: The manifest's description of its inputs.
        outputs: The same of its outputs; those that eager gives as numbers become numbers again.

    Raises:
        RunError: When ONNX Runtime cannot load the model, for example because it has no kernel for an operation.
    """

    def __init__(self, program: Any, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> None:
        self._program = program
        self._session = _session(program)
        self._outputs = [entry["name"] for entry in outputs if "value" not in entry]
        self._entries = outputs

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        """Output leaves, in the program's order.

        Args:
            inputs: Forward argument to tensor or container, in the program's order.

        Raises:
            RunError: When ONNX Runtime refuses the inputs or fails.
        """
        try:
            feed = {name: _to_runtime(leaf) for name, leaf in pytrees.named_leaves(inputs)}
            results = self._session.run_with_ort_values(self._outputs, feed)
            outputs = [_to_torch(result) for result in results]
        except Exception as error:
            raise RunError(
                f"ONNX Runtime refuses these inputs: {_readable(error)}",
                backend="onnx",
                advice="compare their shapes with the artifact's shape contract (`transporters verify` prints it)",
            ) from error
        found = iter(outputs)
        return [entry["value"] if "value" in entry else _of_dtype(entry, next(found)) for entry in self._entries]

    def steps(self) -> OnnxSteps:
        """For a program that takes back what it gave: steps whose state stays in ONNX Runtime's memory."""
        return OnnxSteps(self._session, self._outputs)

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest.

        Returns:
            ``opset``: versions by domain; ``operators``: how often each stands in the graph; ``providers``: for each
            execution provider the operators that ONNX Runtime gave to it, after its own fusions.
        """
        operators = Counter(_qualified(node.domain, node.op_type) for node in self._program.graph.all_nodes())
        providers: dict[str, Counter[str]] = {}
        for part in self._session.get_provider_graph_assignment_info():
            names = (_qualified(node.domain, node.op_type) for node in part.get_nodes())
            providers.setdefault(part.ep_name, Counter()).update(names)
        return {
            "opset": {domain or "ai.onnx": version for domain, version in self._program.opset_imports.items()},
            "operators": dict(sorted(operators.items())),
            "providers": {name: dict(sorted(counts.items())) for name, counts in sorted(providers.items())},
        }

    @staticmethod
    def part_file(part: str) -> str:
        """The file of one of several programs of a model."""
        return PART_FILES.get(part, f"{part}.onnx")

    @staticmethod
    def write(program: Any, folder: Path, file: str | None = None) -> None:
        """Save the model as ``model.onnx``; large weights go into ``model.onnx_data`` when that is asked for or due.

        Where ``file``, or else ``program.meta["file"]``, names another place, the model goes there, and its weights
        beside it.

        Raises:
            OSError: When the folder cannot be written, for example because the disk is full.
        """
        import onnx_ir as ir

        external = program.meta.get("external_data")
        if external is None:
            external = _weight_bytes(program) >= EXTERNAL_FROM
        path = folder / (file or program.meta.get("file", FILE))
        path.parent.mkdir(exist_ok=True)
        beside = {"external_data": f"{path.name}_data", "alignment": ALIGNMENT, "align_threshold": 0}
        ir.save(program, path, size_threshold_bytes=ALIGNMENT, **(beside if external else {}))  # type: ignore[arg-type]

    @staticmethod
    def read(folder: Path, file: str | None = None) -> Any:
        """Load the model from ``file``, or from the one of `PLACES` where it is; weights beside it stay there, mapped.

        Raises:
            ArtifactError: When the file is missing or is no ONNX model, or when its data file is missing or too short.
        """
        import onnx_ir as ir

        place = next((place for place in ((file,) if file else PLACES) if (folder / place).is_file()), None)
        if place is None:
            raise ArtifactError(f"{folder} lacks {file or FILE}", advice="export the model again")
        path = folder / place
        try:
            model = ir.load(path)
        except Exception as error:
            raise ArtifactError(
                f"{path} cannot be loaded: {_readable(error)}", advice="the file is damaged: export the model again"
            ) from error
        model.meta["external_data"] = _check_data(model, path)
        model.meta["path"], model.meta["file"] = path, place
        return model


def _of_dtype(entry: dict[str, Any], output: torch.Tensor) -> Any:
    return int(output) if entry["dtype"] == "int" else output


class OnnxSteps:
    """Steps by input and output binding: an output is bound as an input of the next step, and never copied.

    Args:
        session: The program's session.
        outputs: Names of its outputs.
    """

    def __init__(self, session: Any, outputs: list[str]) -> None:
        self._session, self._outputs = session, outputs

    def step(self, inputs: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> dict[str, Any]:
        """Every output by name, as a value of ONNX Runtime.

        Args:
            inputs: Input name to tensor.
            state: Input name to a value of ONNX Runtime, such as an output of the step before.

        Raises:
            RunError: When ONNX Runtime refuses the inputs or fails.
        """
        try:
            binding = self._session.io_binding()
            for name, value in {**{name: _to_runtime(leaf) for name, leaf in inputs.items()}, **state}.items():
                binding.bind_ortvalue_input(name, value)
            for name in self._outputs:
                binding.bind_output(name)
            self._session.run_with_iobinding(binding)
            return dict(zip(self._outputs, binding.get_outputs(), strict=True))
        except Exception as error:
            raise RunError(f"ONNX Runtime refuses this step: {_readable(error)}", backend="onnx") from error

    @staticmethod
    def tensor(value: Any) -> torch.Tensor:
        """A tensor over the memory of a value."""
        found: torch.Tensor = torch.utils.dlpack.from_dlpack(value._get_c_value())
        return found

    @staticmethod
    def buffer(tensor: torch.Tensor) -> Any:
        """A value over the memory of a tensor."""
        return _to_runtime(tensor)


def _session(program: Any) -> Any:
    """A session, from the model's file where there is one: weights beside it are then mapped and not copied."""
    import onnx_ir as ir
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        path = program.meta.get("path")
        if path is not None:
            return onnxruntime.InferenceSession(path, options, providers=_PROVIDERS)
        if _weight_bytes(program) < EXTERNAL_FROM:
            content = ir.to_proto(program).SerializeToString(deterministic=True)
            return onnxruntime.InferenceSession(content, options, providers=_PROVIDERS)
        with tempfile.TemporaryDirectory() as folder:
            OnnxRunner.write(program, Path(folder))
            path = Path(folder) / program.meta.get("file", FILE)
            return onnxruntime.InferenceSession(path, options, providers=_PROVIDERS)
    except Exception as error:
        raise RunError(
            f"ONNX Runtime cannot load the model: {_readable(error)}",
            backend="onnx",
            advice="the message names the operation; another dtype or opset_version may have a kernel",
        ) from error


def _check_data(model: Any, graph: Path) -> bool:
    """Whether weights lie in files beside the graph's; they must be there and long enough."""
    import onnx_ir as ir

    needed: dict[str, int] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            end = (tensor.offset or 0) + (tensor.length or 0)
            needed[str(tensor.location)] = max(needed.get(str(tensor.location), 0), end)
    for name, size in needed.items():
        path = graph.parent / name
        found = path.stat().st_size if path.is_file() else 0
        if found < size:
            raise ArtifactError(
                f"{path} has {found:,} bytes, {graph.name} needs {size:,} of weights in it",
                advice="the file is missing or cut off: copy it again, or export the model again",
            )
    return bool(needed)


def _weight_bytes(program: Any) -> int:
    return sum(value.const_value.nbytes for value in program.graph.initializers.values() if value.const_value)


def _to_runtime(leaf: Any) -> Any:
    """A value of ONNX Runtime; a number becomes an int64 tensor."""
    import onnxruntime

    value = leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, dtype=torch.int64)
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        raw = value.view(torch.int16).numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, _BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(value.numpy())


def _to_torch(value: Any) -> torch.Tensor:
    """A tensor over the runtime's memory."""
    if value.element_type() == _BFLOAT16:
        return torch.utils.dlpack.from_dlpack(value._get_c_value())
    return torch.from_numpy(value.numpy())


def _qualified(domain: str, op_type: str) -> str:
    return f"{domain}.{op_type}" if domain not in ("", "ai.onnx") else op_type


def _readable(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
