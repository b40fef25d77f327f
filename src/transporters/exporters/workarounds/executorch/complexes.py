# SPDX-License-Identifier: Apache-2.0
"""Complex numbers, for which ExecuTorch has no kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ...registry import Repro, register_fx_program_fix

_aten = torch.ops.aten


class _Turning(torch.nn.Module):
    """The fault, for the reproducer: rotary positions as complex products, with computed factors and with kept ones."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: torch.Tensor
        self.turns: torch.Tensor
        self.register_buffer("rows", torch.rand(6, 8))
        self.register_buffer("turns", torch.polar(torch.ones(6, 4), torch.rand(6, 4)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Turn (batch, length, 6, 8), made from (batch, length), twice."""
        angles = torch.arange(x.shape[1])[:, None] * torch.arange(4) * 0.1
        factors = torch.polar(torch.ones_like(angles), angles) * 2.0
        rows = x[:, :, None, None] * self.rows
        pairs = torch.view_as_complex(rows.reshape(*rows.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * factors[:, None] * self.turns[None]).flatten(-2)


@register_fx_program_fix(
    "executorch",
    why="there is no kernel for any operation on complex numbers, with which some models rotate their queries and keys",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_Turning, lambda: (torch.randn(2, 5),), dynamic=True, builds=True),
)
def _fix_complex_numbers(program: ExportedProgram) -> bool:
    """Compute with pairs of real numbers in a last axis of two. What has no rule here keeps its complex inputs."""
    pairs: dict[Node, Node] = dict(_stored_pairs(program))
    for node in list(program.graph.nodes):
        rule = _RULES.get(node.target) if node not in pairs else None
        made = rule(node, pairs) if rule is not None else None
        if made is None:
            continue
        if _is_complex(node):
            pairs[node] = made
        else:
            _take_over(node, made)
    if not pairs:
        return False
    for node, made in pairs.items():
        _give_back(program.graph, node, made)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return True


def _is_complex(value: Any) -> bool:
    held = value.meta.get("val") if isinstance(value, Node) else None
    return isinstance(held, torch.Tensor) and held.is_complex()


def _stored_pairs(program: ExportedProgram) -> Iterator[tuple[Node, Node]]:
    """Complex buffers, each beside its placeholder: the program's own table holds the buffer's view as pairs now."""
    signature = program.graph_signature
    names = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    first = next(node for node in program.graph.nodes if node.op != "placeholder")
    for node in program.graph.find_nodes(op="placeholder"):
        if not _is_complex(node) or node.name not in names:
            continue  # an input's dtype is the caller's
        name = names[node.name]
        if name in program.state_dict:
            program._state_dict = {**program.state_dict, name: torch.view_as_real(program.state_dict[name])}
        else:
            program._constants = {**program.constants, name: torch.view_as_real(program.constants[name])}
        with program.graph.inserting_before(first):
            number = program.graph.call_function(_aten.view_as_complex.default, (node,))
        number.meta = dict(node.meta)
        node.replace_all_uses_with(number, delete_user_cb=lambda user, number=number: user is not number)
        node.meta["val"] = torch.view_as_real(node.meta["val"])
        yield number, node


def _call(node: Node, target: Any, *args: Any) -> Node:
    """A new node before ``node``, with the shape that its operation gives."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, args)
    made.meta = {**node.meta, "val": target(*torch.fx.map_arg(args, lambda arg: arg.meta["val"]))}
    return made


def _join(node: Node, real: Node, imaginary: Node) -> Node:
    parts = [_call(node, _aten.unsqueeze.default, part, -1) for part in (real, imaginary)]
    return _call(node, _aten.cat.default, parts, -1)


def _polar(node: Node, pairs: dict[Node, Node]) -> Node:
    size, angle = node.args
    parts = [_call(node, function, angle) for function in (_aten.cos.default, _aten.sin.default)]
    return _join(node, *(_call(node, _aten.mul.Tensor, size, part) for part in parts))


def _from_pairs(node: Node, pairs: dict[Node, Node]) -> Node:
    (given,) = node.args
    assert isinstance(given, Node), "its only argument is a tensor"
    return given


def _held(value: Any, pairs: dict[Node, Node]) -> Node | None:
    """The pairs that stand for a complex value, if any do."""
    return pairs.get(value) if isinstance(value, Node) else None


def _to_pairs(node: Node, pairs: dict[Node, Node]) -> Node | None:
    return _held(node.args[0], pairs)


def _product(node: Node, pairs: dict[Node, Node]) -> Node | None:
    numbers = [held for value in node.args if (held := _held(value, pairs)) is not None]
    if len(numbers) == 1:
        (factor,) = (value for value in node.args if _held(value, pairs) is None)
        if isinstance(factor, complex) or _is_complex(factor):
            return None
        spread = _call(node, _aten.unsqueeze.default, factor, -1) if isinstance(factor, Node) else factor
        return _call(node, _aten.mul.Tensor, numbers[0], spread)
    if not numbers:
        return None
    (a, b), (c, d) = ([_call(node, _aten.select.int, value, -1, part) for part in (0, 1)] for value in numbers)

    def times(left: Node, right: Node) -> Node:
        return _call(node, _aten.mul.Tensor, left, right)

    real = _call(node, _aten.sub.Tensor, times(a, c), times(b, d))
    return _join(node, real, _call(node, _aten.add.Tensor, times(a, d), times(b, c)))


def _sum(node: Node, pairs: dict[Node, Node]) -> Node | None:
    numbers = [held for value in node.args if (held := _held(value, pairs)) is not None]
    return _call(node, node.target, *numbers) if len(numbers) == 2 and not node.kwargs else None


def _moved(node: Node, pairs: dict[Node, Node]) -> Node | None:
    """Along an axis, which is counted past the pair."""
    held, rest = _held(node.args[0], pairs), node.args[1:]
    if held is None:
        return None
    axis: Any = rest[0] if rest else 0
    return _call(node, node.target, held, axis - 1 if axis < 0 else axis, *rest[1:])


def _reshaped(node: Node, pairs: dict[Node, Node]) -> Node | None:
    held, sizes = _held(node.args[0], pairs), node.args[1]
    assert isinstance(sizes, (list, tuple)), "the sizes of a view and of an expansion are a list"
    return _call(node, node.target, held, [*sizes, 2]) if held is not None else None


_RULES: dict[Any, Callable[[Node, dict[Node, Node]], Node | None]] = {
    _aten.polar.default: _polar,
    _aten.view_as_complex.default: _from_pairs,
    _aten.view_as_real.default: _to_pairs,
    _aten.mul.Tensor: _product,
    _aten.add.Tensor: _sum,
    _aten.sub.Tensor: _sum,
    _aten.unsqueeze.default: _moved,
    _aten.select.int: _moved,
    _aten.slice.Tensor: _moved,
    _aten.view.default: _reshaped,
    _aten.expand.default: _reshaped,
}


def _take_over(node: Node, made: Node) -> None:
    """Put pairs in the place of what asked for them; an output keeps its name, by which the program knows it."""
    if any(user.op == "output" for user in node.users):
        made = _call(node, _aten.clone.default, made)
        made.name, node.name = node.name, made.name
    node.replace_all_uses_with(made)


def _give_back(graph: Graph, node: Node, made: Node) -> None:
    """A complex number, under its name, for the operations that have no rule, if there are any."""
    left = [user for user in node.users if user.target not in _RULES]
    if not left:
        return
    with graph.inserting_after(node):
        whole = graph.call_function(_aten.view_as_complex.default, (made,))
    whole.meta = dict(node.meta)
    whole.name, node.name = node.name, whole.name
    node.replace_all_uses_with(whole, delete_user_cb=lambda user: user in left)
