# SPDX-License-Identifier: Apache-2.0
"""Fewer operators around a fused attention: a step of one token costs as much for each operator as for its numbers.

**Rotations.** The attention rotates queries and keys itself, by tables of cosines and sines for all positions. They are
written as the program computes them, over a range instead of its positions, and ONNX Runtime folds them when it loads.
The operator counts padding on the left as well (given positions, it takes the first row's for a whole prompt). That
turns a padded text's queries and keys by the same angle more, of which their products know nothing.
Positions that are not counted one by one from the first, which no client gives, are not followed.

**Products.** Queries, keys and values of the same states come of one product with their weights one below the other.
ONNX Runtime joins them when it loads, so that the graph refers to the weights of the program, where they lie.

**Residuals.** A sum and the norm that follows it are one operator.

What is not exactly of this form stays as it is.

Source: the operators' descriptions in ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from .onnx_fusing import ATTENTION, DOMAIN, Nodes, number
from .onnx_fusing import sizes as sizes_or_unknown

#: The attention rotates heads whose size is a multiple of this.
_ROTATED = 16

#: Inputs of the attention.
_COS, _SIN = 7, 8

#: What a cosine goes through from number to number: those of one position are computed of that one alone.
_NUMBERWISE = frozenset(("Cast", "Cos", "Mul", "Sin", "Unsqueeze"))

#: The largest table; programs with more positions rotate as they do.
_LARGEST = 2**24

#: Axes of ``(batch, heads, new, d)`` against those of ``(batch, new, heads, d)``.
_TURN = (0, 2, 1, 3)


def pack(model: ir.Model, context: int) -> None:
    """Rotations in the attention, one product for what goes in there, and sums in the norms that follow them.

    Args:
        model: With fused attention and norms; it is changed.
        context: How many positions there are.
    """
    attentions = [node for node in model.graph if node.op_type == ATTENTION and node.domain == DOMAIN]
    tables = _Tables(model, context)
    for node in attentions:
        _rotate_inside(tables, node)
    RemoveUnusedNodesPass()(model)
    for node in attentions:
        _take_rows(node)
        _multiply_once(model, node)
        _give_rows(node)
    for node in list(model.graph):
        _join_residual(model, node)
    RemoveUnusedNodesPass()(model)


def sizes(value: ir.Value | None) -> list[int | str]:
    """A value's sizes, if all of them have a number or a name."""
    found = [size if isinstance(size, int) else size.value for size in sizes_or_unknown(value)] if value else []
    return [] if None in found else found


