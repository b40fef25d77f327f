# SPDX-License-Identifier: Apache-2.0
"""A decoder in the form that ONNX Runtime computes fastest: its attention as one operator, its norms as it knows them.

**Attention.** What an export writes is standard ONNX: the cache and the new keys are concatenated, which copies the
cache in every step. ``com.microsoft.GroupQueryAttention`` takes past and new ones apart. Where a runtime hands it
buffers that are as long as the longest text, and the same ones for past and present, only the new entries are written.

    GroupQueryAttention(query, key, value, past_key, past_value, seqlens_k, total_sequence_length, attention_bias)

The mask goes in as a bias, so padding on the left stays masked. In such buffers a cache is longer than the text before
the step, so its length is taken from ``attention_mask`` and ``input_ids`` wherever the graph asks for it.

**Norms.** ONNX Runtime recognises a root mean square norm by its division; an export multiplies with a reciprocal.

Source: the operator's description in ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

DOMAIN, ATTENTION = "com.microsoft", "GroupQueryAttention"

#: Axis of keys and values that grows with the text.
_TOKENS = 2


@dataclass(frozen=True)
class _Attention:
    """One layer's attention as it stands in the graph.

    Attributes:
        query: ``(batch, heads, new, d)``.
        new: Key and value of the new tokens, ``(batch, kv heads, new, d)``.
        past: Inputs of the graph.
        present: Outputs of the graph.
        mask: ``(batch or 1, 1, new, seen + new)`` bool: what a query may look at.
        scale: Factor on the scores.
        result: ``(batch, heads, new, d)``.
    """

    query: ir.Value
    new: tuple[ir.Value, ir.Value]
    past: tuple[ir.Value, ir.Value]
    present: tuple[ir.Value, ir.Value]
    mask: ir.Value
    scale: float
    result: ir.Value


def fuse_attention(model: ir.Model, contract: Mapping[str, Any]) -> ir.Model | None:
    """A model in which every layer's attention is the one operator, over the same weights.

    Args:
        model: A decoder's program; it is left as it is.
        contract: Its cache contract.

    Returns:
        None when there is none: a layer's cache has a window or is something else than keys and values, its attention
        is not the plain one (a cap on the scores, a bias of its own), or something else reads a cache.
    """
    layers = contract["layers"]
    if not layers or any(layer["kind"] != "full" for layer in layers):
        return None
    fused = model.clone()
    found = [_attention(fused, layer) for layer in layers]
    attentions = [attention for attention in found if attention is not None]
    if len(attentions) < len(layers):
        return None
    _count_by_the_mask(fused, attentions)
    nodes = Nodes(fused, attentions[0].query)
    lengths = _lengths(nodes)
    biases: dict[str, ir.Value] = {}
    for attention in attentions:
        name = str(attention.mask.name)
        if name not in biases:
            biases[name] = _bias(nodes, attention)
        _replace(fused, attention, lengths, biases[name])
    fused.opset_imports[DOMAIN] = 1
    RemoveUnusedNodesPass()(fused)
    caches = [value for attention in attentions for value in attention.past]
    return fused if all(_is_the_operators(use) for value in caches for use in value.uses()) else None


def fuse_norms(model: ir.Model) -> int:
    """Divide by a root where the graph multiplies with its reciprocal; gives how often."""
    count = 0
    for node in list(model.graph):
        root = node.inputs[0].producer() if node.op_type == "Reciprocal" and node.inputs[0] is not None else None
        if root is None or root.op_type != "Sqrt":
            continue
        for use in list(node.outputs[0].uses()):
            if use.node.op_type == "Mul":
                divided = use.node.inputs[1 - use.idx]
                quotient = Nodes(model, use.node.outputs[0]).add("Div", divided, root.outputs[0])
                quotient.shape, quotient.dtype = use.node.outputs[0].shape, use.node.outputs[0].dtype
                ir.convenience.replace_all_uses_with(use.node.outputs[0], quotient)
                count += 1
    RemoveUnusedNodesPass()(model)
    return count


# ── What stands there ──


def _attention(model: ir.Model, layer: Mapping[str, Any]) -> _Attention | None:
    inputs = {value.name: value for value in model.graph.inputs}
    past = [inputs[tensor["input"]] for tensor in layer["tensors"]]
    joins = [_only(value, "Concat") for value in past]
    if len(past) != 2 or None in joins:
        return None
    keys, values = ((node.inputs[1], node.outputs[0]) for node in joins if node is not None)
    scores, product = _product(keys[1]), _product(values[1])
    if scores is None or product is None or keys[0] is None or values[0] is None:
        return None
    query = _skip(scores.inputs[0], {"Reshape"})
    score = _next(scores.outputs[0], {"Reshape"}, "Mul")
    masked = _next(score.outputs[0], set(), "Where") if score is not None else None
    weights = _skip(product.inputs[0], {"Reshape"})
    if score is None or masked is None or weights is None or not _is_softmax_of(weights, masked):
        return None
    scale, mask = number(score.inputs[1]), masked.inputs[0]
    result = _last(product.outputs[0])
    if query is None or mask is None or scale is None or sizes(mask)[1:2] != [1]:
        return None
    if not all(len(sizes(value)) == 4 for value in (query, result, mask)):
        return None
    return _Attention(query, (keys[0], values[0]), (past[0], past[1]), (keys[1], values[1]), mask, scale, result)


def sizes(value: ir.Value) -> list[Any]:
    """A value's sizes, numbers where they are known; none where not even their number is."""
    return list(value.shape) if value.shape is not None else []


