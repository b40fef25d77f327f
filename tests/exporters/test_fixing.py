# SPDX-License-Identifier: Apache-2.0
"""Fixes: which nodes they see, when they count, and what their errors say."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from transporters.errors import RegistryError
from transporters.exporters import registry
from transporters.exporters.patching import fix_nodes, fix_program
from transporters.exporters.run import ExportRun

BACKEND = "a_backend_for_tests"


@contextmanager
def fixing(function: Callable[..., Any], **facts: Any) -> Iterator[str]:
    """A node fix that is registered for the length of a block."""
    registry.register_fx_node_fix(BACKEND, **facts)(function)
    try:
        yield f"{BACKEND}:{function.__name__}"
    finally:
        registry.unregister(f"{BACKEND}:{function.__name__}")


def traced() -> GraphModule:
    """``(x + 1) * 2 + 1``"""
    return torch.fx.symbolic_trace(lambda x: (x + 1) * 2 + 1)


def _fix_addition(graph_module: GraphModule, node: Node) -> bool:
    """Subtract instead."""
    node.target = operator.sub
    return True


def test_a_fix_sees_the_nodes_of_its_ops_and_counts_each_change() -> None:
    graph_module, run = traced(), ExportRun(BACKEND)
    with fixing(_fix_addition, ops=(operator.add,)) as workaround_id:
        assert fix_nodes(BACKEND, graph_module, run)
    assert run.fired == {workaround_id: 2}
    assert graph_module(torch.tensor(5)).item() == (5 - 1) * 2 - 1, "the module runs the changed graph"


def test_a_fix_without_ops_sees_every_node() -> None:
    seen: list[str] = []

    def _fix_nothing(graph_module: GraphModule, node: Node) -> bool:
        seen.append(node.op)
        return False

    run = ExportRun(BACKEND)
    with fixing(_fix_nothing):
        assert not fix_nodes(BACKEND, traced(), run)
    assert seen == ["placeholder", "call_function", "call_function", "call_function", "output"]
    assert run.fired == {}


def test_fixes_run_in_the_order_of_registration_and_leave_erased_nodes_alone() -> None:
    order: list[str] = []

    def _fix_first(graph_module: GraphModule, node: Node) -> bool:
        order.append("first")
        node.replace_all_uses_with(node.args[0])
        graph_module.graph.erase_node(node)
        return True

    def _fix_second(graph_module: GraphModule, node: Node) -> bool:
        order.append("second")
        return False

    graph_module = traced()
    with fixing(_fix_first, ops=(operator.mul,)), fixing(_fix_second, ops=(operator.mul, operator.add)):
        fix_nodes(BACKEND, graph_module, ExportRun(BACKEND))
    assert order == ["second", "first", "second"]
    assert graph_module(torch.tensor(5)).item() == 5 + 1 + 1


def test_a_fix_reaches_subgraphs() -> None:
    inner, outer = traced(), torch.nn.Module()
    outer.inner = inner
    graph = torch.fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    run = ExportRun(BACKEND)
    with fixing(_fix_addition, ops=(operator.add,)) as workaround_id:
        assert fix_nodes(BACKEND, GraphModule(outer, graph), run)
    assert run.fired == {workaround_id: 2}
    assert inner(torch.tensor(5)).item() == 7


def test_a_fix_that_is_switched_off_or_not_needed_does_not_run() -> None:
    with fixing(_fix_addition, ops=(operator.add,)) as workaround_id:
        assert not fix_nodes(BACKEND, traced(), ExportRun(BACKEND), (workaround_id,))
        assert not fix_nodes("another_backend", traced(), ExportRun("another_backend"))
    with fixing(_fix_addition, ops=(operator.add,), needed="torch<2"):
        assert not fix_nodes(BACKEND, traced(), ExportRun(BACKEND))


def test_an_invalid_graph_does_not_pass() -> None:
    def _fix_badly(graph_module: GraphModule, node: Node) -> bool:
        node.args = (torch.fx.Graph().placeholder("stranger"), 1)
        return True

    with fixing(_fix_badly, ops=(operator.add,)), pytest.raises(RuntimeError, match="stranger"):
        fix_nodes(BACKEND, traced(), ExportRun(BACKEND))


def test_an_error_in_a_fix_names_the_fix_and_the_node() -> None:
    def _fix_broken(graph_module: GraphModule, node: Node) -> bool:
        raise ZeroDivisionError("on purpose")

    message = "failed on node mul: ZeroDivisionError: on purpose"
    with (
        fixing(_fix_broken, ops=(operator.mul,)) as workaround_id,
        pytest.raises(RegistryError, match=message) as caught,
    ):
        fix_nodes(BACKEND, traced(), ExportRun(BACKEND))
    assert caught.value.workaround == workaround_id
    assert f'skip_workarounds=["{workaround_id}"]' in str(caught.value)


def test_program_fixes_run_in_order_and_count_when_they_change_something() -> None:
    program, order = object(), []

    def _fix_one(found: Any) -> bool:
        order.append(("one", found))
        return True

    def _fix_two(found: Any) -> bool:
        order.append(("two", found))
        return False

    run = ExportRun(BACKEND)
    for fix in (_fix_one, _fix_two):
        registry.register_fx_program_fix(BACKEND)(fix)
    try:
        assert fix_program(BACKEND, program, run)
        assert not fix_program(BACKEND, program, run, (f"{BACKEND}:_fix_one",))
    finally:
        for fix in (_fix_one, _fix_two):
            registry.unregister(f"{BACKEND}:{fix.__name__}")
    assert order == [("one", program), ("two", program), ("two", program)]
    assert run.fired == {f"{BACKEND}:_fix_one": 1}
