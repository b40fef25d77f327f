# SPDX-License-Identifier: Apache-2.0
"""The page's charts as SVG. Colours come from the style sheet, so that one drawing serves light and dark."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from .markup import Markup, el, join
from .report import OutputCheck, Variation
from .summary import FAILING, allowance, number, output_of, share, worst

_LABEL = 200
_ROW = 28
_PAGE = 1030
_DECADES = (-6, 1)
_TICKS = {-6: "0.0001 %", -4: "0.01 %", -2: "1 %", 0: "limit"}
#: Lower bounds of the shades, as shares of what is allowed.
SHADES = (
    ("h1", "below 0.1 %", 0.0),
    ("h2", "0.1 to 1 %", 1e-3),
    ("h3", "1 to 10 %", 1e-2),
    ("h4", "10 to 100 %", 1e-1),
)


def stage_chart(stages: list[dict[str, Any]]) -> Markup:
    """A bar per stage, as long as its share of the time."""
    if not stages:
        return Markup()
    width, area = 860, 520
    longest = max(stage["seconds"] for stage in stages) or 1.0
    total = sum(stage["seconds"] for stage in stages) or 1.0
    rows = []
    for row, stage in enumerate(stages):
        top = row * _ROW
        length = max(2.0, area * stage["seconds"] / longest)
        text = f"{stage['seconds']:.2f} s · {stage['seconds'] / total:.0%}"
        if stage["status"] == "failed":
            text += " · failed"
        rows.append(_label(stage["name"], top))
        rows.append(_bar(top, length, "bar bad" if stage["status"] == "failed" else "bar"))
        rows.append(_text(text, _LABEL + length + 8, top + 18, "value"))
    return _drawing(width, len(stages) * _ROW, "Time per stage", *rows)


def distance_chart(variations: list[Variation]) -> Markup:
    """A bar per variation on a logarithmic scale: the worst output's difference as a share of what is allowed."""
    width, area, head = 960, 500, 22
    shown = [v for v in variations if v.status != "not applicable"]
    if not shown:
        return Markup()
    height = head + len(shown) * _ROW
    parts = []
    for exponent, text in _TICKS.items():
        at = _LABEL + _place(10.0**exponent, area)
        kind = "grid limit" if exponent == 0 else "grid"
        parts.append(el("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=head - 4, y2=height, class_=kind))
        parts.append(_text(text, at, 12, "tick limit" if exponent == 0 else "tick", anchor="middle"))
    for row, variation in enumerate(shown):
        parts.append(_distance_row(variation, head + row * _ROW, area))
    label = "Worst difference of each set of inputs as a share of what is allowed, logarithmic"
    return _drawing(width, height, label, *parts)


def _distance_row(variation: Variation, top: float, area: float) -> Markup:
    check = worst(variation.outputs)
    failed = variation.status in FAILING
    if check is None:
        length, text = (area if failed else 2.0), variation.status
    else:
        length, text = _distance(check, area)
    kind = "bar bad" if failed else "bar"
    value = _text(text, _LABEL + area + 14, top + 18, "value")
    return join(_label(variation.name, top), _bar(top, length, kind), value)


def _distance(check: OutputCheck, area: float) -> tuple[float, str]:
    if check.verdict == "structure":
        return area, f"{check.name}: not comparable"
    part = share(check)
    if part == 0:
        return 2.0, "equal"
    if check.verdict == "tie":
        return 2.0, f"{check.name}: ties only"
    if part is None:
        return area, f"{check.name}: {number(check.max_abs)}, none allowed"
    length = _place(part, area) if check.passed else max(_place(part, area), _place(1.0, area) + 12)
    return max(2.0, length), f"{number(check.max_abs)} of {number(allowance(check))} allowed"


def _place(part: float, area: float) -> float:
    """Where a share lies on the logarithmic axis."""
    low, high = _DECADES
    exponent = high if math.isinf(part) else math.log10(part) if part > 0 else low
    return area * (min(max(exponent, low), high) - low) / (high - low)


def heat_map(variations: list[Variation]) -> Markup:
    """A cell per output and variation, shaded by its distance from the limit, with the difference as text.

    Where rows were compared one by one, the cell shows the worst of them.
    """
    shown = [(index, v) for index, v in enumerate(variations) if v.status != "not applicable"]
    names = list(dict.fromkeys(output_of(check) for _, v in shown for check in v.outputs))
    row_height, head = 26, 60
    label = min(240, 24 + 7 * max(len(name) for name in names))
    cell = min(92, max(68, (_PAGE - label) // len(shown)))
    parts = [_heading(v.name, label + column * cell, head - 8, cell) for column, (_, v) in enumerate(shown)]
    for row, name in enumerate(names):
        top = head + row * row_height
        parts.append(_label(name, top - 1, at=label - 10, limit=34))
        for column, (index, variation) in enumerate(shown):
            check = worst(c for c in variation.outputs if output_of(c) == name)
            parts.append(_cell(index, variation, name, check, (label + column * cell, top, cell)))
    width, height = label + len(shown) * cell + 4, head + len(names) * row_height + 4
    return _drawing(width, height, "Largest difference per output and set of inputs", *parts)


def _cell(
    index: int, variation: Variation, name: str, check: OutputCheck | None, place: tuple[float, float, float]
) -> Markup:
    x, y, width = place
    shade, text = shading(check) if check is not None else _absent(variation)
    title = f"{check.name if check else name}, {variation.name}: {check.verdict if check else text}"
    return el(
        "g",
        el("title", title),
        el("rect", x=x + 1, y=y + 1, width=width - 2, height=24, rx=3),
        _text(text, x + width / 2, y + 17, "", anchor="middle"),
        class_=f"cell {shade}",
        data_variation=index,
        data_output=name,
    )


def _absent(variation: Variation) -> tuple[str, str]:
    return ("bad", "error") if variation.status == "run error" else ("none", "–")


def shading(check: OutputCheck) -> tuple[str, str]:
    """Style class and text of a check's cell."""
    if check.verdict == "structure":
        return "bad", "structure"
    if not check.passed:
        return "bad", number(check.max_abs)
    if check.verdict == "tie":
        return "tie", "tie"
    part = share(check)
    if not part:
        return "h0", "equal"
    return [shade for shade, _, low in SHADES if part >= low][-1], number(check.max_abs)


def legend() -> Markup:
    """What the heat map's shades mean."""
    entries = [("h0", "equal"), *((shade, text) for shade, text, _ in SHADES), ("tie", "tie"), ("bad", "differs")]
    items = [el("span", el("i", class_=f"swatch {shade}"), text) for shade, text in entries]
    return el("p", el("span", "Share of the allowed difference:"), *items, class_="legend")


def _heading(text: str, x: float, bottom: float, width: float) -> Markup:
    """A column's name, in up to three lines that end at ``bottom``."""
    letters = int(width / 6.4)
    lines = textwrap.wrap(text, letters, max_lines=3, placeholder="…", break_long_words=False) or [""]
    drawn = [
        _text(_short(line, letters + 1), x + width / 2, bottom - 14 * (len(lines) - 1 - i), "head", anchor="middle")
        for i, line in enumerate(lines)
    ]
    return el("g", el("title", text), *drawn)


def _label(text: str, top: float, *, at: float = _LABEL - 12, limit: int = 29) -> Markup:
    return el("g", el("title", text), _text(_short(text, limit), at, top + 18, "label", anchor="end"))


def _short(text: str, limit: int) -> str:
    """Keep both ends of a long name: dotted names differ at their end."""
    if len(text) <= limit:
        return text
    tail = limit // 2
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def _bar(top: float, length: float, kind: str) -> Markup:
    return el("rect", x=_LABEL, y=f"{top + 6:.1f}", width=f"{length:.1f}", height=_ROW - 12, rx=2, class_=kind)


def _text(text: str, x: float, y: float, kind: str, anchor: str | None = None) -> Markup:
    return el("text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=kind or None, text_anchor=anchor)


def _drawing(width: float, height: float, label: str, *parts: str) -> Markup:
    box = f"0 0 {width:.0f} {height:.0f}"
    svg = el(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", width=width, height=height, viewBox=box, role="img",
        aria_label=label,
    )  # fmt: skip
    return el("div", svg, class_="scroll")
