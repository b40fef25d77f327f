# SPDX-License-Identifier: Apache-2.0
"""Names in an ONNX graph: inputs, outputs and symbolic sizes carry the model's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from .. import versions

if TYPE_CHECKING:
    from .base import Finished

#: Arguments that are caches of keys and values.
_CACHES = ("cache", "past_key_values")

_SCOPES = "pkg.torch.onnx.name_scopes"


def name_nodes(model: ir.Model) -> None:
    """Name each node after the module that it is from: ``encoder.layer.0.attention/MatMul_12``."""
    for index, node in enumerate(model.graph.all_nodes()):
        scopes = re.findall(r"'([^']*)'", node.metadata_props.get(_SCOPES, ""))  # the module's path, then the node
        modules = [scope for scope in scopes[:-1] if not scope.startswith("_")]
        node.name = f"{modules[-1] if modules else ''}/{node.op_type}_{index}"


def name_values(model: ir.Model, finished: Finished) -> None:
    """Give inputs and outputs the names of the model's arguments and output fields, and sizes the contract's labels.

    An inner value that has one of these names gets another one. An output that is called like an input gets another
    name as well: a cache that goes in and comes out is ``present``, anything else has ``output.`` in front. What is the
    same for all inputs is no output of the graph.
    """
    graph = model.graph
    inputs = [entry["name"] for entry in finished.inputs]
    for entry in finished.outputs:
        entry["name"] = _apart(entry["name"], inputs)
    ends = [*graph.inputs, *graph.outputs]
    names = [*inputs, *(entry["name"] for entry in finished.outputs if "value" not in entry)]
    for value in _values(graph):
        if value.name in names and not any(value is end for end in ends):
            value.name = f"{value.name}_inner"
    for value, name in zip(ends, names, strict=True):
        value.name = name
    _name_sizes(model, finished)


def _apart(name: str, inputs: list[str]) -> str:
    """An output's name that no input has."""
    if name not in inputs:
        return name
    field, _, rest = name.partition(".")
    return f"present.{rest}" if field in _CACHES and rest else f"output.{name}"


def _name_sizes(model: ir.Model, finished: Finished) -> None:
    """Sizes as the description of the inputs has them: a label, or a number where a guard fixed the axis."""
    labels: dict[str, str] = {}
    for value, entry in zip(model.graph.inputs, finished.inputs):
        for dim, label in zip(value.shape or (), entry["shape"] or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                labels.setdefault(dim.value, str(label))

    def readable(dim: Any) -> Any:
        if not isinstance(dim, ir.SymbolicDim) or not dim.value:
            return dim
        text = re.sub(r"\b[su]\d+\b", lambda match: labels.get(match[0], match[0]), labels.get(dim.value, dim.value))
        return int(text) if text.isdecimal() else text

    for value in _values(model.graph):
        if value.shape is not None and any(isinstance(dim, ir.SymbolicDim) for dim in value.shape):
            value.shape = ir.Shape([readable(dim) for dim in value.shape])


def drop_notes(model: ir.Model) -> None:
    """Take out torch's notes: they name files of this machine, and are larger than the graph itself."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
    for value in _values(model.graph):
        value.metadata_props.clear()
    model.producer_name, model.producer_version = "transporters", versions.installed("transporters")


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value once: inputs, initializers, and what the nodes of the graph and its subgraphs make."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs


def rename_size(model: ir.Model, old: str, new: str) -> None:
    """Call a symbolic size another name, in every shape of the graph."""
    for value in _values(model.graph):
        sizes = list(value.shape or ())
        if any(isinstance(size, ir.SymbolicDim) and size.value == old for size in sizes):
            value.shape = ir.Shape(
                [new if isinstance(size, ir.SymbolicDim) and size.value == old else size for size in sizes]
            )
