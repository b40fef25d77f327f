# SPDX-License-Identifier: Apache-2.0
"""The two calls into ExecuTorch, and what is made of their refusals."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental import _config as fx_config

from ..errors import ExportError
from . import decomposition
from .configs import ExecutorchConfig
from .executorch_backends.preparation import Preparation
from .executorch_facts import lowered_modules
from .patching import fix_program
from .quiet import without_output
from .run import ExportRun
from .traced import source_line

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager

METHOD = "forward"

#: Beyond the core set, but with a kernel: its decomposition copies the weight for every row of a batch.
_WITH_KERNEL = {torch.ops.aten.linear.default}


def decompose(program: ExportedProgram, preparation: Preparation, run: ExportRun) -> ExportedProgram:
    """Bring the program down to the core set of operators, but for what a delegate wants whole.

    ExecuTorch does this in three steps, each of which traces the whole program anew. One is enough: what it asks of
    the result is that operations which a delegate does not want after all are taken apart too.
    """
    from executorch.exir.program._program import _remove_invalid_ops_for_not_decompose
    from executorch.exir.tracer import _default_decomposition_table

    kept: set[Any] = set()
    checks = []
    with without_output():
        for partitioner in preparation.partitioners:
            wanted, check = partitioner.ops_to_not_decompose(program)
            kept |= set(_remove_invalid_ops_for_not_decompose(wanted) if check else wanted)
            checks.append((set(wanted), check))
    lowered = _decomposed(program, _default_decomposition_table(), kept, run)
    refused = {
        node.target
        for node in lowered.graph.nodes
        if node.target in kept - _WITH_KERNEL
        and not any(node.target in ops and (not c or c(node)) for ops, c in checks)
    }
    if refused:
        lowered = _decomposed(lowered, _default_decomposition_table(), kept - refused, run)
    return lowered


def _decomposed(program: ExportedProgram, table: Any, kept: set[Any], run: ExportRun) -> ExportedProgram:
    for op in kept:
        table.pop(op, None)
    with torch.no_grad(), fx_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]  # as in the trace
        lowered = decomposition.decompose(program, table)
    fix_program("dynamo", lowered, run, run.skipped)
    return lowered


def to_edge(
    lowered: ExportedProgram, preparation: Preparation, run: ExportRun, methods: dict[str, Any]
) -> EdgeProgramManager:
    """Lower to the delegates. What one of them claims and then refuses is withheld from it, and the run says so.

    ``methods`` are those that give a constant.
    """
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    while True:
        # The checks of the dialect come on top of our own: the program is loaded and run before it is trusted.
        edge_config = EdgeCompileConfig(**{"_check_ir_validity": False, **preparation.edge_config})
        try:
            with without_output(), torch.no_grad(), fx_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
                return to_edge_transform_and_lower(
                    _decomposed_already(lowered),
                    partitioner=preparation.partitioners,
                    constant_methods=methods,
                    compile_config=edge_config,
                )
        except Exception as error:
            node = _node_at_fault(error)
            smaller = preparation.without(node) if node is not None else None
            if node is None or smaller is None:
                raise _explained(error, node) from error
            tell_withheld(node, f"{_first_line(error)}{source_line(node)}", run)
            preparation = smaller
            _forget_pending(lowered)


def to_executorch(edge: EdgeProgramManager, config: ExecutorchConfig) -> ExecutorchProgramManager:
    """Plan the memory and emit the program.

    Raises:
        ExportError: When an operation has no kernel, naming it and the model's line.
    """
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass

    settings = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(**config.memory_planning))
    graph = edge.exported_program(METHOD).graph
    try:
        with without_output(), torch.no_grad(), fx_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
            return edge.to_executorch(settings)
    except Exception as error:
        named = re.search(r"Missing out variants: \{'([^']+)'", str(error))
        node = next((n for n in graph.nodes if named and named[1] in _qualified(n)), None)
        raise _explained(error, node) from error


def check_kernels(executable: ExecutorchProgramManager) -> None:
    """Refuse a program with an operation that the runtime has no kernel for.

    Raises:
        ExportError: Naming the operation and the model's line.
    """
    from executorch.runtime import Runtime

    known = Runtime.get().operator_registry.operator_names
    for plan in executable.executorch_program.execution_plan:
        for operator in plan.operators:
            name = f"{operator.name}.{operator.overload}" if operator.overload else operator.name
            if name not in known:
                nodes = executable.exported_program(plan.name).graph.nodes
                node = next((n for n in nodes if operator.name.split("::")[-1] in str(n.target)), None)
                raise ExportError(
                    f"ExecuTorch's runtime has no kernel for {name}{source_line(node) if node is not None else ''}",
                    advice="another delegate may take the operation, or a patch may write it in others "
                    '(`@register_patch("executorch", …)`, docs/extending.md)',
                )


def load(pte: bytes) -> None:
    """Load the program once, so that nothing is handed over that cannot be.

    Raises:
        ExportError: With the runtime's own words.
    """
    from executorch.runtime import Runtime

    try:
        Runtime.get().load_program(pte).load_method(METHOD)
    except Exception as error:
        raise ExportError(
            f"ExecuTorch's runtime cannot load the program: {_first_line(error)}",
            advice="report this case; backend='portable' does without a delegate",
        ) from error


def loads(pte: bytes) -> bool:
    """Whether the runtime loads a program."""
    try:
        load(pte)
    except ExportError:
        return False
    return True


def delegated(edge: EdgeProgramManager) -> list[Node]:
    """A node of every kind of operation that a delegate took, the rarest kinds first."""
    found: dict[Any, list[Node]] = {}
    for _, module in lowered_modules(edge.exported_program(METHOD).graph_module):
        for node in module.original_module.graph.nodes:
            if node.op == "call_function":
                found.setdefault(node.target, []).append(node)
    return [nodes[0] for nodes in sorted(found.values(), key=len)]


def tell_withheld(node: Node, why: str, run: ExportRun) -> None:
    """Say in the run that an operation is kept from the delegate."""
    run.note(
        "warning",
        str(getattr(node.target, "__name__", node.target)),
        f"is left to the portable kernels, because the delegate claims it and then refuses it: {why}",
    )


def planned_memory(executable: ExecutorchProgramManager) -> int:
    """Bytes of the arenas for activations, inputs and outputs, at the largest sizes."""
    plans = executable.executorch_program.execution_plan
    return sum(sum(plan.non_const_buffer_sizes) for plan in plans)


def _decomposed_already(lowered: ExportedProgram) -> ExportedProgram:
    """A program with a graph and tables of its own, for the lowering writes into them; the weights are shared."""
    graph = torch.fx.Graph()
    copied: dict[Node, Node] = {}
    result = graph.graph_copy(lowered.graph, copied, return_output_node=True)
    assert isinstance(result, tuple), "with return_output_node there is a pair"
    graph.output(result[0], type_expr=None).meta.update(lowered.graph.output_node().meta)
    for node in graph.nodes:
        node.meta.pop("from_node", None)  # a history that every step copies anew, all of it
    program = ExportedProgram(
        root=lowered.graph_module,
        graph=graph,
        graph_signature=lowered.graph_signature,
        state_dict=dict(lowered.state_dict),
        range_constraints=dict(lowered.range_constraints),
        module_call_graph=lowered.module_call_graph,
        example_inputs=lowered.example_inputs,
        constants=dict(lowered.constants),
        verifiers=[lowered.verifier],
    )
    program.run_decompositions = lambda *_, **__: program
    return program


def _forget_pending(lowered: ExportedProgram) -> None:
    """Drop sizes that the broken-off attempt had made up for values, and which the next would find unaccounted for."""
    for node in lowered.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            mode.shape_env.pending_fresh_unbacked_symbols.clear()
            return


def _node_at_fault(error: BaseException) -> Node | None:
    """The operation that ExecuTorch was busy with when it failed: the innermost frame that holds a node."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, _ in reversed(frames):
        found = frame.f_locals.get("node", frame.f_locals.get("n"))
        if isinstance(found, Node) and found.op == "call_function":
            return found
    return None


def _explained(error: Exception, node: Node | None) -> ExportError:
    where = f"{_qualified(node)}{source_line(node)}" if node is not None else "the program"
    if "Missing out variants" in str(error):
        return ExportError(
            f"ExecuTorch's runtime has no kernel for {where}",
            advice="another delegate may take the operation, or a patch may write it in others "
            '(`@register_patch("executorch", …)`, docs/extending.md)',
        )
    return ExportError(f"ExecuTorch cannot lower {where}: {_first_line(error)}")


def _qualified(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(schema.name) if schema is not None else str(node.target)


def _first_line(error: BaseException) -> str:
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    text = " ".join(str(causes[-1]).split())
    return f"{type(causes[-1]).__name__}: {text[:300]}"
