# SPDX-License-Identifier: Apache-2.0
"""The few numbers and sentences that the table and the page share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from .report import OutputCheck, Report, Variation

#: Statuses of a variation in which the artifact has spoken.
FAILING = ("mismatch", "run error")

_ROW = re.compile(r" \[row \d+\]$")


def allowance(check: OutputCheck) -> float:
    """The largest absolute difference that the tolerances allow at the output's largest magnitude."""
    if check.max_abs and check.max_rel and math.isfinite(check.max_abs) and math.isfinite(check.max_rel):
        return check.atol + check.rtol * check.max_abs / check.max_rel
    return check.atol


def share(check: OutputCheck) -> float | None:
    """Largest difference as a share of what is allowed: 0 is equal, 1 is the limit.

    None when there is no such number: nothing could be compared, or the output allows no difference at all.
    """
    if check.max_abs is None or math.isnan(check.max_abs):
        return None
    if check.max_abs == 0:
        return 0.0
    limit = allowance(check)
    return check.max_abs / limit if limit > 0 else None


def output_of(check: OutputCheck) -> str:
    """The output that a check is about: its name without the row, where rows were compared one by one."""
    return _ROW.sub("", check.name)


def worst(checks: Iterable[OutputCheck]) -> OutputCheck | None:
    """The output to look at first: one that fails, else the one nearest to its limit."""
    ranked = sorted(checks, key=lambda check: (check.passed, -(share(check) or 0.0)))
    return ranked[0] if ranked else None


def number(value: float | None) -> str:
    """A difference in three figures; "0" when equal, "–" when there is none."""
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:.2e}"


def counts(report: Report) -> tuple[int, int]:
    """Variations that are verified, and variations that ran."""
    ran = [v for v in report.variations if v.status != "not applicable"]
    return sum(v.status == "verified" for v in ran), len(ran)


def headline(report: Report) -> str:
    """The verdict in one sentence."""
    good, ran = counts(report)
    if report.verified:
        return f"{report.model} → {report.export_format}: verified, equal to eager at {plural(ran, 'set')} of inputs"
    if not ran:
        return f"{report.model} → {report.export_format}: not verified, no set of inputs ran"
    return f"{report.model} → {report.export_format}: NOT verified, {ran - good} of {plural(ran, 'set')} of inputs fail"


def distance(part: float | None) -> str:
    """A share of what is allowed in words: "equal", "3.3 % of the limit", "5,200 × the limit"."""
    if part is None:
        return "–"
    if part == 0:
        return "equal"
    if part < 1:
        return f"{part * 100:.2g} % of the limit"
    return f"{part:,.0f} × the limit" if part >= 10 else f"{part:.1f} × the limit"


def plural(count: int, noun: str) -> str:
    """``3 stages``, ``1 stage``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def trouble(variation: Variation) -> str:
    """Why a variation is not verified, in one sentence; empty when it is."""
    if variation.detail:
        return variation.detail
    check = worst(variation.outputs)
    return f"{check.name}: {check.detail or check.verdict}" if check is not None and not check.passed else ""


def extent(axis: dict[str, Any]) -> str:
    """The sizes that an axis takes: ``1 … 512``, ``≥ 1``, ``= 64``."""
    if not axis["dynamic"]:
        return f"= {axis['size']}"
    low = axis["minimum"] if axis["minimum"] is not None else 0
    return f"{low} … {axis['maximum']}" if axis["maximum"] is not None else f"≥ {low}"


def axis_name(axis: dict[str, Any]) -> str:
    """An axis's label, or its number when it has none."""
    return str(axis["label"] or f"axis {axis['index']}")


def why_static(axis: dict[str, Any]) -> str:
    """What fixes a static axis; empty for a dynamic one."""
    if axis["dynamic"]:
        return ""
    parts = [axis["cause"], axis["reason"]]
    text = ": ".join(part for part in parts if part)
    return f"{text} ({axis['source']})" if axis["source"] else text


def total_seconds(report: Report) -> float:
    """Wall time of all stages together."""
    return float(sum(stage["seconds"] for stage in report.run.get("stages", ())))


def size(count: int) -> str:
    """A file size that a person reads."""
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.2f} GB"


def finite(data: Any) -> Any:
    """The same data with None for every number that JSON has no word for (NaN and the infinities)."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
