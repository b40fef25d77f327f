# SPDX-License-Identifier: Apache-2.0
"""``transporters workarounds``: what the registry holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import session
from .options import AsJson, Verbose

if TYPE_CHECKING:
    from rich.table import Table

    from ..exporters.registry import Workaround

app = typer.Typer(help="List and explain the registered workarounds.")


@app.command("list")
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


@app.command("show")
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
    return [*workaround.paths, *(str(op) for op in workaround.ops)]


def _table(found: list[Workaround]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Id", no_wrap=True)
    table.add_column("Kind", no_wrap=True)
    table.add_column("Needed", no_wrap=True)
    table.add_column("Why")
    for workaround in found:
        table.add_row(*(Text(cell) for cell in (workaround.id, workaround.kind, workaround.needed, workaround.why)))
    return table


def _sheet(workaround: Workaround) -> Table:
    from rich.table import Table
    from rich.text import Text

    sheet = Table(box=None, show_header=False, pad_edge=False)
    sheet.add_column(style="dim", no_wrap=True)
    sheet.add_column(overflow="fold")
    for name, value in facts(workaround).items():
        text = "\n".join(value) if isinstance(value, list) else value
        sheet.add_row(name, Text(text or "–"))
    return sheet
