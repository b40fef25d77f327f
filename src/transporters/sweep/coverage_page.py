# SPDX-License-Identifier: Apache-2.0
"""Results of sweeps as one self-contained page, in which every case can be filtered and sorted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..verification.markup import Markup, document, el, embedded_json, join, resource
from .coverage import (
    NOTHING,
    Column,
    Pattern,
    columns,
    costliest,
    dates,
    failures,
    patterns,
    summary_rows,
    unbuilt,
    versions,
)
from .results import STATUSES, Result

_TITLE = "Coverage"
#: Heading of a column of the cases and whether it holds numbers, in the order of a row's data.
_CASE_COLUMNS = (
    ("Class", False),
    ("Architecture", False),
    ("Backend", False),
    ("Shapes", False),
    ("Status", False),
    ("Seconds", True),
    ("Costliest stage", False),
    ("MiB", True),
    ("Fixed axes", False),
    ("Error", False),
)
_FILTERS = (("backend", "Backend", 2), ("shapes", "Shapes", 3), ("status", "Status", 4))


def render(found: Sequence[Result]) -> str:
    """The page as text.

    Args:
        found: Results, one of each case.
    """
    head = [el("p", "transporters · coverage", class_="eyebrow"), el("h1", _TITLE)]
    if not found:
        body = el("body", el("main", el("header", *head), el("section", el("p", NOTHING), id="nothing")))
        return document(_TITLE, _style(), body)
    made = columns(found)
    about = (
        "Every model class of Transformers, tiny and with random weights, exported and compared with eager PyTorch in "
        f"the real runtime. Results of {dates(found)}."
    )
    body = el(
        "body",
        el(
            "main",
            el("header", *head, el("p", about), el("div", *map(_tile, made), class_="tiles")),
            el("section", el("h2", "Backends"), _table(*summary_rows(made), numbers_from=2), id="summary"),
            _pattern_section(
                "failures", "Failures", patterns(failures(found)), "Everything that was built is verified."
            ),
            _pattern_section("unbuilt", "What cannot be built", patterns(unbuilt(found)), "Every class was built."),
            _case_section(found),
            _foot(found),
        ),
        el("script", embedded_json(case_data(found)), type="application/json", id="cases-data"),
        el("script", resource(__package__, "coverage.js")),
    )
    return document(_TITLE, _style(), body)


def case_data(found: Iterable[Result]) -> dict[str, Any]:
    """All cases, small: every text once, and a row of numbers per case.

    A row has an entry per column of the table; where that is a column of texts, the entry is the text's place.
    """
    places: dict[str, int] = {}

    def place(text: str) -> int:
        return places.setdefault(text, len(places))

    rows = []
    for result in found:
        stage, seconds = costliest(result)
        rows.append(
            [
                place(result["class"]),
                place(result["architecture"]),
                place(result["backend"]),
                place(result["shapes"]),
                place(result["status"]),
                round(result["seconds"], 1),
                place(f"{stage} {seconds:.1f}" if stage else ""),
                result.get("peak_mib"),
                place(", ".join(result.get("frozen") or ())),
                place(_told(result)),
            ]
        )
    return {"texts": list(places), "rows": rows, "numbers": [number for _, number in _CASE_COLUMNS]}


def _told(result: Result) -> str:
    """An error in one line: type, stage, line of the model, message."""
    error = result.get("error") or {}
    where = " · ".join(part for part in (error.get("type"), error.get("stage"), error.get("where")) if part)
    return ": ".join(part for part in (where, error.get("message")) if part)


def _style() -> Markup:
    return join(resource("transporters.verification", "report.css"), resource(__package__, "coverage.css"))


def _tile(column: Column) -> Markup:
    told = f"{column.name}: {column.verified:,} of {column.built:,} built classes verified"
    return el("div", el("b", column.share), el("span", told), class_="tile")


def _pattern_section(name: str, title: str, groups: Sequence[Pattern], nothing: str) -> Markup:
    if not groups:
        return el("section", el("h2", title), el("p", nothing), id=name)
    rows = []
    for group in groups:
        classes = el("details", el("summary", f"{len(group.classes):,}"), el("p", ", ".join(group.classes)))
        cells = (
            el("td", f"{len(group.results):,}", class_="number"),
            el("td", el("code", group.kind)),
            el("td", group.stage or "–"),
            el("td", group.message or "–"),
            el("td", ", ".join(group.places)),
            el("td", classes),
        )
        rows.append(el("tr", *cells))
    head = _headings(("Results", "Error", "Stage", "Message", "Where", "Classes"), numbers=(0,))
    note = el("p", "By what is alike in them; … and N stand for names of classes and numbers.", class_="muted note")
    return el("section", el("h2", title), note, _scroll(el("table", head, el("tbody", *rows))), id=name)


def _case_section(found: Sequence[Result]) -> Markup:
    controls = [
        el("label", "Name ", el("input", type="search", id="filter-name", placeholder="architecture, class or error")),
        *(_select(name, label, [row[name] for row in found]) for name, label, _ in _FILTERS),
        el("span", id="matches", class_="muted", aria_live="polite"),
    ]
    headings = [
        el(
            "th",
            el("button", label, type="button", data_column=place),
            scope="col",
            class_="number" if number else None,
            aria_sort="none",
        )
        for place, (label, number) in enumerate(_CASE_COLUMNS)
    ]
    caption = el("caption", "Cases; a heading sorts by its column", class_="muted")
    table = el("table", caption, el("thead", el("tr", *headings)), el("tbody"), id="cases")
    more = el("button", "Show more", type="button", id="more", hidden=True)
    return el(
        "section",
        el("h2", "Cases"),
        el("p", *controls, class_="filter"),
        el("noscript", el("p", "The list of cases needs scripts; coverage.md has the same without them.")),
        _scroll(table),
        more,
        id="all",
    )


def _select(name: str, label: str, values: Iterable[str]) -> Markup:
    present = set(values)
    order = [status for status in STATUSES if status in present] if name == "status" else sorted(present)
    options = [el("option", "all", value=""), *(el("option", value, value=value) for value in order)]
    place = next(place for other, _, place in _FILTERS if other == name)
    return el("label", f"{label} ", el("select", *options, id=f"filter-{name}", data_column=place))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int) -> Markup:
    numbers = tuple(range(numbers_from, len(head)))
    body = [
        el("tr", *(el("td", cell, class_="number" if place in numbers else None) for place, cell in enumerate(row)))
        for row in rows
    ]
    return _scroll(el("table", _headings(head, numbers=numbers), el("tbody", *body)))


def _headings(names: Sequence[str], *, numbers: Sequence[int]) -> Markup:
    cells = (
        el("th", name, scope="col", class_="number" if place in numbers else None) for place, name in enumerate(names)
    )
    return el("thead", el("tr", *cells))


def _scroll(table: Markup) -> Markup:
    return el("div", table, class_="scroll", tabindex="0")


def _foot(found: Sequence[Result]) -> Markup:
    packages = [el("li", f"{name} ", el("b", version)) for name, version in versions(found).items()]
    return el("footer", el("div", el("h2", "Versions"), el("ul", *packages), id="versions") if packages else None)
