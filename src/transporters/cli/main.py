# SPDX-License-Identifier: Apache-2.0
"""The ``transporters`` command. Imports nothing heavy: torch is loaded by the command that needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ..errors import UsageError
from . import check, export, run, stages, sweep, verify, workarounds
from .console import session

#: Typer's "the command line cannot be parsed", of which it exports only this child.
_PARSE_ERROR: type[BaseException] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="transporters",
    help="Export Transformers models to other runtimes, and prove each export against eager PyTorch.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("check", short_help="Try an export on a tiny model of an architecture.")(check.check)
app.command("export", short_help="Export a model, verify it, and save it.")(export.export)
app.command("verify", short_help="Compare a saved artifact with eager.")(verify.verify)
app.command("run", short_help="Run a saved artifact on text.")(run.run)
app.command("stages", short_help="Show an exporter's stages in order.")(stages.stages)
app.command("sweep", short_help="Export and verify every architecture.")(sweep.sweep)
app.add_typer(workarounds.app, name="workarounds")


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    typer.echo(f"transporters {metadata.version('transporters')}")
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the command's name."""


def dispatch(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0 all verified, 1 failed, 2 wrong use."""
    try:
        outcome = app(args=[*arguments] or ["--help"], prog_name="transporters", standalone_mode=False)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return 130
    except _PARSE_ERROR as error:
        return _wrong_use(error, arguments)
    return outcome if isinstance(outcome, int) else 0


def _wrong_use(error: BaseException, arguments: Sequence[str]) -> int:
    """Show a command line that cannot be parsed the way every other error is shown."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "transporters"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    try:
        with session(as_json="--json" in arguments):
            raise UsageError(message, advice=f"see `{command} --help`")
    except typer.Exit as stop:
        return stop.exit_code


def main() -> None:
    """Entry point of the ``transporters`` script."""
    sys.exit(dispatch(sys.argv[1:]))


if __name__ == "__main__":
    main()
