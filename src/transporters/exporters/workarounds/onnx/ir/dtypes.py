# SPDX-License-Identifier: Apache-2.0
"""Element types that ONNX Runtime has no kernels for."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ....onnx_tables import repairs
from ....registry import Repro

#: Operations that move bytes or ask for sizes; ONNX Runtime runs them on any element type.
_ANY_TYPE = frozenset(
    [
        "Cast",
        "CastLike",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "If",
        "Loop",
        "Reshape",
        "Scan",
        "Shape",
        "Size",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ]
)


def _convolve(signal: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: bfloat16 goes in and comes out."""
    return torch.nn.functional.conv1d(signal.bfloat16(), kernel.bfloat16()).float() + 1


@repairs(
    why="ONNX Runtime has no arithmetic on bfloat16 on the CPU and, unlike for float16, puts no casts around it",
    issue="https://github.com/microsoft/onnxruntime/issues/28768",
    needed="onnxruntime<1.34",
    repro=Repro(_convolve, lambda: (torch.randint(-4, 4, (2, 3, 9)) / 4, torch.randint(-4, 4, (5, 3, 3)) / 4)),
)
def _fix_ir_bfloat16(model: ir.Model) -> bool:
    """Compute in float32 between casts; every result is rounded to bfloat16 as torch rounds it.

    Weights stay bfloat16 in the file. A graph for a device that has the kernels is better off without this repair.
    """
    widened: dict[int, ir.Value] = {}
    nodes = [node for node in model.graph.all_nodes() if node.op_type not in _ANY_TYPE]
    changed = False
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == ir.DataType.BFLOAT16:
                node.replace_input_with(index, _widened(value, node, widened))
                changed = True
        for value in node.outputs:
            if value.dtype == ir.DataType.BFLOAT16:
                _narrow(value, node)
                changed = True
    return changed


def _widened(value: ir.Value, user: ir.Node, known: dict[int, ir.Value]) -> ir.Value:
    """The value in float32: one cast, where the value is made, for all its users."""
    if id(value) in known:
        return known[id(value)]
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", ir.DataType.FLOAT)], num_outputs=1)
    producer = value.producer()
    graph = producer.graph if producer is not None else value.graph
    assert isinstance(graph, ir.Graph), "a value lives in a graph"
    if producer is not None:
        producer.append(cast)
    else:
        graph.insert_before(graph[0], cast)
    known[id(value)] = _like(cast.outputs[0], value, ir.DataType.FLOAT)
    return known[id(value)]


def _narrow(value: ir.Value, producer: ir.Node) -> None:
    """Let the node make float32, and a cast after it the value that all others know."""
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", ir.DataType.BFLOAT16)], num_outputs=1)
    producer.append(cast)
    rounded = _like(cast.outputs[0], value, ir.DataType.BFLOAT16)
    value.dtype = ir.DataType.FLOAT
    value.replace_all_uses_with(rounded, replace_graph_outputs=True)
    cast.replace_input_with(0, value)


def _like(new: ir.Value, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    new.shape = value.shape
    new.type = ir.TensorType(dtype)
    return new
