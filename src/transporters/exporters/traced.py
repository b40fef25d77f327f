# SPDX-License-Identifier: Apache-2.0
"""A traced program, what can be read off its graph, and how it is handed over."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.export import ExportedProgram
from torch.utils._pytree import TreeSpec

from ..trees import pytrees
from .base import Finished
from .dynamic_shapes import ShapeRequest
from .patching import patched
from .prepare import Prepared
from .run import ExportRun
from .shapes import ShapeContract
from .tracing import traceable_attention

_RANDOM = (
    "rand",
    "randn",
    "randint",
    "bernoulli",
    "multinomial",
    "normal",
    "dropout",
    "uniform",
    "randperm",
    "poisson",
)


@dataclass
class Traced:
    """What stage 4 gives: the program, the inputs it was traced with, and the axes that were asked for."""

    program: ExportedProgram
    inputs: dict[str, Any]
    wanted: ShapeRequest


def finish(program: ExportedProgram, prepared: Prepared, contract: ShapeContract, run: ExportRun) -> Finished:
    """Name the outputs, and keep the rungs that a bisection climbs: patched eager, then the program."""
    spec = program.call_spec.out_spec
    assert spec is not None, "torch.export always records the output's structure"

    def patched_eager(inputs: Mapping[str, Any]) -> Any:
        with patched("dynamo", ExportRun("dynamo"), run.skipped), traceable_attention(prepared.model, run):
            return prepared.eager(prepared.complete(inputs))

    inputs, outputs = describe(program, prepared, contract)
    return Finished(program, prepared, contract, inputs, outputs, spec, {"patched eager": patched_eager})


def run_program(program: ExportedProgram, prepared: Prepared) -> Callable[[Mapping[str, Any]], Any]:
    """A rung for the bisection of a mismatch: a program of the way, on the inputs that eager gets."""

    def run(inputs: Mapping[str, Any]) -> Any:
        with torch.no_grad():
            return program.module()(**prepared.complete(inputs))

    return run


def describe(
    program: ExportedProgram, prepared: Prepared, contract: ShapeContract
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Name, dtype and symbolic shape of every input and output, symbols under their readable labels.

    An output that is the same for all inputs, such as a field that the model leaves empty, has its ``value`` as well.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    readable = _readable_symbols(program, prepared, contract)
    names = [name for name, _ in pytrees.named_leaves(prepared.inputs)]
    inputs = [
        _entry(name, values[str(node_name)], readable)
        for name, node_name in zip(names, program.graph_signature.user_inputs)
    ]
    output_node = program.graph.output_node()
    produced = {node.name: node for node in output_node.args[0] if isinstance(node, torch.fx.Node)}
    outputs = []
    for name, given in zip(output_names(program.call_spec.out_spec), program.graph_signature.user_outputs):
        is_made = str(given) in produced
        entry = _entry(name, values.get(str(given)) if is_made else given, readable)
        outputs.append(entry if is_made else {**entry, "value": given})
    return inputs, outputs


def _readable_symbols(program: ExportedProgram, prepared: Prepared, contract: ShapeContract) -> dict[str, str]:
    """Symbol to label, from the first input axis that has it; to a number where the contract says that it is one."""
    found: dict[str, str] = {}
    fixed = {(axis.input, axis.index): str(axis.size) for axis in contract.axes if not axis.dynamic}
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for (name, _), node_name in zip(pytrees.named_leaves(prepared.inputs), program.graph_signature.user_inputs):
        value = values[str(node_name)]
        if isinstance(value, torch.Tensor):
            for index, (label, size) in enumerate(zip(prepared.labels.get(name, ()), value.shape)):
                found.setdefault(str(size), fixed.get((name, index), label))
        elif isinstance(value, torch.SymInt):
            found.setdefault(str(value), name)
    return {symbol: label for symbol, label in found.items() if re.fullmatch(r"[su]\d+", symbol)}


def _entry(name: str, value: Any, readable: dict[str, str]) -> dict[str, Any]:
    def size(dim: Any) -> int | str:
        if isinstance(dim, int):
            return dim
        labels = {symbol: readable.get(str(symbol), str(symbol)) for symbol in dim.node.expr.free_symbols}
        if len(set(labels.values())) < len(labels):  # sizes of one label are equal, and may cancel out
            names = {symbol: sympy.Symbol(label, integer=True) for symbol, label in labels.items()}
            return str(dim.node.expr.subs(names))
        text = re.sub(r"\b[su]\d+\b", lambda match: readable.get(match[0], match[0]), str(dim))
        return int(text) if text.isdecimal() else text

    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"name": name, "dtype": dtype, "shape": [size(dim) for dim in value.shape]}
    kind = "int" if isinstance(value, (int, torch.SymInt)) else type(value).__name__
    return {"name": name, "dtype": kind, "shape": None}


def output_names(spec: TreeSpec | None) -> tuple[str, ...]:
    """Dotted name per output leaf, in the program's order; a lone tensor is called ``output``.

    A container that is rebuilt may hold its fields in another order than the one that the model filled them in.
    """
    assert spec is not None, "torch.export always records the output's structure"
    tree = pytrees.rebuild([torch.tensor(place) for place in range(spec.num_leaves)], spec)
    names = {int(place): name or "output" for name, place in pytrees.named_leaves(tree)}
    return tuple(names[place] for place in range(spec.num_leaves))


def note_graph_findings(program: ExportedProgram, inputs: Mapping[str, Any], run: ExportRun) -> None:
    """Say which arguments the model ignores, and which operations are random."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for (name, leaf), node_name in zip(pytrees.named_leaves(dict(inputs)), program.graph_signature.user_inputs):
        node = placeholders.get(str(node_name))
        if isinstance(leaf, torch.Tensor) and node is not None and not _used(node):
            run.note("info", name, "the model ignores this argument; it stays an input, so that callers can pass it")
    for node in program.graph.nodes:
        if node.op == "call_function" and _is_random(node):
            run.note("warning", str(node.target), f"is random, so outputs differ from call to call{source_line(node)}")


def _used(node: torch.fx.Node) -> bool:
    """Whether anything but a size check reads a placeholder."""
    return any(not str(user.target).startswith(("aten.sym_size", "aten._assert")) for user in node.users)


def _is_random(node: torch.fx.Node) -> bool:
    packet = str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.").rstrip("_")
    if packet.removesuffix("_like") not in _RANDOM:
        return False
    return not (packet == "dropout" and node.args[2:3] == (False,))


def source_line(node: torch.fx.Node) -> str:
    """The model's line that made a node, in brackets, or nothing where it is not known."""
    trace = (node.meta.get("stack_trace") or "").strip().splitlines()
    lines = [line.strip() for line in trace if line.strip().startswith("File")]
    return f" ({lines[-1].split('site-packages/')[-1]})" if lines else ""
