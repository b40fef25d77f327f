# SPDX-License-Identifier: Apache-2.0
"""Weights that a model computes from its parameters in every run."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ...registry import Repro, register_fx_program_fix

_aten = torch.ops.aten


class _Normed(torch.nn.Module):
    """The fault, for the reproducer: a convolution whose weight is a direction and a length."""

    def __init__(self) -> None:
        super().__init__()
        convolution = torch.nn.Conv2d(3, 4, 2)
        self.convolution = torch.nn.utils.parametrizations.weight_norm(convolution, name="weight", dim=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve (batch, 3, rows, 5) between two other operations."""
        return torch.sigmoid(self.convolution(torch.sigmoid(x)))


@register_fx_program_fix(
    "executorch",
    why="a delegate takes no convolution whose weight is computed, be it from parameters alone (weight norm), so that "
    "the graph falls apart there and the convolution runs on the slow kernels",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(
        _Normed,
        lambda: (torch.randn(2, 3, 6, 5),),
        dynamic=True,
        builds=True,
        most_calls=("executorch.exir.backend.backend_api.create_submodule_from_nodes", 1),
    ),
)
def _fix_computed_weights(program: ExportedProgram) -> bool:
    """Compute the weight once, in place of one of the parameters of its shape, where nobody else reads those."""
    changed = False
    for node in list(program.graph.nodes):
        if node.target is _aten.convolution.default and node.args[1].op == "call_function":
            changed |= _fold(program, node, node.args[1])
    if changed:
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
    return changed


def _fold(program: ExportedProgram, reader: Node, weight: Node) -> bool:
    """Whether the weight could be computed; the parameter's place in the program's own table then holds it."""
    names = program.graph_signature.inputs_to_parameters
    inside = _ancestors(weight)
    parameters = [node for node in inside if node.op == "placeholder"]
    if not all(node.name in names for node in parameters) or any(node.op == "get_attr" for node in inside):
        return False
    if any(not set(node.users) <= (inside | ({reader} if node is weight else set())) for node in inside):
        return False
    tensors = {node: program.state_dict[names[node.name]] for node in parameters}
    with torch.no_grad():
        value = _evaluate(weight, tensors)
    place = next((node for node in parameters if tensors[node].numel() == value.numel()), None)
    if place is None:
        return False
    parameter = torch.nn.Parameter(value.contiguous(), requires_grad=tensors[place].requires_grad)
    program._state_dict = {**program.state_dict, names[place.name]: parameter}
    place.meta["val"] = weight.meta["val"]
    reader.replace_input_with(weight, place)
    return True


def _ancestors(node: Node) -> set[Node]:
    found, waiting = {node}, [node]
    while waiting:
        new = set(waiting.pop().all_input_nodes) - found
        found |= new
        waiting += new
    return found


def _evaluate(node: Node, known: dict[Node, Any]) -> Any:
    if node not in known:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda argument: _evaluate(argument, known))
        known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return known[node]
