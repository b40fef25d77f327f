# SPDX-License-Identifier: Apache-2.0
"""Guards are read, tried and explained without a trace."""

from __future__ import annotations

import pytest

from transporters.exporters import guards
from transporters.exporters.shapes import Axis, ShapeContract

S = "L['x'].size()[0]"
T = "L['y'].size()[1]"
K = "L['cache']['layers.0.keys'].size()[2]"
LABELS = {"x": ("length",), "y": ("batch", "length"), "cache.layers.0.keys": ("batch", "heads", "past", "head_dim")}
SHAPES = {"x": (10,), "y": (2, 10), "cache.layers.0.keys": (2, 4, 6, 8)}


def contract(*rows):
    return ShapeContract(tuple(Axis(n, i, label, size, d, minimum=1) for n, i, label, size, d in rows))


@pytest.mark.parametrize(
    ("guard", "small_only"),
    [
        (f"{S} != 1", True),
        (f"{S} > 1", True),
        (f"{S} >= 2", True),
        (f"8*{S} != 8", True),
        (f"{S}*{S} != {S}", True),
        (f"(64*max(1, ({S} // 4))) != 64", True),
        (f"{K} != 1", True),
        (f"(1 + (({S} - 1) // 32)) != 1", True),
        (f"((4 - {S} % 4) % 4) > 0", False),
        (f"(4*(({S} + 3) // 4) - {S}) > 0", False),
        (f"{S} != 7", False),
        (f"{S} >= 8", False),
        (f"{S} % 4 == 0", False),
        (f"{S} == {T}", False),
        (f"{S} > 1 and {S} % 2 == 0", False),
        ("L['flag'] == 3", False),
    ],
)
def test_guards_that_forbid_only_zero_and_one(guard, small_only):
    assert guards.forbids_only_small_sizes(guard) is small_only


def test_names_of_nested_inputs():
    assert guards.sizes_in(f"{K} == {S}") == (("cache.layers.0.keys", 2), ("x", 0))
    assert guards.sizes_in("L['flag'] == 3") is None


def test_guards_on_the_tensors_of_a_list():
    """CLIPSegDecoder takes a list of hidden states, and a batch of 1 must not be refused."""
    first, third = "L['states'][0].size()[0]", "L['states'][2].size()[1]"
    assert guards.sizes_in(f"{first} == {third}") == (("states.0", 0), ("states.2", 1))
    assert guards.forbids_only_small_sizes(f"{first} > 1")
    assert guards.violated([f"{first} == {third}"], {"states.0": (2, 7), "states.2": (2, 7)})


def test_violations():
    assert guards.violated([f"{S} % 4 == 0", f"{S} == {T}"], SHAPES) == [f"{S} % 4 == 0"]
    assert guards.violated([f"{S} // ({T} - 10) == 1"], SHAPES) == [f"{S} // ({T} - 10) == 1"]


@pytest.mark.parametrize(("guard", "least"), [(f"{S} >= 8", 8), (f"({S} // 3) >= 2", 6), (f"{S} != 11", 1)])
def test_the_smallest_size(guard, least):
    assert guards.smallest([guard], LABELS, SHAPES, "length") == least


@pytest.mark.parametrize(("guard", "most"), [(f"{S} <= 512", 512), (f"{S} == min(40, {S})", 40), (f"{S} >= 2", None)])
def test_the_largest_size(guard, most):
    assert guards.largest([guard], LABELS, SHAPES, "length", 10) == most


def test_only_what_the_contract_does_not_say_is_a_restriction():
    free = contract(("x", 0, "length", 10, True), ("y", 0, "batch", 2, True), ("y", 1, "length", 10, True))
    held = contract(("x", 0, "length", 10, False), ("y", 1, "length", 10, False))
    assert guards.restrictions([f"{S} == {T}", "L['flag'] == 3"], free, LABELS) == []
    assert guards.restrictions([f"{S} % 4 == 0"], free, LABELS) == ["length % 4 == 0"]
    assert guards.restrictions([f"{S} == 10"], held, LABELS) == []


def test_a_guard_sees_nothing_but_sizes():
    with pytest.raises(NameError):
        guards.holds(f"__import__('os').getcwd() == {S}", {("x", 0): 3})