def _is_the_operators(use: Any) -> bool:
    """Whether a cache is read by the operator, or asked for sizes other than its length."""
    if use.node.op_type == "Shape":
        return int(use.node.attributes.get_int("end", 4)) <= _TOKENS
    return str(use.node.op_type) == ATTENTION


def _only(value: ir.Value, op_type: str) -> ir.Node | None:
    """The one node of this kind that takes a value first."""
    found = [use.node for use in value.uses() if use.node.op_type == op_type and use.idx == 0]
    return found[0] if len(found) == 1 else None


def _product(states: ir.Value) -> ir.Node | None:
    """The one product into which states go from the right, turned or not."""
    found = []
    for use in states.uses():
        uses = use.node.outputs[0].uses() if use.node.op_type == "Transpose" else [use]
        found += [one.node for one in uses if one.node.op_type == "MatMul" and one.idx == 1]
    return found[0] if len(found) == 1 else None


def _skip(value: ir.Value | None, op_types: set[str]) -> ir.Value | None:
    """What a value is before nodes of these kinds."""
    while value is not None and (node := value.producer()) is not None and node.op_type in op_types:
        value = node.inputs[0]
    return value


def _next(value: ir.Value, between: set[str], op_type: str) -> ir.Node | None:
    """The one node of this kind that a value goes to, through nodes of other kinds."""
    nodes = [use.node for use in value.uses()]
    if len(nodes) != 1:
        return None
    if nodes[0].op_type in between:
        return _next(nodes[0].outputs[0], between, op_type)
    return nodes[0] if nodes[0].op_type == op_type else None


def _last(value: ir.Value) -> ir.Value:
    """A product of grouped rows in the shape of its heads."""
    nodes = [use.node for use in value.uses()]
    grouped = len(nodes) == 1 and nodes[0].op_type == "Reshape" and len(nodes[0].outputs[0].shape or ()) == 4
    return nodes[0].outputs[0] if grouped else value


def _is_softmax_of(weights: ir.Value, masked: ir.Node) -> bool:
    """Whether weights are the softmax of masked scores; rows that look at nothing may be set to zero after it."""
    node = weights.producer()
    if node is not None and node.op_type == "Where" and node.inputs[2] is not None:
        node = node.inputs[2].producer()
    return node is not None and node.op_type == "Softmax" and node.inputs[0] is masked.outputs[0]


