# SPDX-License-Identifier: Apache-2.0
"""``transporters workarounds``: what the registry holds."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import sentence, session
from .options import AsJson, Verbose

if TYPE_CHECKING:
    from rich.table import Table

    from ..exporters.registry import Workaround

app = typer.Typer(help="List and explain the registered workarounds.")


@app.command("list", short_help="List the workarounds in the order of application.")
def show_all(
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="NAME", help="Only those in force for this backend.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List the workarounds in the order of application."""
    with session(as_json=as_json, verbose=verbose) as screen:
        from ..exporters.utils import list_workarounds

        found = list_workarounds(backend)
        nothing = "No workaround is registered." if backend is None else f"None for the backend {backend}."
        payload = {"workarounds": [facts(workaround) for workaround in found]}
        screen.result(payload, _table(found) if found else nothing)


@app.command("show", short_help="Explain one workaround.")
def show_one(
    workaround_id: Annotated[str, typer.Argument(metavar="ID", help="Such as onnx:_fix_sort_stable.")],
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Explain one workaround: what it changes, why, and when it is applied."""
    with session(as_json=as_json, verbose=verbose) as screen:
        from ..exporters.utils import find_workaround

        workaround = find_workaround(workaround_id)
        screen.result(facts(workaround), _sheet(workaround))


def facts(workaround: Workaround) -> dict[str, Any]:
    """A workaround as JSON-ready data."""
    return {
        "id": workaround.id,
        "backend": workaround.backend,
        "kind": workaround.kind,
        "targets": targets(workaround),
        "why": workaround.why,
        "issue": workaround.issue,
        "needed": workaround.needed,
        "doc": workaround.doc,
    }


def targets(workaround: Workaround) -> list[str]:
    """What a workaround replaces (dotted paths) or looks at (graph operations)."""
    return [*workaround.paths, *(_op_name(op) for op in workaround.ops)]


def _op_name(op: Any) -> str:
    """``aten.sort.stable`` for an operator of torch, ``math.ceil`` for a Python function."""
    return f"{op.__module__}.{op.__qualname__}" if isinstance(op, BuiltinFunctionType | FunctionType) else str(op)


def _table(found: list[Workaround]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, leading=1)
    table.add_column("Workaround", no_wrap=True)
    table.add_column("Why")
    for workaround in found:
        facts_line = " · ".join(part for part in (workaround.kind, workaround.needed) if part)
        name = Text(workaround.id).append(f"\n  {facts_line}", style="dim")
        table.add_row(name, Text(sentence(workaround.why)))
    return table


def _sheet(workaround: Workaround) -> Table:
    from rich.table import Table
    from rich.text import Text

    sheet = Table(box=None, show_header=False, pad_edge=False)
    sheet.add_column(style="dim", no_wrap=True)
    sheet.add_column(overflow="fold")
    for name, value in {**facts(workaround), "why": sentence(workaround.why)}.items():
        text = "\n".join(value) if isinstance(value, list) else value
        sheet.add_row(name, Text(text or "–"))
    return sheet
