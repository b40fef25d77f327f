# SPDX-License-Identifier: Apache-2.0
"""Fewer operators around a fused attention: a step of one token costs as much for each operator as for its numbers.

**Rotations.** The attention rotates queries and keys itself, by tables of cosines and sines for all positions. They are
written as the program computes them, over a range instead of its positions, and ONNX Runtime folds them when it loads.

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

from .onnx_fusing import ATTENTION, DOMAIN, Nodes, number, sizes

#: The attention rotates heads whose size is a multiple of this.
_ROTATED = 16

#: Inputs of the attention.
_COS, _SIN, _POSITIONS = 7, 8, 9

#: What a cosine may go through before it meets the states, number by number.
_NUMBERWISE = frozenset(("Cos", "Sin", "Cast", "Mul", "Unsqueeze"))


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


# ── Rotations ──


class _Tables:
    """Cosines or sines of all positions, ``(context, half of the rotated size)``."""

    def __init__(self, model: ir.Model, context: int) -> None:
        self.model, self.context = model, context
        self.positions = next((value for value in model.graph.inputs if value.name == "position_ids"), None)
        self._made: dict[ir.Value, ir.Value | None] = {}

    def of(self, value: ir.Value) -> ir.Value | None:
        """The table from which a value ``(batch, 1, new, size)`` takes the rows of the positions."""
        if value not in self._made:
            self._made[value] = self._table(value)
        return self._made[value]

    def _table(self, value: ir.Value) -> ir.Value | None:
        half = _half(value)
        if half is None or self.positions is None or not _is_computed_from(value, self.positions):
            return None
        nodes = Nodes(self.model, value)
        scalars = [nodes.constant(np.array(number, np.int64)) for number in (0, self.context, 1)]
        rows = nodes.add("Unsqueeze", nodes.add("Range", *scalars), nodes.constant(np.array([0], np.int64)))
        computed = _again(nodes, value, {self.positions: rows})
        whole = nodes.add("Reshape", computed, nodes.constant(np.array([self.context, 2 * half], np.int64)))
        ends = [nodes.constant(np.array([number], np.int64)) for number in (0, half, 1)]
        found: ir.Value = nodes.add("Slice", whole, *ends)
        return found


def _half(value: ir.Value) -> int | None:
    """Half the size of the last axis of a value, if its two halves are the same."""
    size, at = (sizes(value) or [None])[-1], value
    while (node := at.producer()) is not None and node.op_type in _NUMBERWISE and node.inputs[0] is not None:
        if node.op_type == "Mul" and number(node.inputs[1]) is None:
            return None
        at = node.inputs[0]
    halves = node is not None and node.op_type == "Concat" and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    return size // 2 if halves and isinstance(size, int) else None


def _is_computed_from(value: ir.Value, source: ir.Value) -> bool:
    """Whether one input of the graph and constants are all that goes into a value."""
    if value is source or ir.convenience.get_const_tensor(value) is not None:
        return True
    node = value.producer()
    return node is not None and all(one is None or _is_computed_from(one, source) for one in node.inputs)


def _again(nodes: Nodes, value: ir.Value, made: dict[ir.Value, ir.Value]) -> ir.Value:
    """Compute a value once more, over other inputs."""
    node = value.producer()
    if value in made or node is None or ir.convenience.get_const_tensor(value) is not None:
        return made.get(value, value)
    inputs = [None if one is None else _again(nodes, one, made) for one in node.inputs]
    attributes = dict(node.attributes.items())
    made[value] = nodes.add(node.op_type, *inputs, domain=node.domain, **attributes)
    return made[value]


def _rotate_inside(tables: _Tables, node: ir.Node) -> None:
    """Give an attention the states as they are before their rotation, and the tables."""
    rows = [_rows_of(value) for value in node.inputs[:2]]
    found = [_rotation(value) for value in rows if value is not None]
    if len(found) != 2 or found[0] is None or found[1] is None or found[0][1:] != found[1][1:]:
        return
    cos, sin = found[0][1:]
    if sizes(found[0][0])[-1] != sizes(cos)[-1] or sizes(cos)[-1] % _ROTATED:
        return
    made = (tables.of(cos), tables.of(sin))
    if None in made:
        return
    for place, (states, *_) in enumerate(one for one in found if one is not None):
        turned = node.inputs[place].producer().inputs[0].producer()  # type: ignore[union-attr]
        turned.replace_input_with(0, states)  # type: ignore[union-attr]
    for place, value in zip((_COS, _SIN, _POSITIONS), (*made, tables.positions), strict=True):
        node.replace_input_with(place, value)
    node.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)


def _rotation(value: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """States, cosines and sines of ``states * cos + concat(-second half, first half) * sin``."""
    terms = _inputs(value, "Add")
    factors = [_inputs(term, "Mul") for term in terms or ()]
    if len(factors) != 2 or factors[0] is None or factors[1] is None:
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
    return states, cos, sin


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


def _inputs(value: ir.Value | None, op_type: str) -> list[ir.Value] | None:
    """The inputs of the node that makes a value, if it is of this kind and has them all."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type:
        return None
    found = [one for one in node.inputs if one is not None]
    return found if len(found) == len(node.inputs) else None


