# SPDX-License-Identifier: Apache-2.0
"""Convolutions over one axis or three."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ...registry import Repro, register_fx_program_fix

_aten = torch.ops.aten


class _Convolution(torch.nn.Module):
    """The fault, for the reproducer: batch and length of the convolved rows are both dynamic."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(3, 4, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve (batch, length, 3) along its length."""
        result: torch.Tensor = self.convolution(torch.sigmoid(x).transpose(1, 2))
        return result


@register_fx_program_fix(
    "executorch",
    why="XNNPACK claims a convolution over one axis, adds an axis to its input by a reshape, and then refuses the "
    "reshape when both batch and length are dynamic",
    issue="https://github.com/pytorch/executorch/issues/11449",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_Convolution(), lambda: (torch.randn(2, 9, 3),), dynamic=True),
)
def _fix_conv1d(program: ExportedProgram) -> bool:
    """Convolve over two axes, the second of size 1, which is added outside of the delegate."""
    weights = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    found = [node for node in program.graph.nodes if node.target is _aten.convolution.default and _over_one_axis(node)]
    changed = False
    for name in dict.fromkeys(node.args[1].name for node in found):
        users = [node for node in found if node.args[1].name == name]
        placeholder = users[0].args[1]
        if name not in weights or set(placeholder.users) != set(users):
            continue  # computed, or needed as it is elsewhere as well
        _reshape_weight(program, placeholder, weights[name], lambda tensor: tensor.unsqueeze(-1))
        for node in users:
            _widen(program.graph, node)
        changed = True
    if changed:
        program.graph_module.recompile()
    return changed


def _over_one_axis(node: Node) -> bool:
    x: Any = node.args[0]
    sizes = x.meta["val"].shape
    return len(sizes) == 3 and sum(isinstance(size, torch.SymInt) for size in sizes) > 1


def _reshape_weight(
    program: ExportedProgram, placeholder: Node, target: str, reshape: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """In the program's own table: the tensor is a view of the model's, and the model's table keeps its own."""
    weight = program.state_dict[target]
    reshaped = reshape(weight.detach())
    if isinstance(weight, torch.nn.Parameter):
        reshaped = torch.nn.Parameter(reshaped, requires_grad=weight.requires_grad)
    program._state_dict = {**program.state_dict, target: reshaped}
    placeholder.meta["val"] = reshape(placeholder.meta["val"])


def _widen(graph: torch.fx.Graph, node: Node) -> None:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    assert isinstance(x, Node), "checked by _over_one_axis"
    with graph.inserting_before(node):
        wide = graph.call_function(_aten.unsqueeze.default, (x, -1))
        wide.meta = {**node.meta, "val": x.meta["val"].unsqueeze(-1)}
    narrow_value = node.meta["val"]
    node.args = (
        wide,
        weight,
        bias,
        [*_list(stride), 1],
        [*_list(padding), 0],
        [*_list(dilation), 1],
        transposed,
        [*_list(output_padding), 0],
        groups,
    )
    node.meta = {**node.meta, "val": narrow_value.unsqueeze(-1)}
    with graph.inserting_after(node):
        narrow = graph.call_function(_aten.squeeze.dim, (node, -1))
    narrow.meta = {**node.meta, "val": narrow_value}
    node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)
    node.name, narrow.name = narrow.name, node.name  # the program knows its outputs by name


def _list(values: Any) -> list[Any]:
    return list(values)


class _PatchEmbedding(torch.nn.Module):
    """The fault, for the reproducer: a convolution whose kernel is as large as each patch."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv3d(3, 8, (2, 4, 4), stride=(2, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embed patches (patches, 96)."""
        result: torch.Tensor = self.convolution(x.view(-1, 3, 2, 4, 4))
        return result.view(-1, 8) * 2


@register_fx_program_fix(
    "executorch",
    why="there is a kernel for convolution, but it fails when it meets three axes to convolve over",
    issue="https://github.com/pytorch/executorch/issues/11704",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_PatchEmbedding(), lambda: (torch.randn(5, 96),), dynamic=True),
)
def _fix_conv3d_of_patches(program: ExportedProgram) -> bool:
    """Multiply by a matrix where the kernel is as large as the input, as when patches are embedded."""
    weights = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    changed = False
    for node in list(program.graph.nodes):
        weight: Any = node.args[1] if node.target is _aten.convolution.default else None
        if weight is None or weight.name not in weights or len(weight.users) != 1 or not _covers_all(node):
            continue
        _reshape_weight(program, weight, weights[weight.name], lambda tensor: tensor.flatten(1))
        _multiply_instead(program.graph, node)
        changed = True
    if changed:
        program.graph_module.recompile()
    return changed


def _multiply_instead(graph: torch.fx.Graph, node: Node) -> None:
    x: Any = node.args[0]
    weight: Any = node.args[1]
    out, columns = weight.meta["val"].shape

    value = x.meta["val"]
    rows = value.shape[0]

    def call(target: Any, arguments: tuple[Any, ...], shape: tuple[Any, ...]) -> Node:
        made: Node = graph.call_function(target, arguments)
        made.meta = {**node.meta, "val": value.new_empty(shape)}
        return made

    with graph.inserting_before(node):
        flat = call(_aten.view.default, (x, [-1, columns]), (rows, columns))
        bias = node.args[2:3] if node.args[2] is not None else ()  # XNNPACK stumbles over a None
        product = call(_aten.linear.default, (flat, weight, *bias), (rows, out))
        result = call(_aten.view.default, (product, [-1, out, 1, 1, 1]), (rows, out, 1, 1, 1))
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    result.name = node.name


def _covers_all(node: Node) -> bool:
    """Over three axes, each as long as the kernel, without padding or groups."""
    x: Any = node.args[0]
    weight: Any = node.args[1]
    padding: Any = node.args[4]
    sizes, kernel = (tuple(value.meta["val"].shape)[2:] for value in (x, weight))
    return bool(len(sizes) == 3 and sizes == kernel and not any(padding) and node.args[8] == 1)
