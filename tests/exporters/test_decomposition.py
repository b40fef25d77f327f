# SPDX-License-Identifier: Apache-2.0
"""Taking a program apart: the same program as torch's own decomposition gives, without tracing all of it again."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram

from transporters.exporters import decomposition
from transporters.exporters.decomposition import decompose

CORE = torch.export.default_decompositions


class Function(torch.nn.Module):
    """A function as a module, with a linear layer that it may use."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> Any:
        """``x`` is (rows, columns, 8)."""
        return self.function(self, x)


def traced(function: Any, grad: bool = False) -> tuple[Function, ExportedProgram]:
    torch.manual_seed(0)
    module = Function(function).eval()
    shapes = {"x": {0: Dim("rows", min=2), 1: Dim("columns", min=2)}}
    with torch.set_grad_enabled(grad):
        return module, torch.export.export(module, (torch.rand(2, 3, 8),), dynamic_shapes=shapes)


def operations(program: ExportedProgram) -> Counter[str]:
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")


def check(function: Any) -> ExportedProgram:
    """Take a function's program apart, and compare with torch's own decomposition, and with eager at other sizes."""
    module, program = traced(function)
    names = [spec.arg.name for spec in program.graph_signature.output_specs if hasattr(spec.arg, "name")]
    apart = decompose(program, CORE())
    assert not any(decomposition._writes(node) for node in apart.graph.nodes)
    assert [spec.arg.name for spec in program.graph_signature.output_specs if hasattr(spec.arg, "name")] == names
    for rows, columns in ((2, 3), (5, 7)):
        x = torch.rand(rows, columns, 8)
        kept = x.clone()
        torch.testing.assert_close(apart.module()(x.clone()), module(x.clone()))
        torch.testing.assert_close(program.module()(x), module(x))
        torch.testing.assert_close(x, kept)
    return apart


@pytest.fixture
def no_retrace(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own decomposition is for what cannot be done here: a program of `torch.export` must not get there."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the program was traced anew")

    monkeypatch.setattr(decomposition, "_retraced", refuse)


@pytest.fixture
def retraces(monkeypatch: pytest.MonkeyPatch) -> list[ExportedProgram]:
    """The programs that were left to torch."""
    seen: list[ExportedProgram] = []
    inner = decomposition._retraced

    def count(program: ExportedProgram, table: Any) -> ExportedProgram:
        seen.append(program)
        return inner(program, table)

    monkeypatch.setattr(decomposition, "_retraced", count)
    return seen


