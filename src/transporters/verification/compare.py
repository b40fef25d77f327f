# SPDX-License-Identifier: Apache-2.0
"""Comparison of a program's outputs with eager's, and how far apart they may be.

**Tolerance.** Two correct computations of one output differ by rounding. How much depends on the dtype, and on how the
model amplifies an error on its way to the output, which nobody can know beforehand; so it is measured. Per output, with
``m`` the largest finite magnitude in eager's output and ``eps`` the dtype's machine epsilon::

    atol = max(64 * eps, 8 * noise) * m        rtol = 64 * eps

``noise`` is the largest relative difference between two eager runs that compute the same by another route: the rows of
the batch in reverse order, and with oneDNN's kernels switched off, so that sums are taken in another order. It is
measured on the sample, and again on a variation that would fail by the sample's. The factor
64 covers a reordered sum over a few thousand terms, whose error grows with the square root of their number (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2); 8 allows a runtime whose kernels differ more from
eager's than eager's differ among themselves. Noise counts up to 1e-3 and no further, so an
output noisier than that is not waved through; and a reversed batch that moves an output by more is no rounding (packed
rows change places) and does not count at all.

Every element must be within the tolerance. Integer and boolean outputs must be equal, and so must the places of NaN
and of either infinity.
"""

from __future__ import annotations

from typing import Any

import torch

from ..trees import pytrees
from .report import OutputCheck

EPSILONS = 64
NOISE_FACTOR = 8
NOISE_CAP = 1e-3


def compare(actual: Any, expected: Any, noise: dict[str, float] | None = None) -> tuple[OutputCheck, ...]:
    """A check per output of eager; structure first, then values.

    Args:
        actual: The program's outputs, in eager's structure.
        expected: Eager's outputs.
        noise: Output name to eager's own relative noise (`relative_noise`).
    """
    given = dict(_named(actual))
    wanted = dict(_named(expected))
    checks = [_missing(name) if name not in given else _check(name, given[name], wanted[name], noise or {}, wanted)
              for name in wanted]  # fmt: skip
    checks += [
        OutputCheck(name, "structure", detail="eager has no such output") for name in given if name not in wanted
    ]
    return tuple(checks)


def relative_noise(first: Any, second: Any) -> dict[str, float]:
    """Per floating-point output, the largest difference between two runs relative to its largest magnitude."""
    others = dict(_named(second))
    found: dict[str, float] = {}
    for name, value in _named(first):
        other = others.get(name)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and isinstance(other, torch.Tensor):
            finite = value.isfinite() & other.isfinite() if value.shape == other.shape else None
            if finite is not None and finite.any():
                difference = (value.double() - other.double())[finite].abs().max().item()
                found[name] = difference / max(_magnitude(value), torch.finfo(value.dtype).tiny)
    return found


def tolerance(expected: torch.Tensor, noise: float) -> tuple[float, float]:
    """(atol, rtol) for a floating-point output, as the module's docstring derives them."""
    eps = torch.finfo(expected.dtype).eps
    return max(EPSILONS * eps, NOISE_FACTOR * min(noise, NOISE_CAP)) * _magnitude(expected), EPSILONS * eps


def _check(name: str, actual: Any, expected: Any, noise: dict[str, float], wanted: dict[str, Any]) -> OutputCheck:
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        same = type(actual) is type(expected) and actual == expected
        detail = "" if same else f"eager gives {expected!r}, the program {actual!r}"
        return OutputCheck(name, "equal" if same else "structure", (), type(expected).__name__, detail=detail)
    shape, dtype = tuple(expected.shape), str(expected.dtype).removeprefix("torch.")
    if tuple(actual.shape) != shape:
        return OutputCheck(name, "structure", shape, dtype, detail=f"the program's shape is {tuple(actual.shape)}")
    if actual.dtype != expected.dtype:
        given = str(actual.dtype).removeprefix("torch.")
        return OutputCheck(name, "structure", shape, dtype, detail=f"the program's dtype is {given}")
    actual = actual.detach().to(expected.device)
    if expected.is_complex():
        return _floats(name, torch.view_as_real(actual), torch.view_as_real(expected), dtype, noise.get(name, 0.0))
    if expected.is_floating_point():
        return _floats(name, actual, expected, dtype, noise.get(name, 0.0))
    return _integers(name, actual, expected, dtype, noise, wanted)


