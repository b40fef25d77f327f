# SPDX-License-Identifier: Apache-2.0
"""A report as one self-contained page: no request leaves it, and it follows the reader's light or dark scheme."""

from __future__ import annotations

from typing import Any

from .charts import distance_chart, heat_map, legend, stage_chart
from .markup import Markup, document, el, embedded_json, join, resource
from .report import Bisection, Report, Variation
from .summary import (
    allowance,
    axis_name,
    counts,
    distance,
    extent,
    finite,
    headline,
    number,
    output_of,
    plural,
    share,
    size,
    total_seconds,
    trouble,
    why_static,
    worst,
)

_CHECK_COLUMNS = (
    "Inputs", "Output", "Verdict", "Shape", "dtype", "Largest difference", "Relative", "Allowed", "Outside", "Detail",
)  # fmt: skip
_AXIS_COLUMNS = ("Input", "Axis", "Meaning", "Sample", "", "Takes", "Why it is fixed")
#: Columns that hold figures, aligned to the right.
_NUMBERS = frozenset({"Largest difference", "Relative", "Allowed", "Outside", "Axis", "Sample", "Runtime", "Times"})
_DISTANCE_NOTE = (
    "The worst output of each set of inputs: its largest absolute difference from eager as a share of what the "
    "tolerance allows. Each mark of the scale is a factor of 100."
)
_ERROR_NOTE = (
    "Largest absolute difference from eager PyTorch; of rows that were compared one by one, the worst. Choose a cell "
    "to see how it was judged."
)


def render_html(report: Report) -> str:
    """The page as text.

    Args:
        report: The verification to show.
    """
    body = el(
        "body",
        el("main", _head(report), *_sections(report), _foot(report)),
        el("script", embedded_json(finite(_facts(report))), type="application/json", id="facts"),
        el("script", resource(__package__, "report.js")),
    )
    return document(headline(report), resource(__package__, "report.css"), body)


def _facts(report: Report) -> list[dict[str, Any]]:
    """What the script needs when a cell of the heat map is chosen."""
    return [
        {
            "variation": index,
            "name": variation.name,
            "output": check.name,
            "cell": output_of(check),
            "verdict": check.verdict,
            "passed": check.passed,
            "shape": list(check.shape),
            "dtype": check.dtype,
            "difference": number(check.max_abs),
            "relative": number(check.max_rel),
            "allowed": number(allowance(check)),
            "share": share(check),
            "distance": distance(share(check)),
            "tolerances": f"atol {number(check.atol)}, rtol {number(check.rtol)}",
            "outside": f"{check.mismatched:,} of {check.total:,}",
            "detail": check.detail,
        }
        for index, variation in enumerate(report.variations)
        for check in variation.outputs
    ]


def _head(report: Report) -> Markup:
    good, ran = counts(report)
    verdict = "Verified" if report.verified else "Not verified"
    if report.verified:
        sentence = f"Every output equals eager PyTorch at {plural(ran, 'set')} of inputs."
    elif ran:
        sentence = f"{ran - good} of {plural(ran, 'set')} of inputs do not give what eager PyTorch gives."
    else:
        sentence = "No set of inputs was run."
    return el(
        "header",
        el("p", "transporters · verification report", class_="eyebrow"),
        el("h1", report.model, el("span", report.export_format, class_="format")),
        el(
            "p", el("strong", verdict), sentence, class_=f"verdict {'good' if report.verified else 'bad'}", id="verdict"
        ),
        el("div", *_tiles(report), class_="tiles"),
    )


def _tiles(report: Report) -> list[Markup]:
    good, ran = counts(report)
    nearest = worst(check for variation in report.variations for check in variation.outputs)
    part = share(nearest) if nearest is not None else None
    axes = report.shape_contract
    fired = report.run.get("workarounds", {})
    tiles = [
        ("Input sets verified", f"{good} / {ran}"),
        ("Worst output, of the limit", distance(part).replace(" of the limit", "").replace(" the limit", "")),
        ("Dynamic axes", f"{sum(bool(a['dynamic']) for a in axes)} / {len(axes)}" if axes else "–"),
        ("Workarounds fired", str(len(fired))),
        ("Export time", f"{total_seconds(report):.2f} s"),
    ]
    return [el("div", el("b", value), el("span", label), class_="tile") for label, value in tiles]


def _sections(report: Report) -> list[Markup]:
    run = report.run
    parts = [
        _section("distance", "Distance from the limit", distance_chart(report.variations), _DISTANCE_NOTE),
        _section("error", "Error per output and set of inputs", _errors(report), _ERROR_NOTE),
        _section("bisection", "Where the mismatch begins", _bisection(report.bisection)),
        _section("variations", "Sets of inputs", _variations(report.variations)),
        _section("stages", "Stages", stage_chart(run.get("stages", []))),
        _section("workarounds", "Workarounds that fired", _workarounds(run)),
        _section("contract", "Shape contract", _contract(report.shape_contract)),
        _section("findings", "Findings", _findings(run.get("findings", []))),
    ]
    return [part for part in parts if part is not None]


def _section(name: str, title: str, content: Markup, note: str = "") -> Markup | None:
    """A section, or None when it would be empty."""
    if not content:
        return None
    return el("section", el("h2", title), el("p", note, class_="muted note") if note else None, content, id=name)


