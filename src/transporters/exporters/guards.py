# SPDX-License-Identifier: Apache-2.0
"""The conditions on input sizes that a traced program carries, as torch writes them: read, tried out, explained."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from ..inputs import axes

_SIZE = re.compile(r"L\['([^']+)'\]\.size\(\)\[(\d+)\]")
_NOT_ZERO_OR_ONE = (
    re.compile(r"^.+ (!= 1|!= 0|> 1|> 0|>= 2|>= 1)$"),
    re.compile(r"^\((?P<n>\d+)\*max\(1, .+\)\) != (?P=n)$"),  # as a stride of a contiguous tensor writes it
)
_DRAWS = 200

Sizes = dict[tuple[str, int], int]


def sizes_in(guard: str) -> list[tuple[str, int]] | None:
    """(input, axis) of every size in a guard such as ``4*L['input_ids'].size()[1] != 4``; None for other guards."""
    found = sorted({(name, int(axis)) for name, axis in _SIZE.findall(guard)})
    return found if found and "[" not in _SIZE.sub("", guard) else None


def holds(guard: str, sizes: Sizes) -> bool:
    """Whether a guard admits the given sizes. The guard is torch's own text, and sees only numbers, max and min."""
    expression = _SIZE.sub(lambda match: str(sizes[match[1], int(match[2])]), guard)
    return bool(eval(expression, {"__builtins__": {}, "max": max, "min": min}))


def forbids_only_small_sizes(guard: str) -> bool:
    """Whether a guard holds for all sizes from 2 up.

    A quantity that must not be 0 or 1 is read off the text. Anything else is tried: on all sizes from 2 to 9, where
    most special cases lie, and on 200 random ones up to 4096.
    """
    sizes = sizes_in(guard)
    if sizes is None:
        return False
    if " or " not in guard and " and " not in guard and any(form.match(guard) for form in _NOT_ZERO_OR_ONE):
        return True
    draw = random.Random(0)
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


def restrictions(guards: list[str], labels: axes.Labels, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Guards that are more than "equal labels have equal sizes", in readable words.

    Tried on random sizes per label between 2 and 300; fixed labels keep their size, and rows of packed images stay in
    proportion to the batch.
    """
    draw = random.Random(0)
    found = []
    for guard in guards:
        sizes = sizes_in(guard)
        if sizes is None:
            continue
        for _ in range(_DRAWS):
            drawn: dict[str, int] = {}
            trial: Sizes = {}
            for name, axis in sizes:
                label = labels[name][axis]
                fixed = label in axes.FIXED or label in axes.PER_ROW
                drawn.setdefault(label, shapes[name][axis] if fixed else draw.randint(2, 300))
                trial[name, axis] = drawn[label]
            if not holds(guard, trial):
                found.append(_readable(guard, labels))
                break
    return list(dict.fromkeys(found))


def _readable(guard: str, labels: axes.Labels) -> str:
    text = _SIZE.sub(lambda match: labels[match[1]][int(match[2])], guard)
    return text if len(text) <= 160 else f"{text[:157]}..."
