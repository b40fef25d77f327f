# SPDX-License-Identifier: Apache-2.0
"""Taking a program's operations apart, without tracing anew those that stay what they are.

`ExportedProgram.run_decompositions` runs the whole program twice, once to learn what it writes to and once to trace it,
although most operations come out as they went in. Here the graph is copied, and only what is taken apart is traced: in
its place, from the values that the graph has on record. What that cannot do is left to torch: see `_is_simple`, and
`_Decomposition.run` for operations that are taken apart although data give the size of their result.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _is_preservable_cia_op, _special_op_to_preserve_cia
from torch._ops import OpOverload
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.export import ExportedProgram
from torch.export import exported_program as torch_program
from torch.export._trace import _ignore_backend_decomps
from torch.fx import Graph, Node, Proxy
from torch.fx.experimental import proxy_tensor
from torch.fx.node import map_aggregate
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SIZE, _STRIDE = torch.ops.aten.sym_size.int, torch.ops.aten.sym_stride.int
_READ: dict[Any, Callable[..., Any]] = {
    _SIZE: torch.Tensor.size,
    _STRIDE: torch.Tensor.stride,
    torch.ops.aten.sym_numel.default: torch.Tensor.numel,
    torch.ops.aten.sym_storage_offset.default: torch.Tensor.storage_offset,
}
# What comes out of them when they are traced: a tensor that is as fresh as its copy, and a number that a tensor holds.
_RENAMED = {
    torch.ops.aten.lift_fresh_copy.default: torch.ops.aten.clone.default,
    torch.ops.aten.item.default: torch.ops.aten._local_scalar_dense.default,
}
# What says where an operation comes from; a value, and the sizes that it makes known, are the new node's own.
_ORIGIN = ("nn_module_stack", "stack_trace", "source_fn_stack", "torch_fn")

Table = dict[Any, Callable[..., Any]]


def decompose(program: ExportedProgram, table: Table) -> ExportedProgram:
    """The program with every operation of ``table`` taken apart, as ``run_decompositions(table)`` gives it.

    No operation of the result writes to its arguments. The weights are shared with ``program``.
    """
    if not _is_simple(program):
        return _retraced(program, table)
    composite, python = torch_program._split_decomp_table_to_cia_and_python_decomp(dict(table))
    graph = _Decomposition(program, composite, python).run()
    return _retraced(program, table) if graph is None else _with_graph(program, *graph)


def _retraced(program: ExportedProgram, table: Table) -> ExportedProgram:
    lowered: ExportedProgram = program.run_decompositions(table)
    return lowered


def _is_simple(program: ExportedProgram) -> bool:
    """Whether there is nothing but operations on tensors and numbers, and what is written to is nobody else's."""
    return not any(
        node.op == "get_attr" or isinstance(node.target, torch._ops.HigherOrderOperator) for node in program.graph.nodes
    ) and not _writes_to_shared(program.graph)


def _writes_to_shared(graph: Graph) -> bool:
    """Whether an operation writes to memory that is read afterwards under another name, or that the caller holds."""
    if not any(map(_writes, graph.nodes)):
        return False
    shares: dict[Node, set[Node]] = {}  # each node, with all that may share its memory
    same: dict[Node, Node] = {}  # the result of a write is what was written to
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        sharing = {node}
        for given in _may_share(node):
            sharing |= shares[given]
        for member in sharing:
            shares[member] = sharing
        if _is_nothing(node):
            same[node] = same.get(node.all_input_nodes[0], node.all_input_nodes[0])
        if not _writes(node):
            continue
        target = _written(node)
        if target is None:
            return True
        same[node] = same.get(target, target)
        for member in sharing:
            if member.op != "call_function":
                return True
            if same.get(member, member) is not same[node] and any(place[user] > place[node] for user in member.users):
                return True
    return False


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_nothing(node: Node) -> bool:
    """A dropout without training gives its argument back: the very same, although neither schema nor torch says so."""
    return node.target is torch.ops.aten.dropout.default and node.args[2:] == (False,)


def _written(node: Node) -> Node | None:
    """What an operation writes to, when that is its first argument, and what it gives back."""
    assert isinstance(node.target, OpOverload), "nothing else writes"
    schema = node.target._schema
    written = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    first = node.args[0] if node.args else None
    is_usual = written == [schema.arguments[0].name] and len(schema.returns) == 1
    return first if is_usual and isinstance(first, Node) else None


def _may_share(node: Node) -> Iterator[Node]:
    """The arguments whose memory the result may be in: by the schema, which not every composite keeps to."""
    if node.target is operator.getitem and _is_fresh(node.args[0]):
        return
    if not isinstance(node.target, OpOverload) or not _keeps_to_schema(node.target):
        yield from node.all_input_nodes
        return
    for value, argument in zip(node.args, node.target._schema.arguments):
        if argument.alias_info is not None:
            given = value if isinstance(value, list | tuple) else [value]
            yield from (one for one in given if isinstance(one, Node))