def _errors(report: Report) -> Markup:
    if not any(variation.outputs for variation in report.variations):
        return Markup()
    panel = el("div", id="panel", aria_live="polite")
    numbers = el("details", el("summary", "All numbers"), _filter(), _checks(report), id="numbers")
    return join(heat_map(report.variations), legend(), panel, numbers)


def _table(columns: tuple[str, ...], rows: list[Markup], **attributes: object) -> Markup:
    headings = (el("th", name, scope="col", class_="number" if name in _NUMBERS else None) for name in columns)
    head = el("thead", el("tr", *headings))
    return el("div", el("table", head, el("tbody", *rows), **attributes), class_="scroll")


def _badge(text: str, kind: str) -> Markup:
    return el("span", text, class_=f"badge {kind}")


def _filter() -> Markup:
    return el(
        "p",
        el("label", "Filter ", el("input", type="search", id="filter", placeholder="output, inputs or verdict")),
        el("span", id="matches", class_="muted"),
        class_="filter",
    )


def _checks(report: Report) -> Markup:
    rows = []
    for variation in report.variations:
        for check in variation.outputs:
            cells = (
                el("td", variation.name),
                el("td", el("code", check.name)),
                el("td", _badge(check.verdict, "good" if check.passed else "bad")),
                el("td", _shape(check.shape)),
                el("td", check.dtype),
                el("td", number(check.max_abs), class_="number"),
                el("td", number(check.max_rel), class_="number"),
                el("td", number(allowance(check)), class_="number"),
                el("td", f"{check.mismatched:,} / {check.total:,}", class_="number"),
                el("td", check.detail),
            )
            rows.append(el("tr", *cells, data_failed=None if check.passed else True))
    return _table(_CHECK_COLUMNS, rows, id="checks")


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(str(length) for length in shape) or "scalar"


def _variations(variations: list[Variation]) -> Markup:
    kinds = {"verified": "good", "mismatch": "bad", "run error": "bad"}
    rows = []
    for variation in variations:
        shapes = [
            el("span", el("code", name), f" {_shape(shape)}", class_="shape")
            for name, shape in variation.shapes.items()
        ]
        cells = (
            el("td", variation.name),
            el("td", _badge(variation.status, kinds.get(variation.status, "plain"))),
            el("td", *shapes),
            el("td", f"{variation.seconds:.3f} s" if variation.seconds else "–", class_="number"),
            el("td", trouble(variation)),
        )
        rows.append(el("tr", *cells))
    return _table(("Inputs", "Verdict", "Shapes", "Runtime", "Detail"), rows) if rows else Markup()


def _bisection(bisection: Bisection | None) -> Markup:
    if bisection is None:
        return Markup()
    steps = []
    for step in bisection.steps:
        detail = " · ".join(part for part in (step.max_abs and number(step.max_abs), step.detail) if part)
        mark = _badge("equal" if step.passed else "deviates", "good" if step.passed else "bad")
        steps.append(el("li", mark, el("b", step.name), el("span", detail, class_="muted")))
    found = [
        el("p", "First deviation: ", el("b", bisection.first_stage)) if bisection.first_stage else None,
        el("p", "First submodule: ", el("code", bisection.first_submodule)) if bisection.first_submodule else None,
    ]
    return join(el("p", f"Inputs: {bisection.variation}", class_="muted"), el("ol", *steps, class_="ladder"), *found)


def _workarounds(run: dict[str, Any]) -> Markup:
    fired = run.get("workarounds", {})
    rows = [
        el("tr", el("td", el("code", name)), el("td", f"{times:,}", class_="number")) for name, times in fired.items()
    ]
    shown = (
        _table(("Workaround", "Times"), rows, class_="compact")
        if rows
        else el("p", "None: the model went through untouched.")
    )
    skipped = run.get("skipped_workarounds", ())
    return join(shown, el("p", f"Switched off by the caller: {', '.join(skipped)}") if skipped else None)


def _contract(axes: list[dict[str, Any]]) -> Markup:
    rows = []
    for position, axis in enumerate(axes):
        first = position == 0 or axes[position - 1]["input"] != axis["input"]
        cells = (
            el("th", el("code", axis["input"]), scope="row", class_=None if first else "again"),
            el("td", str(axis["index"]), class_="number"),
            el("td", axis_name(axis)),
            el("td", str(axis["size"]), class_="number"),
            el("td", _badge("dynamic", "good") if axis["dynamic"] else _badge("static", "warn")),
            el("td", extent(axis), el("code", f" {axis['symbol']}") if axis["symbol"] else None),
            el("td", why_static(axis)),
        )
        rows.append(el("tr", *cells))
    return _table(_AXIS_COLUMNS, rows) if rows else Markup()


def _findings(findings: list[dict[str, Any]]) -> Markup:
    items = []
    for finding in findings:
        mark = _badge(finding["level"], "warn" if finding["level"] == "warning" else "plain")
        place = el("b", f"{finding['where']}: ") if finding["where"] else None
        items.append(el("li", mark, el("span", place, finding["message"])))
    return el("ul", *items, class_="findings") if items else Markup()


def _foot(report: Report) -> Markup:
    packages = [el("li", f"{name} ", el("b", version)) for name, version in report.run.get("versions", {}).items()]
    files = [el("li", el("code", name), f" {size(count)}") for name, count in report.files.items()]
    return el(
        "footer",
        el("div", el("h2", "Versions"), el("ul", *packages), id="versions") if packages else None,
        el("div", el("h2", "Files"), el("ul", *files), id="files") if files else None,
        el("p", f"Made {report.created}") if report.created else None,
    )