def layers(self: Function, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(self.linear(self.norm(x)))


def heads(self: Function, x: torch.Tensor) -> torch.Tensor:
    split = x.reshape(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
    attended = torch.nn.functional.scaled_dot_product_attention(split, split, split)
    return attended.transpose(1, 2).reshape(x.shape).contiguous()


def pieces(self: Function, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second = x.chunk(2, dim=-1)
    values, places = torch.topk(first + second, 2, dim=-1)
    return values, places, torch.stack([first, second])


def flat(self: Function, x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.flatten(0, 1).shape[0]).unsqueeze(-1) + x.flatten(0, 1)


def numbers(self: Function, x: torch.Tensor) -> tuple[torch.Tensor, int, None]:
    return x.to(torch.float64), x.shape[1] * 2, None


@pytest.mark.usefixtures("no_retrace")
@pytest.mark.parametrize("function", [layers, heads, pieces, flat, numbers], ids=lambda case: case.__name__)
def test_the_result_is_what_torch_gives(function: Any) -> None:
    assert operations(check(function)) == operations(traced(function)[1].run_decompositions(CORE()))


def nothing(self: Function, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x * 2, training=False)


def added(self: Function, x: torch.Tensor) -> torch.Tensor:
    y = self.linear(x)
    y += x
    y.mul_(2)
    return y


def filled(self: Function, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[x > 0.5] = 0
    return y.masked_fill_(x < 0.1, 1.0)


def written_before_a_view(self: Function, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y.copy_(x)
    return y.reshape(-1, 8)


def through_another_name(self: Function, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch.nn.functional.dropout(y, training=False).add_(1)
    return y


def best(self: Function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = torch.topk(x, 2, dim=-1)
    values /= values.sum(-1, keepdim=True)
    return values, places


def constant(self: Function, x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])


@pytest.mark.usefixtures("no_retrace")
@pytest.mark.parametrize(
    "function",
    [nothing, added, filled, written_before_a_view, through_another_name, best, constant],
    ids=lambda case: case.__name__,
)
def test_what_is_written_to_becomes_a_new_value(function: Any) -> None:
    check(function)


def into_a_slice(self: Function, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:1] += 1
    return y


def under_a_view(self: Function, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    flat = y.view(-1, 8)
    y.add_(1)
    return flat


def beside_a_view(self: Function, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    first, _ = y.chunk(2, dim=-1)
    first.add_(1)
    return y


def under_what_may_be_a_view(self: Function, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    flat = y.reshape(-1, 8)
    y.add_(1)
    return flat


@pytest.mark.parametrize(
    "function",
    [into_a_slice, under_a_view, beside_a_view, under_what_may_be_a_view],
    ids=lambda case: case.__name__,
)
def test_memory_under_two_names_is_left_to_torch(function: Any, retraces: list[ExportedProgram]) -> None:
    check(function)
    assert len(retraces) == 1


def test_a_write_to_an_input_is_left_to_torch(retraces: list[ExportedProgram]) -> None:
    def function(self: Function, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    _, program = traced(function)
    apart = decompose(program, CORE())
    assert len(retraces) == 1
    assert list(apart.graph_signature.user_inputs_to_mutate.values()) == ["x"]


def test_a_region_without_gradients_is_left_to_torch(retraces: list[ExportedProgram]) -> None:
    def function(self: Function, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.linear(x)
        return self.norm(y)

    module, program = traced(function, grad=True)
    apart = decompose(program, CORE())
    assert len(retraces) == 1
    x = torch.rand(5, 7, 8)
    torch.testing.assert_close(apart.module()(x), module(x))


def test_only_what_is_taken_apart_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    inner = decomposition.dispatch_functionalize

    def count(op: Any, mode: Any) -> Any:
        seen.append(str(op))
        return inner(op, mode)

    monkeypatch.setattr(decomposition, "dispatch_functionalize", count)
    _, program = traced(layers)
    table = CORE()
    del table[torch.ops.aten.linear.default]
    apart = decompose(program, table)
    assert seen == ["aten.layer_norm.default"]
    assert operations(apart) == {
        "aten.native_layer_norm.default": 1,
        "<built-in function getitem>": 1,
        "aten.linear.default": 1,
        "aten.gelu.default": 1,
    }


@pytest.mark.usefixtures("no_retrace")
def test_sizes_are_read_off_inputs() -> None:
    def function(self: Function, x: torch.Tensor) -> torch.Tensor:
        longer = torch.cat([self.linear(x), x, x], dim=1)
        return torch.nn.functional.pad(longer, (0, 0, 1, 0)).flatten(0, 1)

    def as_a_stride(self: Function, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) * 2

    for apart in map(check, (as_a_stride, function)):
        assert {node.args[0].op for node in apart.graph.nodes if "sym_size" in str(node.target)} == {"placeholder"}
        assert not {"aten.sym_stride.int", "aten.sym_numel.default"} & set(operations(apart))


@pytest.mark.usefixtures("no_retrace")
@pytest.mark.parametrize(
    "share",
    [
        lambda size: math.ceil(size / 2),
        lambda size: math.floor(size * 0.7),
        lambda size: math.trunc(size * 0.7),
        lambda size: round(size * 0.7),
    ],
    ids=["ceil", "floor", "trunc", "round"],
)
def test_sizes_that_are_rounded(share: Any) -> None:
    def function(self: Function, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x.new_ones(x.shape[0], share(4 * x.shape[1]), 8)], dim=1).flatten(0, 1)

    check(function)


@pytest.mark.usefixtures("no_retrace")
def test_a_size_that_the_trace_has_fixed_is_a_number() -> None:
    def forward(self: Function, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[2]
        return torch.where(torch.arange(8) >= width, 0, self.linear(x)).sum(1) + width

    module = Function(forward).eval()
    shapes = {"x": {0: Dim("rows", min=2), 1: Dim.AUTO, 2: Dim.AUTO}}
    with torch.no_grad():
        program = torch.export.export(module, (torch.rand(2, 3, 8),), dynamic_shapes=shapes)
    apart = decompose(program, CORE())
    assert all(not isinstance(node.meta.get("val"), int) for node in apart.graph.nodes)
    x = torch.rand(5, 7, 8)
    torch.testing.assert_close(apart.module()(x), module(x))


@pytest.mark.usefixtures("no_retrace")
def test_random_numbers_that_nobody_reads_go() -> None:
    def function(self: Function, x: torch.Tensor) -> torch.Tensor:
        torch.rand_like(x)
        return x * 2

    assert operations(decompose(traced(function)[1], CORE())) == {"aten.mul.Tensor": 1}


@pytest.mark.usefixtures("no_retrace")
def test_a_number_out_of_a_tensor() -> None:
    def function(self: Function, x: torch.Tensor) -> torch.Tensor:
        count = (x > 0.5).sum().item()
        torch._check(count >= 0)
        return torch.nn.functional.layer_norm(x, (8,)) + torch.ones(count, 1, 8).sum(0, keepdim=True)

    module, program = traced(function)
    apart = decompose(program, CORE())
    x = torch.rand(5, 7, 8)
    torch.testing.assert_close(apart.module()(x), module(x))


@pytest.mark.usefixtures("no_retrace")
def test_where_an_operation_comes_from_stays_known() -> None:
    apart = decompose(traced(layers)[1], CORE())
    places = {
        str(node.target): list(node.meta["nn_module_stack"].values())[-1][0]
        for node in apart.graph.nodes
        if node.op == "call_function"
    }
    assert places["aten.native_layer_norm.default"].endswith("norm")
    assert all("stack_trace" in node.meta for node in apart.graph.nodes if node.op == "call_function")


@pytest.mark.usefixtures("no_retrace")
def test_nodes_that_share_one_value_on_record_are_told_apart() -> None:
    def function(self: Function, x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        return torch.ops.aten.where.ScalarOther(x > 0.5, doubled, 1.0) + torch.addcmul(doubled, x, doubled + 1)

    module, program = traced(function)
    tensors = [node for node in program.graph.nodes if node.target is torch.ops.aten.mul.Tensor]
    tensors += [node for node in program.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    for node in tensors:
        node.meta["val"] = program.graph.find_nodes(op="placeholder")[-1].meta["val"]
    x = torch.rand(5, 7, 8)
    torch.testing.assert_close(decompose(program, CORE()).module()(x), module(x))
