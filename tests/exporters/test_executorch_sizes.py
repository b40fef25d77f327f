# SPDX-License-Identifier: Apache-2.0
"""The largest values of sizes: of quotients that torch has no bound for, and of what a mask selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Min, PythonMod
from torch.utils._sympy.value_ranges import ValueRanges

from transporters import ExecutorchExporter
from transporters.exporters import executorch_sizes

ROWS, COLUMNS, COUNT = sympy.symbols("rows columns count", integer=True, positive=True)
RANGES = {ROWS: ValueRanges(1, 512), COLUMNS: ValueRanges(1, 1024), COUNT: ValueRanges(1, 8)}


def largest(expr: Any, ranges: dict[Any, Any] = RANGES) -> int | None:
    return executorch_sizes._largest(expr, tuple((s, ranges[s]) for s in sorted(expr.free_symbols, key=str)))


def whole(size: Any, by: int) -> Any:
    """The size, rounded up."""
    return size + PythonMod(-size, by)


@pytest.mark.parametrize(
    ("expr", "most"),
    [
        (FloorDiv(8 * Min(ROWS, 4 * FloorDiv(ROWS, 4)), FloorDiv(Min(ROWS, 4 * FloorDiv(ROWS, 4)), 4)), 32),
        (FloorDiv(whole(ROWS, 32), 4 * FloorDiv(whole(ROWS, 32), 32)), 8),
        (FloorDiv(COUNT * FloorDiv(whole(COLUMNS, 4), 4) * FloorDiv(ROWS, 4), FloorDiv(whole(COLUMNS, 4), 4)), 8 * 128),
        (FloorDiv(4 * ROWS, FloorDiv(ROWS, 2)), 12),
    ],
)
def test_quotients_have_a_largest_value(expr: Any, most: int) -> None:
    """Exactly the one that counting gives; torch has none."""
    assert largest(expr) == most


def test_more_cases_than_can_be_counted_have_a_bound_all_the_same() -> None:
    ranges = {ROWS: ValueRanges(1, 1 << 20), COLUMNS: ValueRanges(1, 1 << 20), COUNT: ValueRanges(1, 8)}
    quotient = FloorDiv(ROWS * COLUMNS, FloorDiv(ROWS, 2) + FloorDiv(COLUMNS, 2))
    assert largest(quotient, ranges) == 1 << 40


def test_without_a_bound_of_a_symbol_there_is_none() -> None:
    assert largest(FloorDiv(ROWS, FloorDiv(ROWS, 2)), {ROWS: ValueRanges(1, sympy.oo)}) is None


class _Selects(torch.nn.Module):
    """What a function of a tensor gives, as a model."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.function(states)


@pytest.mark.model
@pytest.mark.parametrize(
    "select",
    [
        lambda states: (states > 0).nonzero() * 2,
        lambda states: states[states[:, 0] > 0] * 2,
        lambda states: torch.masked_select(states, states > 0) * 2,
    ],
    ids=["nonzero", "rows", "elements"],
)
def test_a_mask_selects_no_more_than_there_is(select: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Also where it selects all of the largest input that memory is planned for, after a sample with few."""
    sample = -torch.ones(3, 4)
    sample[0] = 1
    exported = ExecutorchExporter().export(_Selects(select).eval(), {"states": sample}, {"max_dims": {"batch": 6}})
    for states in (sample, torch.rand(6, 4) + 1, torch.randn(5, 4).sort(0, descending=True).values + 0.5):
        assert torch.equal(exported(states=states), select(states))