# ── Products ──


def _rows_of(value: ir.Value | None) -> ir.Value | None:
    """``(batch, heads, new, d)`` of rows ``(batch, new, heads * d)``, as `fuse_attention` makes them."""
    shaped = _inputs(value, "Reshape")
    turned = _inputs(shaped[0], "Transpose") if shaped is not None else None
    return turned[0] if turned is not None else None


def _take_rows(node: ir.Node) -> None:
    """What a product gives goes into an attention as it is, where it is only split into heads and turned before."""
    for place in range(3):
        turned = _inputs(_rows_of(node.inputs[place]), "Transpose")
        shaped = _inputs(turned[0], "Reshape") if turned is not None else None
        if turned is None or shaped is None or len(sizes(shaped[0])) != 3 or len(sizes(turned[0])) != 4:
            continue
        heads = sizes(turned[0])[2:]
        perm = turned[0].uses()[0].node.attributes.get_ints("perm")
        if list(perm or ()) == [0, 2, 1, 3] and sizes(shaped[0])[:2] == sizes(turned[0])[:2]:
            if all(isinstance(size, int) for size in heads) and sizes(shaped[0])[2] == heads[0] * heads[1]:
                node.replace_input_with(place, shaped[0])


def _give_rows(node: ir.Node) -> None:
    """What an attention gives goes on as it is, where it is only turned and put together after it."""
    value = node.outputs[0]
    for op_type in ("Reshape", "Transpose", "Transpose", "Reshape"):
        uses = value.uses()
        if len(uses) != 1 or uses[0].node.op_type != op_type:
            return
        value = uses[0].node.outputs[0]
    if len(sizes(value)) == 3 and sizes(value)[-1] == _width(node):
        node.outputs[0].shape, node.outputs[0].dtype = value.shape, value.dtype
        ir.convenience.replace_all_uses_with(value, node.outputs[0])


def _width(node: ir.Node) -> int | None:
    """All heads of an attention's queries."""
    size = sizes(node.inputs[3])[-1] if node.inputs[3] is not None else None
    return node.attributes.get_int("num_heads", 0) * size if isinstance(size, int) else None


def _multiply_once(model: ir.Model, node: ir.Node) -> None:
    """One product for queries, keys and values of the same states, in that order."""
    found = [_linear(value) for value in node.inputs[:3]]
    linears = [one for one in found if one is not None]
    if len(linears) != 3 or len({id(states) for states, *_ in linears}) != 1:
        return
    biases = [bias for *_, bias in linears if bias is not None]
    if len(biases) not in (0, 3):
        return
    first = min((value.producer() for value in node.inputs[:3] if value is not None), key=list(model.graph).index)
    nodes = Nodes(model, first.outputs[0])  # type: ignore[union-attr]
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
        value = terms[1 - terms.index(bias)]
    product = _inputs(value, "MatMul")
    turned = _inputs(product[1], "Transpose") if product is not None else None
    if product is None or turned is None or not turned[0].is_initializer() or len(sizes(turned[0])) != 2:
        return None
    return product[0], turned[0], bias


# ── Residuals ──


def _join_residual(model: ir.Model, node: ir.Node) -> None:
    """``(a + b) / sqrt(mean((a + b) ** 2) + epsilon) * weight`` by one operator, which gives the sum as well."""
    quotient, weight = (_inputs(node.outputs[0], "Mul") or [None, None])[::-1]
    if quotient is None or weight is None:
        return
    if quotient.is_initializer():
        quotient, weight = weight, quotient
    divided = _inputs(quotient, "Div")
    terms = _inputs(divided[0], "Add") if divided is not None else None
    epsilon = _epsilon(divided[1], divided[0]) if divided is not None else None
    if divided is None or terms is None or epsilon is None or not weight.is_initializer():
        return
    same = sizes(terms[0]) == sizes(terms[1]) == sizes(divided[0])
    if not same or sizes(weight) != sizes(divided[0])[-1:] or divided[0].dtype != ir.DataType.FLOAT:
        return
    made = Nodes(model, divided[0]).add(
        "SkipSimplifiedLayerNormalization", *terms, weight, outputs=4, domain=DOMAIN, epsilon=epsilon
    )
    for old, new in ((node.outputs[0], made[0]), (divided[0], made[3])):
        new.shape, new.dtype = old.shape, old.dtype
        ir.convenience.replace_all_uses_with(old, new)


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