def _inputs(value: ir.Value | None, op_type: str) -> list[ir.Value] | None:
    """The inputs of the node that makes a value, if it is of this kind and has them all."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type:
        return None
    found = [one for one in node.inputs if one is not None]
    return found if len(found) == len(node.inputs) else None


def _turned(value: ir.Value | None) -> ir.Value | None:
    """What heads and tokens change places of, to give a value."""
    inputs = _inputs(value, "Transpose")
    node = value.producer() if value is not None else None
    is_turn = node is not None and inputs is not None and tuple(node.attributes.get_ints("perm", ())) == _TURN
    return inputs[0] if is_turn and inputs is not None else None


# ── Rotations ──


class _Tables:
    """Cosines or sines of all positions, ``(context, half of the rotated size)``."""

    def __init__(self, model: ir.Model, context: int) -> None:
        self.model, self.context = model, context
        self.positions = next((value for value in model.graph.inputs if value.name == "position_ids"), None)
        self._made: dict[ir.Value, ir.Value | None] = {}

    def of(self, value: ir.Value) -> ir.Value | None:
        """The table from which a value ``(batch, new, size)`` takes the rows of its positions."""
        if value not in self._made:
            self._made[value] = self._table(value)
        return self._made[value]

    def _table(self, value: ir.Value) -> ir.Value | None:
        half = _half(value, self.positions)
        if half is None or self.positions is None or half * self.context > _LARGEST:
            return None
        nodes = Nodes(self.model, value)
        scalars = [nodes.constant(np.array(number, np.int64)) for number in (0, self.context, 1)]
        rows = nodes.add("Unsqueeze", nodes.add("Range", *scalars), nodes.constant(np.array([0], np.int64)))
        computed = _again(nodes, value, {self.positions: rows})
        whole = nodes.add("Reshape", computed, nodes.constant(np.array([self.context, 2 * half], np.int64)))
        ends = [nodes.constant(np.array([number], np.int64)) for number in (0, half, 1)]
        found: ir.Value = nodes.add("Slice", whole, *ends)
        return found


def _half(value: ir.Value, positions: ir.Value | None) -> int | None:
    """Half the size of the last axis of a value, if its halves are the same and each row is of one position alone."""
    at = _before(value)
    halves, node = _inputs(at, "Concat"), at.producer()
    if halves is None or node is None or len(halves) != 2 or halves[0] is not halves[1]:
        return None
    size = sizes(value)[-1:]
    at_the_end = node.attributes.get_int("axis", 0) in (-1, len(sizes(at)) - 1)
    is_of_positions = positions is not None and _before(halves[0]) is positions
    return size[0] // 2 if at_the_end and is_of_positions and isinstance(size[0], int) else None


def _before(value: ir.Value) -> ir.Value:
    """What a value is before it went from number to number, with constants."""
    node = value.producer()
    while node is not None and node.op_type in _NUMBERWISE:
        computed = [one for one in node.inputs if one is not None and ir.convenience.get_const_tensor(one) is None]
        if len(computed) != 1:
            break
        value = computed[0]
        node = value.producer()
    return value


def _again(nodes: Nodes, value: ir.Value, made: dict[ir.Value, ir.Value]) -> ir.Value:
    """Compute a value once more, over other inputs."""
    node = value.producer()
    if value in made or node is None or ir.convenience.get_const_tensor(value) is not None:
        return made.get(value, value)
    inputs = [None if one is None else _again(nodes, one, made) for one in node.inputs]
    attributes: dict[str, Any] = dict(node.attributes.items())
    made[value] = nodes.add(node.op_type, *inputs, domain=node.domain, **attributes)
    return made[value]


def _rotate_inside(tables: _Tables, node: ir.Node) -> None:
    """Give an attention the states as they are before their rotation, and the tables."""
    queries, keys = (_rotation(_heads(value)) for value in node.inputs[:2])
    if queries is None or keys is None or queries[1:] != keys[1:]:
        return
    size = sizes(queries[0])[-1]
    made = [tables.of(value) for value in queries[1:]]
    if None in made or not isinstance(size, int) or size % _ROTATED:
        return
    nodes = Nodes(tables.model, node.outputs[0])
    for place, (states, *_) in enumerate((queries, keys)):
        shape = (_inputs(node.inputs[place], "Reshape") or [])[1]
        turned = nodes.add("Transpose", states, perm=list(_TURN))
        node.replace_input_with(place, nodes.add("Reshape", turned, shape))
    for place, value in zip((_COS, _SIN), made, strict=True):
        node.replace_input_with(place, value)
    node.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)


def _rotation(value: ir.Value | None) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """States, cosines and sines of ``states * cos + concat(-second half, first half) * sin``."""
    terms = _inputs(value, "Add")
    factors = [found for term in terms or () if (found := _inputs(term, "Mul")) is not None]
    if len(factors) != 2:
        return None
    (states, cos), (crossed, sin) = factors
    halves = _inputs(crossed, "Concat")
    negated = _inputs(halves[0], "Neg") if halves is not None else None
    if halves is None or negated is None or len(halves) != 2:
        return None
    size = sizes(states)[-1]
    cut = [_slice(one) for one in (negated[0], halves[1])]
    if not isinstance(size, int) or cut != [(states, size // 2, size), (states, 0, size // 2)]:
        return None
    if any(sizes(factor)[1:] != [1, *sizes(states)[2:]] for factor in (cos, sin)):
        return None
    return states, _joined(cos), _joined(sin)


def _joined(value: ir.Value) -> ir.Value:
    """A value before it got axes of one number."""
    while (inputs := _inputs(value, "Unsqueeze")) is not None:
        value = inputs[0]
    return value


def _slice(value: ir.Value) -> tuple[ir.Value, int, int] | None:
    """States of four axes, and the places from which and up to which their last axis is taken."""
    inputs = _inputs(value, "Slice")
    if inputs is None or len(inputs) != 5 or len(sizes(inputs[0])) != 4:
        return None
    start, end, axis, step = (number(one) for one in inputs[1:])
    size = sizes(inputs[0])[-1]
    if None in (start, end) or axis not in (3, -1) or step != 1 or not isinstance(size, int):
        return None
    return inputs[0], int(start or 0), min(int(end or 0), size)


# ── Products ──


def _heads(value: ir.Value | None) -> ir.Value | None:
    """``(batch, heads, new, d)`` of rows ``(batch, new, heads * d)``, as `fuse_attention` makes them."""
    shaped = _inputs(value, "Reshape")
    return _turned(shaped[0]) if shaped is not None else None


def _take_rows(node: ir.Node) -> None:
    """What a product gives goes into an attention as it is, where it is only split into heads and turned before."""
    for place in range(3):
        split = _turned(_heads(node.inputs[place]))
        shaped = _inputs(split, "Reshape")
        if shaped is not None and _is_split(shaped[0], split):
            node.replace_input_with(place, shaped[0])


def _give_rows(node: ir.Node) -> None:
    """What an attention gives goes on as it is, where it is only turned and put together after it."""
    made = [node.outputs[0]]
    for op_type in ("Reshape", "Transpose", "Transpose", "Reshape"):
        users = [use.node for use in made[-1].uses()]
        if len(users) != 1 or users[0].op_type != op_type:
            return
        made.append(users[0].outputs[0])
    *_, turned, split, rows = made
    if _turned(split) is turned and _is_split(rows, split):
        node.outputs[0].shape, node.outputs[0].type = rows.shape, rows.type
        ir.convenience.replace_all_uses_with(rows, node.outputs[0])


def _is_split(rows: ir.Value, heads: ir.Value | None) -> bool:
    """Whether the last axis of one value is the last two of the other."""
    whole, parts = sizes(rows), sizes(heads)
    if len(whole) != 3 or len(parts) != 4 or whole[:2] != parts[:2]:
        return False
    count, size = parts[2:]
    return isinstance(count, int) and isinstance(size, int) and whole[2] == count * size


def _multiply_once(model: ir.Model, node: ir.Node) -> None:
    """One product for queries, keys and values of the same states, in that order."""
    found = [_linear(value) for value in node.inputs[:3]]
    linears = [one for one in found if one is not None]
    if len(linears) != 3 or len({id(states) for states, *_ in linears}) != 1:
        return
    biases = [bias for *_, bias in linears if bias is not None]
    if len(biases) not in (0, 3):
        return
    made = {value for value in node.inputs[:3] if value is not None}
    first = next(value for other in model.graph for value in other.outputs if value in made)
    nodes = Nodes(model, first)
    joined = nodes.add("Concat", *[weight for _, weight, _ in linears], axis=0)
    rows = nodes.add("MatMul", linears[0][0], nodes.add("Transpose", joined, perm=[1, 0]))
    if biases:
        rows = nodes.add("Add", rows, nodes.add("Concat", *biases, axis=0))
    for place, value in enumerate((rows, None, None)):
        node.replace_input_with(place, value)


def _linear(value: ir.Value | None) -> tuple[ir.Value, ir.Value, ir.Value | None] | None:
    """States, weight ``(out, in)`` and bias of a linear layer, if the latter two are constants."""
    bias, terms = None, _inputs(value, "Add")
    if terms is not None:
        constants = [one for one in terms if one.is_initializer()]
        if len(constants) != 1:
            return None
        bias = constants[0]
        value = next(one for one in terms if one is not bias)
    product = _inputs(value, "MatMul")
    turned = _inputs(product[1], "Transpose") if product is not None else None
    if product is None or turned is None or not turned[0].is_initializer() or len(sizes(turned[0])) != 2:
        return None
    if bias is not None and sizes(bias) != sizes(turned[0])[:1]:
        return None
    return product[0], turned[0], bias


# ── Residuals ──


def _join_residual(model: ir.Model, node: ir.Node) -> None:
    """``(a + b) / sqrt(mean((a + b) ** 2) + epsilon) * weight`` by one operator, which gives the sum as well."""
    factors = _inputs(node.outputs[0], "Mul")
    if factors is None:
        return
    weight, quotient = factors if factors[0].is_initializer() else factors[::-1]
    divided = _inputs(quotient, "Div")
    terms = _inputs(divided[0], "Add") if divided is not None else None
    epsilon = _epsilon(divided[1], divided[0]) if divided is not None else None
    if divided is None or terms is None or epsilon is None or not weight.is_initializer():
        return
    same = len(sizes(divided[0])) == 3 and sizes(terms[0]) == sizes(terms[1]) == sizes(
        divided[0]
    )  # no axis of one is spread over the other's
    if not same or sizes(weight) != sizes(divided[0])[-1:] or divided[0].dtype != ir.DataType.FLOAT:
        return
    made = Nodes(model, divided[0]).add(
        "SkipSimplifiedLayerNormalization", *terms, weight, outputs=4, domain=DOMAIN, epsilon=epsilon
    )
    for old, new in ((node.outputs[0], made[0]), (divided[0], made[3])):
        new.shape, new.type = old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new)
    for value in made:
        if not value.uses():
            value.name = ""  # so that it is not computed


def _epsilon(root: ir.Value, states: ir.Value) -> float | None:
    """Epsilon of ``sqrt(mean(states ** 2) + epsilon)`` over the last axis."""
    under = _inputs(root, "Sqrt")
    terms = _inputs(under[0], "Add") if under is not None else None
    mean = _inputs(terms[0], "ReduceMean") if terms is not None else None
    square = _inputs(mean[0], "Pow") if mean is not None else None
    if terms is None or mean is None or square is None or square[0] is not states or number(square[1]) != 2:
        return None
    axes = number(mean[1]) if len(mean) == 2 else None
    return number(terms[1]) if axes in (-1, len(sizes(states)) - 1) else None
