# SPDX-License-Identifier: Apache-2.0
"""The comparison finds every kind of difference, and nothing where there is none."""

from __future__ import annotations

import pytest
import torch

from transporters.verification.compare import NOISE_CAP, compare, relative_noise, tolerance


def check(actual, expected, noise=None):
    (only,) = compare({"y": actual}, {"y": expected}, noise)
    return only


X = torch.linspace(-3, 5, 24).reshape(2, 3, 4)


def test_equal_and_close():
    assert check(X, X).verdict == "equal"
    nearly = check(X + 1e-6, X)
    assert nearly.verdict == "close"
    assert nearly.max_abs == pytest.approx(1e-6, rel=0.5)
    assert nearly.max_rel == pytest.approx(1e-6 / 5, rel=0.5)


def test_one_element_outside_is_a_mismatch():
    wrong = X.clone()
    wrong[1, 2, 3] += 1e-2
    found = check(wrong, X)
    assert (found.verdict, found.mismatched, found.total) == ("mismatch", 1, 24)
    assert not found.passed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_must_stand_at_the_same_places(value):
    with_value = X.clone()
    with_value[0, 0, 0] = value
    moved = X.clone()
    moved[0, 0, 1] = value
    assert check(with_value, with_value).verdict == "equal"
    assert check(X, with_value).verdict == "mismatch"
    assert check(with_value, X).verdict == "mismatch"
    assert check(moved, with_value).verdict == "mismatch"


def test_opposite_infinities_differ():
    assert check(torch.tensor([float("inf")]), torch.tensor([float("-inf")])).verdict == "mismatch"


def test_everything_nan_is_not_waved_through_against_numbers():
    assert check(torch.full_like(X, float("nan")), X).verdict == "mismatch"


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (X[:1], r"shape is \(1, 3, 4\)"),
        (X.unsqueeze(0), "shape is"),
        (X.double(), "dtype is float64"),
        (X.half(), "dtype is float16"),
    ],
)
def test_structure_comes_first(actual, words):
    import re

    found = check(actual, X)
    assert found.verdict == "structure"
    assert re.search(words, found.detail)


def test_missing_and_surplus_outputs():
    verdicts = {c.name: c.verdict for c in compare({"a": X, "extra": X}, {"a": X, "b": X})}
    assert verdicts == {"a": "equal", "b": "structure", "extra": "structure"}


def test_integers_and_booleans_must_be_equal():
    numbers = torch.arange(6)
    assert check(numbers, numbers).verdict == "equal"
    assert check(numbers + 1, numbers).verdict == "mismatch"
    flags = numbers > 2
    assert check(~flags, flags).verdict == "mismatch"
    assert check(7, 7).verdict == "equal"
    assert check(8, 7).verdict == "structure"


def test_a_tie_in_argmax_is_recognised_and_nothing_else():
    scores = torch.tensor([[1.0, 5.0, 5.0 + 1e-6], [4.0, 2.0, 1.0]])
    expected = {"logits": scores, "label": torch.tensor([2, 0])}

    def verdict(label):
        found = compare({"logits": scores, "label": torch.tensor(label)}, expected)
        return {c.name: c.verdict for c in found}["label"]

    assert verdict([2, 0]) == "equal"
    assert verdict([1, 0]) == "tie"
    assert verdict([0, 0]) == "mismatch"
    assert verdict([1, 1]) == "mismatch"
    assert verdict([9, 0]) == "mismatch"


def test_a_tie_in_topk():
    scores = torch.tensor([[3.0, 3.0, 1.0]])
    expected = {"scores": scores, "indices": torch.tensor([[0, 1]])}
    found = compare({"scores": scores, "indices": torch.tensor([[1, 0]])}, expected)
    assert {c.name: c.verdict for c in found}["indices"] == "tie"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tolerance_follows_the_dtype_and_the_magnitude(dtype):
    eps = torch.finfo(dtype).eps
    value = torch.tensor([0.0, 10.0], dtype=dtype)
    atol, rtol = tolerance(value, 0.0)
    assert atol == pytest.approx(64 * eps * 10)
    assert rtol == pytest.approx(64 * eps)


def test_noise_widens_the_tolerance_up_to_a_cap():
    value = torch.tensor([1.0])
    assert tolerance(value, 1e-4)[0] == pytest.approx(8e-4)
    assert tolerance(value, 1.0)[0] == pytest.approx(8 * NOISE_CAP)


def test_relative_noise_is_measured_per_output():
    one = {"a": torch.tensor([2.0, 4.0]), "n": torch.tensor([1])}
    other = {"a": torch.tensor([2.0, 4.4]), "n": torch.tensor([2])}
    assert relative_noise(one, other) == {"a": pytest.approx(0.1, rel=1e-3)}


def test_complex_outputs_are_compared():
    z = torch.complex(X, X)
    assert check(z, z).verdict == "equal"
    assert check(z * 1.01, z).verdict == "mismatch"


def test_empty_outputs_are_equal():
    assert check(torch.empty(0, 3), torch.empty(0, 3)).verdict == "equal"
