# SPDX-License-Identifier: Apache-2.0
"""Two sweeps side by side: what got better, what got worse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .cases import Case
from .results import STATUSES, Result, case_of


@dataclass(frozen=True)
class Change:
    """A case whose status differs. ``old`` or ``new`` is empty where a sweep does not have the case."""

    case: Case
    old: str
    new: str
    message: str = ""


@dataclass(frozen=True)
class Comparison:
    """Changes between two sweeps.

    Attributes:
        better: Cases that verify now.
        worse: Cases that verified before.
        other: Cases that fail in another way.
        added: Cases of the new sweep only.
        gone: Cases of the old sweep only.
        same: Number of cases with the same status.
    """

    better: tuple[Change, ...]
    worse: tuple[Change, ...]
    other: tuple[Change, ...]
    added: tuple[Change, ...]
    gone: tuple[Change, ...]
    same: int


def compare(old: Iterable[Result], new: Iterable[Result]) -> Comparison:
    """Compare results case by case."""
    before = {case_of(result): result for result in old}
    after = {case_of(result): result for result in new}
    found: dict[str, list[Change]] = {name: [] for name in ("better", "worse", "other", "added", "gone")}
    same = 0
    for case in sorted({*before, *after}):
        was, now = (side.get(case, {}).get("status", "") for side in (before, after))
        if was == now:
            same += 1
            continue
        message = (after.get(case, {}).get("error") or {}).get("message", "")
        found[_kind(was, now)].append(Change(case, was, now, message))
    return Comparison(**{name: tuple(changes) for name, changes in found.items()}, same=same)


def _kind(was: str, now: str) -> str:
    if not was or not now:
        return "gone" if was else "added"
    best = STATUSES[0]
    return "better" if now == best else "worse" if was == best else "other"