def number(value: ir.Value | None) -> float | None:
    """A constant of one number."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return float(tensor.numpy().reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None


# ── What takes its place ──


class Nodes:
    """Adds nodes before the place where a value is made."""

    def __init__(self, model: ir.Model, before: ir.Value) -> None:
        self.graph = model.graph
        node = before.producer()
        assert node is not None, "a query is computed"
        self._before = node

    def add(self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """The first output of a new node, or all of them."""
        node = ir.node(op_type, list(inputs), attributes, domain=domain, num_outputs=outputs)
        self.graph.insert_before(self._before, node)
        return node.outputs[0] if outputs == 1 else node.outputs

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant of the graph."""
        found: ir.Value = self.add("Constant", value=ir.tensor(array))
        return found


def _length(nodes: Nodes, name: str) -> ir.Value:
    """The size of axis 1 of an input, ``(1,)`` int64."""
    value = next(value for value in nodes.graph.inputs if value.name == name)
    found: ir.Value = nodes.add("Shape", value, start=1, end=2)
    return found


def _count_by_the_mask(model: ir.Model, attentions: list[_Attention]) -> None:
    """Where the graph asks how long a cache is, answer with the tokens before this step."""
    caches = {value for attention in attentions for value in attention.past}
    asked = [
        node
        for node in model.graph
        if node.op_type == "Shape"
        and node.inputs[0] in caches
        and (node.attributes.get_int("start", 0), node.attributes.get_int("end", 4)) == (_TOKENS, _TOKENS + 1)
    ]
    if not asked:
        return
    nodes = Nodes(model, asked[0].outputs[0])
    seen = nodes.add("Sub", _length(nodes, "attention_mask"), _length(nodes, "input_ids"))
    for node in asked:
        ir.convenience.replace_all_uses_with(node.outputs[0], seen)


def _lengths(nodes: Nodes) -> tuple[ir.Value, ir.Value]:
    """``seqlens_k`` ``(batch,)`` int32, the last place of each row's text, and ``total_sequence_length`` int32."""
    total = nodes.add("Cast", _length(nodes, "attention_mask"), to=ir.DataType.INT32)
    last = nodes.add("Sub", total, nodes.constant(np.array([1], dtype=np.int32)))
    ids = next(value for value in nodes.graph.inputs if value.name == "input_ids")
    rows = nodes.add("Shape", ids, start=0, end=1)
    return nodes.add("Expand", last, rows), nodes.add("Squeeze", total)


def _bias(nodes: Nodes, attention: _Attention) -> ir.Value:
    """The mask as what is added to scores. A least number and not -inf: of a row of those comes no number."""
    dtype = attention.query.dtype or ir.DataType.FLOAT
    kind = dtype.numpy()
    zero, least = nodes.constant(np.zeros((), kind)), nodes.constant(np.array(np.finfo(kind).min, kind))
    found: ir.Value = nodes.add("Where", attention.mask, zero, least)
    return found


def _replace(model: ir.Model, old: _Attention, lengths: tuple[ir.Value, ir.Value], bias: ir.Value) -> None:
    nodes = Nodes(model, old.result)
    heads, kv_heads, size = sizes(old.query)[1], sizes(old.past[0])[1], sizes(old.result)[3]
    flat = nodes.constant(np.array([0, 0, -1], dtype=np.int64))
    rows = [
        nodes.add("Reshape", nodes.add("Transpose", value, perm=[0, 2, 1, 3]), flat) for value in (old.query, *old.new)
    ]
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "scale": old.scale}
    empty = (None, None, None)
    result, *present = nodes.add(
        ATTENTION, *rows, *old.past, *lengths, *empty, bias, outputs=3, domain=DOMAIN, **attributes
    )
    apart = nodes.constant(np.array([0, 0, heads, size], dtype=np.int64))
    back = nodes.add("Transpose", nodes.add("Reshape", result, apart), perm=[0, 2, 1, 3])
    ir.convenience.replace_all_uses_with(old.result, back)
    for value, made in zip(old.present, present, strict=True):
        _take_over(model, value, made)


def _take_over(model: ir.Model, old: ir.Value, new: ir.Value) -> None:
    """Make a new value an output of the graph under the old one's name."""
    name, new.shape, new.type = old.name, old.shape, old.type
    old.name = f"{name}_before"
    new.name = name
    for place, output in enumerate(model.graph.outputs):
        if output is old:
            model.graph.outputs[place] = new