def _floats(name: str, actual: torch.Tensor, expected: torch.Tensor, dtype: str, noise: float) -> OutputCheck:
    shape, total = tuple(expected.shape), expected.numel()
    for pattern, label in ((torch.isnan, "NaN"), (torch.isposinf, "+inf"), (torch.isneginf, "-inf")):
        differs = int((pattern(actual) != pattern(expected)).sum())
        if differs:
            detail = f"{label} stands at other places ({differs} of {total} elements)"
            return OutputCheck(name, "mismatch", shape, dtype, mismatched=differs, total=total, detail=detail)
    atol, rtol = tolerance(expected, noise)
    finite = expected.isfinite()
    difference = torch.where(finite, (actual.double() - expected.double()).abs(), 0.0)
    allowed = atol + rtol * torch.where(finite, expected.double().abs(), 0.0)
    wrong = int((difference > allowed).sum())
    max_abs = float(difference.max()) if total else 0.0
    magnitude = _magnitude(expected)
    verdict = "mismatch" if wrong else "close" if max_abs else "equal"
    detail = f"{wrong} of {total} elements are outside of the tolerance" if wrong else ""
    max_rel = max_abs / magnitude if magnitude else max_abs
    return OutputCheck(name, verdict, shape, dtype, max_abs, max_rel, wrong, total, atol, rtol, detail)


def _integers(
    name: str, actual: torch.Tensor, expected: torch.Tensor, dtype: str, noise: dict[str, float], wanted: dict[str, Any]
) -> OutputCheck:
    shape, total = tuple(expected.shape), expected.numel()
    differs = actual != expected
    wrong = int(differs.sum())
    if not wrong:
        return OutputCheck(name, "equal", shape, dtype, 0.0, 0.0, 0, total)
    if _all_tied(actual, expected, differs, noise, wanted):
        detail = f"{wrong} indices differ only where eager's own scores tie within the tolerance"
        return OutputCheck(name, "tie", shape, dtype, mismatched=wrong, total=total, detail=detail)
    detail = f"{wrong} of {total} elements differ"
    return OutputCheck(name, "mismatch", shape, dtype, mismatched=wrong, total=total, detail=detail)


def _all_tied(
    actual: torch.Tensor, expected: torch.Tensor, differs: torch.Tensor, noise: dict[str, float], wanted: dict[str, Any]
) -> bool:
    """Whether some score output of eager explains every differing index as a tie.

    A score output has the indices' shape with one more, last axis that the indices point into (argmax), or the same
    shape but for the last axis (topk); the scores at both indices must be within the tolerance of each other.
    """
    if expected.dtype == torch.bool:
        return False
    for name, scores in wanted.items():
        if not isinstance(scores, torch.Tensor) or not scores.is_floating_point() or scores.ndim == 0:
            continue
        if scores.ndim == expected.ndim + 1 and scores.shape[:-1] == expected.shape:
            left, right = actual.unsqueeze(-1).long(), expected.unsqueeze(-1).long()
        elif scores.ndim == expected.ndim and scores.shape[:-1] == expected.shape[:-1]:
            left, right = actual.long(), expected.long()
        else:
            continue
        size = scores.shape[-1]
        if min(left.min(), right.min()) < 0 or max(left.max(), right.max()) >= size:
            continue
        gap = (scores.gather(-1, left) - scores.gather(-1, right)).abs().reshape(expected.shape)
        atol, _ = tolerance(scores, noise.get(name, 0.0))
        if bool((gap[differs] <= atol).all()):
            return True
    return False


def _missing(name: str) -> OutputCheck:
    return OutputCheck(name, "structure", detail="the program has no such output")


def _magnitude(value: torch.Tensor) -> float:
    finite = value[value.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _named(tree: Any) -> list[tuple[str, Any]]:
    return [(name or "output", leaf) for name, leaf in pytrees.named_leaves(tree)]