def _is_fresh(node: Any) -> bool:
    """Whether each of several results has memory of its own; a program takes each of them once."""
    op = node.target
    return isinstance(op, OpOverload) and _keeps_to_schema(op) and not any(r.alias_info for r in op._schema.returns)


def _keeps_to_schema(op: OpOverload) -> bool:
    return not _is_composite(op) or any(a.alias_info for a in op._schema.arguments) or _is_preservable_cia_op(op)


def _is_composite(op: OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op._name, "CompositeImplicitAutograd")


class _Decomposition:
    """A program's graph on its way into a new one."""

    def __init__(self, program: ExportedProgram, composite: Table, python: Table) -> None:
        self.old = program.graph
        self.composite = composite
        self.python = python
        self.new = Graph()
        self.tracer = _Tracer(self.new)
        self.mode = proxy_tensor.ProxyTorchDispatchMode(self.tracer, "symbolic", decomposition_table=python)
        # What stands for a node of the old graph: a node or a number, or several of them. After a write, the result.
        self.nodes: dict[Node, Any] = {}
        self.values: dict[Node, Any] = {}
        self.same: dict[Node, Node] = {}
        self.owned: set[int] = set()

    def run(self) -> tuple[Graph, dict[str, Any]] | None:
        """The new graph, and what each node of the old one is called there. None when the nodes tell too little."""
        fake_mode = next(filter(None, map(_fake_mode, self.old.nodes)), None)
        if fake_mode is None:
            return None
        with ExitStack() as stack:
            stack.enter_context(torch_program._override_composite_implicit_decomp(self.composite))
            stack.enter_context(_ignore_backend_decomps())
            stack.enter_context(torch.no_grad())
            stack.enter_context(fake_mode)
            stack.enter_context(enable_python_dispatcher())
            stack.enter_context(proxy_tensor._enable_thunkify(self.tracer))
            for node in self.old.nodes:
                if _is_nothing(node):
                    self.same[node] = self._now(node.all_input_nodes[0])
                elif not self._stays(node):
                    if "unbacked_bindings" in node.meta:
                        return None
                    self._take_apart(node)
                elif node.target is operator.getitem and not isinstance(self.nodes[node.args[0]], Node):
                    whole, place = node.args
                    self.nodes[node] = self.nodes[whole][place]
                    self.values[node] = self.values[whole][place]
                else:
                    self._copy(node)
        stands = {node.name: self.nodes[self._now(node)] for node in self.old.nodes}
        return self.new, {name: made.name if isinstance(made, Node) else made for name, made in stands.items()}

    def _stays(self, node: Node) -> bool:
        op = node.target
        if not isinstance(op, OpOverload) or op in _READ or op in _RENAMED:
            return True
        if _writes(node) or op in self.python or "val" not in node.meta:
            return False
        if op in self.composite:
            return self.composite[op] is _special_op_to_preserve_cia
        return not _is_composite(op)

    def _copy(self, node: Node) -> None:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, (int, float)):  # a size that turned out to be fixed
            self.nodes[node] = self.values[node] = value
            return
        if node.op == "call_function" and isinstance(value, _SIZES) and value in self.tracer.symnode_tracker:
            self.nodes[node] = self._node_of(value)
            self.values[node] = value
            return
        made = self.new.node_copy(node, lambda given: self.nodes[self._now(given)])
        if made.op == "placeholder":
            made.name = node.name  # which may be a name that Python has given away, such as `input`
        elif isinstance(made.target, OpOverload):
            made.target = _RENAMED.get(made.target, made.target)
        self.nodes[node] = made
        self.values[node] = self._own(value)
        self.tracer.learn(made)

    def _own(self, value: Any) -> Any:
        """The value as an object that no other node has: what is traced is told apart by that."""
        if isinstance(value, torch.Tensor) and id(value) in self.owned:
            value = value.detach()
        self.owned.add(id(value))
        return value

    def _take_apart(self, node: Node) -> None:
        assert isinstance(node.target, OpOverload), "nothing else is taken apart"
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda given: self.values[self._now(given)])
        for given in map(self._now, node.all_input_nodes):
            if isinstance(self.values[given], torch.Tensor):
                tracked = proxy_tensor._ProxyTensor(Proxy(self.nodes[given], self.tracer), None)
                proxy_tensor.set_proxy_slot(self.values[given], self.tracer, tracked)
        last = self.new._root.prev
        with self.mode:
            result = dispatch_functionalize(node.target, FunctionalTensorMode())(*args, **kwargs)
        if _writes(node):
            self.same[node] = self._now(cast("Node", node.args[0]))
        self.values[self._now(node)] = result
        self.nodes[self._now(node)] = map_aggregate(result, self._node_of)
        for made in _after(last):
            made.meta.update({key: node.meta[key] for key in _ORIGIN if key in node.meta})
            self.tracer.learn(made)

    def _now(self, node: Node) -> Node:
        """A write gives back what it wrote to: both are one node, with one value at a time."""
        return self.same.get(node, node)

    def _node_of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return proxy_tensor.get_proxy_slot(value, self.tracer).proxy.node
        if isinstance(value, _SIZES):
            made = proxy_tensor.get_proxy_slot(value, self.tracer).force()
            return made.node if isinstance(made, Proxy) else made  # a number, where the trace found but one size
        return value


