# SPDX-License-Identifier: Apache-2.0
"""A report as a terminal shows it."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .report import Bisection, Report, Variation
from .summary import (
    FAILING,
    allowance,
    axis_name,
    extent,
    headline,
    number,
    total_seconds,
    trouble,
    why_static,
    worst,
)

_STYLES = {"verified": "green", "mismatch": "bold red", "run error": "bold red", "not applicable": "dim"}
_MARKS = {"verified": "✓", "mismatch": "✗", "run error": "✗", "not applicable": "·"}


def report_table(report: Report) -> RenderableType:
    """A rich renderable: the verdict, a row per variation, and what was done to the model.

    Args:
        report: The verification to show.
    """
    parts: list[RenderableType] = [_verdict(report), Padding(_variations(report), (1, 0))]
    parts += _troubles(report)
    if report.bisection is not None:
        parts.append(_section("Where the mismatch begins", _bisection(report.bisection)))
    if report.shape_contract:
        parts.append(_section("Shape contract", _contract(report.shape_contract)))
    parts += _run(report.run, total_seconds(report))
    return Group(*parts)


def _verdict(report: Report) -> Text:
    mark, style = ("✓", "bold green") if report.verified else ("✗", "bold red")
    return Text(f"{mark} {headline(report)}", style=style)


def _variations(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Inputs", min_width=12)
    table.add_column("Verdict", no_wrap=True)
    table.add_column("Outputs", justify="right", min_width=7)
    table.add_column("Worst output", overflow="fold", min_width=12)
    table.add_column("Difference", justify="right", min_width=10)
    table.add_column("Allowed", justify="right", min_width=8)
    for variation in report.variations:
        table.add_row(*_variation_row(variation))
    return table


def _variation_row(variation: Variation) -> tuple[Text, ...]:
    style = _STYLES.get(variation.status, "")
    verdict = Text(f"{_MARKS.get(variation.status, '·')} {variation.status}", style=style)
    check = worst(variation.outputs)
    if check is None:
        return Text(variation.name), verdict, Text("–"), Text("–"), Text("–"), Text("–")
    good = sum(output.passed for output in variation.outputs)
    limit = number(allowance(check)) if check.verdict != "structure" else "–"
    return (
        Text(variation.name),
        verdict,
        Text(f"{good}/{len(variation.outputs)}"),
        Text(check.name),
        Text(number(check.max_abs), style="" if check.passed else "red"),
        Text(limit, style="dim"),
    )


def _troubles(report: Report) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for variation in report.variations:
        if variation.status in FAILING and (why := trouble(variation)):
            lines.append(Text(f"✗ {variation.name}: {why}", style="red"))
    alike: dict[str, list[str]] = {}
    for variation in report.variations:
        if variation.status == "not applicable" and variation.detail:
            alike.setdefault(variation.detail, []).append(variation.name)
    for detail, names in alike.items():
        verb = "does" if len(names) == 1 else "do"
        lines.append(Text(f"· {'; '.join(names)} {verb} not apply: {detail}", style="dim"))
    return [*lines, Text()] if lines else []


def _bisection(bisection: Bisection) -> list[Text]:
    lines = []
    for step in bisection.steps:
        mark, style = ("✓", "green") if step.passed else ("✗", "bold red")
        line = Text().append(f"{mark} ", style=style).append(step.name)
        if step.max_abs is not None:
            line.append(f"  {number(step.max_abs)}", style="dim")
        lines.append(line.append(f"  {step.detail}" if step.detail else "", style="dim"))
    if bisection.first_stage:
        lines.append(Text(f"First deviation: {bisection.first_stage}", style="bold red"))
    if bisection.first_submodule:
        lines.append(Text(f"First submodule: {bisection.first_submodule}", style="bold red"))
    return lines


def _contract(rows: list[dict[str, Any]]) -> list[Text]:
    lines = []
    for name, axes in groupby(rows, key=lambda row: str(row["input"])):
        line = Text(f"{name}  ")
        for position, axis in enumerate(axes):
            line.append(" × " if position else "", style="dim")
            line.append(f"{axis_name(axis)} {extent(axis)}", style="green" if axis["dynamic"] else "yellow")
            if why := why_static(axis):
                line.append(f" [{why}]", style="dim")
        lines.append(line)
    return lines


def _run(run: dict[str, Any], seconds: float) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if stages := run.get("stages"):
        line = Text()
        for stage in stages:
            line.append(f"{stage['name']} ").append(f"{stage['seconds']:.2f} s", style="dim").append(" → ", style="dim")
        parts.append(_section("Stages", [line.append(f"{seconds:.2f} s", style="bold")]))
    if fired := run.get("workarounds"):
        parts.append(_section("Workarounds that fired", [Text(f"{name}  × {times}") for name, times in fired.items()]))
    if skipped := run.get("skipped_workarounds"):
        parts.append(_section("Workarounds switched off", [Text(name, style="yellow") for name in skipped]))
    if findings := run.get("findings"):
        parts.append(_section("Findings", [_finding(finding) for finding in findings]))
    return parts


def _finding(finding: dict[str, Any]) -> Text:
    warns = finding["level"] == "warning"
    line = Text().append("! " if warns else "· ", style="yellow" if warns else "dim")
    return line.append(f"{finding['where']}: " if finding["where"] else "").append(finding["message"])


def _section(title: str, lines: list[Text]) -> RenderableType:
    body = Padding(Group(*lines), (0, 0, 0, 2), expand=False)
    return Padding(Group(Text(title, style="bold"), body), (0, 0, 1, 0), expand=False)
