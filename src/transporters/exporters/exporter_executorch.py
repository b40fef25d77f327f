# SPDX-License-Identifier: Apache-2.0
"""From a traced program to an ExecuTorch program, a ``.pte``.

The program comes from `DynamoExporter`; five stages stand around `to_edge_transform_and_lower` and `to_executorch`:

1. **Backend preparation**: the delegate's partitioner and the device are chosen; a backend that is not there says what
   it lacks.
2. **Torch patches**: torch operations that ExecuTorch does not take are swapped while the model is traced.
3. **ExecuTorch patches**: the program is decomposed here, once; ExecuTorch's own code that crashes on valid graphs, or
   takes minutes for them, is swapped until the program is done.
4. **FX program fixes**: every dynamic axis gets the largest size that memory is planned for, and the program is
   repaired as a whole.
5. **FX node fixes**: graph nodes that cannot be lowered are rewritten.

The steps *Lower*, *Plan* and *Load* after them are ExecuTorch's own: to its delegates, to its memory plan and file, and
into its runtime once, so that nothing is handed over that cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from torch.export import ExportedProgram

from ..errors import ConfigError, ExportError
from . import executorch_lowering as lowering
from .base import Finished
from .configs import ExecutorchConfig, ExportConfig
from .executorch_backends.cuda import prepare_for_cuda
from .executorch_backends.portable import prepare_for_portable
from .executorch_backends.preparation import Preparation
from .executorch_backends.xnnpack import prepare_for_xnnpack
from .executorch_bounds import bound, check_bounded, check_dynamic
from .executorch_facts import shares
from .exporter_dynamo import DynamoExporter
from .patching import fix_nodes, fix_program, patched
from .run import ExportRun
from .traced import finish, run_program

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["_BACKEND_PREPARE", "ExecutorchExporter", "Preparation"]

# ── Stage 1: Backend preparation ──

#: Name of a backend to its ``prepare_for_<name>(model, config)``; an extender's own goes in here.
_BACKEND_PREPARE: dict[str, Callable[[Any, ExecutorchConfig], Preparation]] = {
    "xnnpack": prepare_for_xnnpack,
    "portable": prepare_for_portable,
    "cuda": prepare_for_cuda,
}


def _prepare_backend(model: PreTrainedModel, config: ExecutorchConfig) -> Preparation:
    if config.backend not in _BACKEND_PREPARE:
        raise ConfigError(
            f"ExecuTorch has no backend {config.backend!r} here",
            advice=f"known: {', '.join(_BACKEND_PREPARE)}; another is added to `_BACKEND_PREPARE` (docs/extending.md)",
        )
    return _BACKEND_PREPARE[config.backend](model, config)


# ── Stage 2: Torch patches ──

# `patched("executorch", …)` in `ExecutorchExporter.run_stages`: in force while `DynamoExporter` traces the model, and,
# for those that swap ExecuTorch's own code, until the program is done.


# ── Stage 3: ExecuTorch patches ──


def _decompose(program: ExportedProgram, preparation: Preparation, run: ExportRun) -> ExportedProgram:
    """The program in the core set of operators, its weights on the delegate's device.

    Node fixes run before as well, for the decomposition trips over some of the nodes that they rewrite.
    """
    fix_nodes("executorch", program.graph_module, run, run.skipped)
    if preparation.device is not None and _devices(program) - {preparation.device}:
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, preparation.device)
    return lowering.decompose(program, preparation, run)


def _devices(program: ExportedProgram) -> set[str]:
    return {tensor.device.type for tensor in (*program.state_dict.values(), *program.constants.values())}


# ── Stage 4: FX program fixes ──


def _fix_program(lowered: ExportedProgram, finished: Finished, config: ExecutorchConfig, run: ExportRun) -> None:
    """Bound what is unbounded, then the registered fixes."""
    finished.contract = bound(lowered, finished.prepared, finished.contract, config, run)
    fix_program("executorch", lowered, run, run.skipped)
    check_bounded(lowered)


# ── Stage 5: FX node fixes ──


def _fix_nodes(lowered: ExportedProgram, run: ExportRun) -> None:
    """Rewrite what cannot be lowered, until nothing more is found: a fix may make a node that another one wants."""
    while fix_nodes("executorch", lowered.graph_module, run, run.skipped):
        pass


class ExecutorchExporter(DynamoExporter):
    """Exports to ExecuTorch, to be run by its runtime on phones and small machines."""

    export_format: ClassVar[str] = "executorch"
    backend: ClassVar[str] = "executorch"
    stages: ClassVar[tuple[str, ...]] = (
        "Backend preparation",
        "Torch patches",
        "ExecuTorch patches",
        "FX program fixes",
        "FX node fixes",
    )
    config_class: ClassVar[type[ExportConfig]] = ExecutorchConfig
    requires: ClassVar[tuple[str, ...]] = (
        *DynamoExporter.requires,
        "executorch>=1.4.1,<1.5",
        "torchao>=0.18,<0.19",
    )

    def run_stages(
        self, model: PreTrainedModel, sample_inputs: Mapping[str, Any], config: Any, run: ExportRun
    ) -> Finished:
        """Trace under the torch patches, lower, and load once."""
        with ExitStack() as stack:
            with run.stage(self.stages[0]):
                preparation = _prepare_backend(model, config)
            with run.stage(self.stages[1]):
                stack.enter_context(patched("executorch", run, run.skipped))
            program, prepared, contract = self.trace(preparation.model, sample_inputs, config, run)
            finished = finish(program, prepared, contract, run)
            with run.stage(self.stages[2]):
                lowered = _decompose(program, preparation, run)
            with run.stage(self.stages[3]):
                _fix_program(lowered, finished, config, run)
            with run.stage(self.stages[4]):
                _fix_nodes(lowered, run)
            constants = getattr(model, "constant_methods", None)
            methods = constants(finished.contract) if constants is not None else {}
            finished.program = _loadable(lowered, finished, preparation, config, run, methods)
        finished.rungs["exported program"] = run_program(program, prepared)
        finished.rungs["decomposed program"] = run_program(lowered, prepared)
        return finished


def _loadable(
    lowered: ExportedProgram,
    finished: Finished,
    preparation: Preparation,
    config: ExecutorchConfig,
    run: ExportRun,
    methods: dict[str, Any],
) -> dict[str, Any]:
    """The file and what is known of it. When the runtime refuses to load it, the delegate's operations are withheld one
    at a time, the rarest first, until it does.

    ``methods`` are further ones beside ``forward``, by the constants that they give.

    Raises:
        ExportError: When the program cannot be loaded without any single one of them either.
    """
    edge, program = _lower(lowered, finished, preparation, config, run, methods)
    try:
        with run.stage("Load"):
            lowering.load(program["pte"])
        return program
    except ExportError as error:
        for node in lowering.delegated(edge):
            smaller = preparation.without(node)
            if smaller is None:
                continue
            _, program = _lower(lowered, finished, smaller, config, run, methods)
            if lowering.loads(program["pte"]):
                lowering.tell_withheld(node, error.message, run)
                return program
        raise


def _lower(
    lowered: ExportedProgram,
    finished: Finished,
    preparation: Preparation,
    config: ExecutorchConfig,
    run: ExportRun,
    methods: dict[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """To the delegates, to the memory plan, and to the file."""
    with run.stage("Lower"):
        edge = lowering.to_edge(lowered, preparation, run, methods)
        check_dynamic(edge.exported_program(lowering.METHOD), finished.prepared, finished.contract)
        facts = {"backend": config.backend, **shares(edge.exported_program(lowering.METHOD))}
    with run.stage("Plan"):
        executable = lowering.to_executorch(edge, config)
        lowering.check_kernels(executable)
        facts["planned_memory"] = lowering.planned_memory(executable)
    return edge, {"pte": executable.buffer, "facts": facts}
