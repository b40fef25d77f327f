# SPDX-License-Identifier: Apache-2.0
"""``transporters stages``: what an exporter does, in order."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import MissingBackendError, UsageError
from .console import sentence, session
from .options import FORMAT_HELP, AsJson, Verbose


def stages(
    export_format: Annotated[str, typer.Argument(metavar="FORMAT", help=FORMAT_HELP)],
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show the stages of the exporter for FORMAT in the order in which they run."""
    with session(as_json=as_json, verbose=verbose) as screen:
        rows = stage_rows(export_format)
        from rich import box
        from rich.table import Table

        table = Table("", "Stage", "What it does", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for position, (name, text) in enumerate(rows, start=1):
            table.add_row(str(position), name, sentence(text))
        payload = {"export_format": export_format, "stages": [{"name": name, "does": text} for name, text in rows]}
        screen.result(payload, table)


def stage_rows(export_format: str) -> list[tuple[str, str]]:
    """Name and one-sentence text of each stage.

    Raises:
        UsageError: When there is no such exporter here.
    """
    from ..exporters.auto import exporter_class

    try:
        rows: list[tuple[str, str]] = exporter_class(export_format).stage_docs()
    except MissingBackendError as error:
        raise UsageError(error.message, backend=error.backend, advice=error.advice) from error
    return [(name, text.replace("``", "`")) for name, text in rows]