def _recorded(function: Callable[..., Any], arguments: int = 1) -> Any:
    """The function as a node of the graph that its arguments are in; the last of what it is given may be a dtype."""

    def record(*given: Any) -> Proxy:
        tracer = next(value.tracer for value in given if isinstance(value, Proxy))
        return tracer.create_proxy("call_function", function, given[:arguments], {})

    return staticmethod(record)


class _Arithmetic(PythonReferenceAnalysis):
    """Operations on sizes as nodes. Those below torch would do at once, which a node's proxy does not allow."""

    int_truediv = _recorded(operator.truediv, 2)
    trunc_to_int = _recorded(math.trunc)
    floor_to_int = _recorded(math.floor)
    ceil_to_int = _recorded(math.ceil)
    round_to_int = _recorded(round)


class _Tracer(proxy_tensor._GraphAppendingTracerEx):
    """Puts nodes into a graph, and knows where every size can be read.

    What is not an input's is worked out: nothing is computed for its size only, and no runtime can read a stride.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.symnode_tracker = _ByExpression()

    def learn(self, made: Node) -> None:
        """Keep where the sizes in a node's value come from, should they be asked for."""
        value = made.meta.get("val")
        if isinstance(value, _SIZES):
            self._keep(value, partial(Proxy, made, self))
        elif isinstance(value, torch.Tensor):
            for op, sizes in ((_SIZE, value.shape), (_STRIDE, value.stride())):
                for axis, size in enumerate(sizes):
                    self._keep(size, partial(self.create_proxy, "call_function", op, (Proxy(made, self), axis), {}))

    def _keep(self, size: Any, make: Callable[[], Proxy]) -> None:
        if isinstance(size, _SIZES) and size not in self.symnode_tracker:
            proxy_tensor.set_proxy_slot(size, self, proxy_tensor.thunkify(self, make))

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        """A node; for a size that follows from others, the operations that give it, or a number if it is always one."""
        size = _READ[target](args[0].node.meta["val"], *args[1:]) if target in _READ else None
        if size is None:
            return super().create_proxy(kind, target, args, kwargs, *rest, **named)
        expression, known = size.node.expr, self.sympy_expr_tracker
        last = self.graph._root.prev
        is_input = args[0].node.op == "placeholder" and not expression.is_number
        is_own = target is _SIZE and (is_input or expression.is_Symbol)
        if is_own or not expression.free_symbols <= known.keys():
            result = super().create_proxy(kind, target, args, kwargs)
        else:
            symbols = {symbol: known[symbol].proxy.force() for symbol in expression.free_symbols}
            result = sympy_interp(_Arithmetic, symbols, expression)
        for node in _after(last):
            if "val" not in node.meta and callable(node.target):
                node.meta["val"] = node.target(*torch.fx.map_arg(node.args, lambda given: given.meta["val"]))
        return result


class _ByExpression(proxy_tensor._SymNodeDict):
    """Where sizes can be read, by what they are: torch keeps that by object, and sizes on record are other objects."""

    def __setitem__(self, size: Any, proxy: Any) -> None:
        self.sym_node_dict[size.node.expr] = proxy

    def __getitem__(self, size: Any) -> Any:
        return self.sym_node_dict[size.node.expr]

    def __contains__(self, size: Any) -> bool:
        return size.node.expr in self.sym_node_dict

    def get(self, size: Any, default: Any = None) -> Any:
        return self.sym_node_dict.get(size.node.expr, default)


def _after(last: Node) -> Iterator[Node]:
    """The nodes that have been put behind one."""
    node = last.next
    while node.op != "root":
        yield node
        node = node.next


def _fake_mode(node: Node) -> Any:
    return getattr(node.meta.get("val"), "fake_mode", None)


def _with_graph(program: ExportedProgram, graph: Graph, names: Mapping[str, Any]) -> ExportedProgram:
    """The program around another graph. What the signatures name is called by its new name."""
    graph.eliminate_dead_code(lambda node: node.is_impure(impure_random=False))
    signature = copy.deepcopy(program.graph_signature)
    calls = copy.deepcopy(program.module_call_graph)
    arguments = [spec.arg for spec in signature.output_specs]
    arguments += [argument for call in calls if call.signature is not None for argument in call.signature.outputs]
    for argument in arguments:
        if isinstance(getattr(argument, "name", None), str):
            argument.name = names.get(argument.name, argument.name)
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=torch_program._get_updated_range_constraints(program.graph_module, program.range_constraints),
        module_call_graph=calls,
        example_inputs=program.example_inputs,
        constants=program.constants,
    )
