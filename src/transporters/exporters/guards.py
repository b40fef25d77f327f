# SPDX-License-Identifier: Apache-2.0
"""The conditions on input sizes that a traced program carries, as torch writes them: read, tried out, explained."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from functools import cache
from types import CodeType

import torch

from ..inputs import axes, resizing
from .shapes import ShapeContract

_SIZE = re.compile(r"L((?:\[(?:'[^']+'|\d+)\])+)\.size\(\)\[(\d+)\]")
#: A tensor that was not contiguous when traced is copied, and a copy of a contiguous one is the same.
_COPIED = re.compile(r"^[^=]*max\(1, [^=]* != [^=]*$")
_NOT_ZERO_OR_ONE = (
    re.compile(r"^.+ (!= 1|!= 0|> 1|> 0|>= 2|>= 1)$"),
    re.compile(r"^\((?P<n>\d+)\*max\(1, .+\)\) != (?P=n)$"),  # as a stride of a contiguous tensor writes it
    _COPIED,
)
_DRAWS = 200
_LARGEST = 512
_LARGE = 1024
_UNBOUNDED = 1 << 20

Sizes = dict[tuple[str, int], int]


@cache
def sizes_in(guard: str) -> tuple[tuple[str, int], ...] | None:
    """(leaf, axis) of every size in a guard such as ``4*L['input_ids'].size()[1] != 4``; None for other guards."""
    found = tuple(sorted({(_name(keys), int(axis)) for keys, axis in _SIZE.findall(guard)}))
    return found if found and "[" not in _SIZE.sub("", guard) else None


def holds(guard: str, sizes: Sizes) -> bool:
    """Whether a guard admits the given sizes. The guard is torch's own text, and uses these names."""
    names = {f"s{i}": sizes[size] for i, size in enumerate(sizes_in(guard) or ())}
    known = {"__builtins__": {}, "max": max, "min": min, "math": math, "torch": torch}
    try:
        return bool(eval(_code(guard), {**known, **names}))
    except ZeroDivisionError:  # a size of nothing, which no guard admits
        return False


@cache
def _code(guard: str) -> CodeType:
    order = {size: f"s{i}" for i, size in enumerate(sizes_in(guard) or ())}
    return compile(_SIZE.sub(lambda match: order[_name(match[1]), int(match[2])], guard), "<guard>", "eval")


def forbids_only_small_sizes(guard: str) -> bool:
    """Whether a guard holds for all sizes from 2 up.

    A quantity that must not be 0 or 1 is read off the text, and must indeed not be so for large sizes: what is missing
    to a multiple of 4 is 0 for every fourth size. Anything else is tried: on all sizes from 2 to 9, where most special
    cases lie, and on 200 random ones up to 4096.
    """
    sizes = sizes_in(guard)
    if sizes is None:
        return False
    draw = random.Random(0)
    if " or " not in guard and " and " not in guard and any(form.match(guard) for form in _NOT_ZERO_OR_ONE):
        large = [{size: draw.randint(_LARGE, 8 * _LARGE) for size in sizes} for _ in range(_DRAWS)]
        return _COPIED.match(guard) is not None or all(holds(guard, trial) for trial in large)
    trials = [dict.fromkeys(sizes, n) for n in range(2, 10)]
    trials += [{size: draw.randint(2, 4096) for size in sizes} for _ in range(_DRAWS)]
    return all(holds(guard, trial) for trial in trials)


def violated(guards: list[str], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Guards that refuse inputs of these shapes."""
    found = []
    for guard in guards:
        sizes = sizes_in(guard)
        if sizes is not None and not holds(guard, {(name, axis): shapes[name][axis] for name, axis in sizes}):
            found.append(guard)
    return found


def admits(
    guards: list[str], labels: axes.Labels, shapes: Mapping[str, tuple[int, ...]], label: str, size: int
) -> bool:
    """Whether the guards admit another size of a label, with what follows from it; all else is as in ``shapes``."""
    old = {known: at for name, shape in shapes.items() for known, at in zip(labels[name], shape)}
    wanted = resizing.with_total(old, {label: size})
    at = {n: tuple(wanted.get(k, s) for k, s in zip(labels[n], shape)) for n, shape in shapes.items()}
    return not violated(guards, at)


def smallest(guards: list[str], labels: axes.Labels, shapes: Mapping[str, tuple[int, ...]], label: str) -> int:
    """The smallest size of a label, from 1 (a cache: from 0), that the guards admit, all other axes as in ``shapes``.

    Found by bisection below the traced size: a guard that excludes a size excludes the smaller ones too, in all that
    has been seen.
    """
    start = 0 if label in axes.MAY_BE_EMPTY else 1
    low, high = start, next(s for n, ls in labels.items() for known, s in zip(ls, shapes.get(n, ())) if known == label)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if admits(guards, labels, shapes, label, middle) else (middle + 1, high)
    return low


def largest(
    guards: list[str], labels: axes.Labels, shapes: Mapping[str, tuple[int, ...]], label: str, start: int
) -> int | None:
    """The largest size of a label that the guards admit, up from ``start``; None when 2 ** 20 is admitted still."""
    low, high = start, max(2 * start, 2)
    while admits(guards, labels, shapes, label, high):
        if high >= _UNBOUNDED:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if admits(guards, labels, shapes, label, middle) else (low, middle)
    return low


def restrictions(guards: list[str], contract: ShapeContract, labels: axes.Labels) -> list[str]:
    """Guards that say more than the shape contract and "equal labels have equal sizes" do, in readable words.

    Tried on random sizes within the contract's bounds, one per label; rows of packed images stay as they are, a mask
    over past and new tokens is as long as the two together.
    """
    bounds: dict[str, tuple[int, int]] = {}
    for axis in contract.axes:
        low, high = bounds.get(axis.label, (1, _LARGEST))
        if not axis.dynamic or axis.label in axes.PER_ROW | axes.FIXED:
            low = high = axis.size
        else:
            low, high = max(low, axis.minimum or 1), min(high, axis.maximum or _LARGEST)
        bounds[axis.label] = (low, max(low, high))
    draw = random.Random(0)
    sample = {axis.label: axis.size for axis in contract.axes}
    found = []
    for guard in guards:
        sizes = sizes_in(guard) or ()
        for _ in range(_DRAWS if sizes else 0):
            drawn = {label: draw.randint(*span) for label, span in bounds.items() if label not in axes.DERIVED}
            drawn = {**sample, **resizing.with_total(sample, drawn)}
            if not holds(guard, {(name, axis): drawn[labels[name][axis]] for name, axis in sizes}):
                found.append(_readable(guard, labels))
                break
    return list(dict.fromkeys(found))


def _name(keys: str) -> str:
    """Dotted leaf name of ``['cache']['layers.0.keys']`` or ``['hidden_states'][0]``."""
    return ".".join(key.strip("'") for key in re.findall(r"'[^']+'|\d+(?=\])", keys))


def _readable(guard: str, labels: axes.Labels) -> str:
    text = _SIZE.sub(lambda match: labels[_name(match[1])][int(match[2])], guard)
    return text if len(text) <= 160 else f"{text[:157]}..."
