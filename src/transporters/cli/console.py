# SPDX-License-Identifier: Apache-2.0
"""What a command shows: a live line per step, one result, one message per error."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import typer

from ..errors import TransportersError
from .quiet import Streams, captured

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

#: Columns when the output is a file or a pipe and the environment does not say.
PLAIN_WIDTH = 120
_REDO_WITH_VERBOSE = "run the command again with --verbose to see the traceback and the libraries' own output"


class Screen:
    """Progress on standard error, one result on standard output.

    Args:
        streams: Where to write.
        as_json: The result is one JSON document.
        verbose: Errors come with their traceback.
    """

    def __init__(self, streams: Streams, *, as_json: bool = False, verbose: bool = False) -> None:
        self.streams = streams
        self.as_json = as_json
        self.verbose = verbose
        self._out = console(streams.out)
        self._err = console(streams.err)
        self._live: Progress | None = None
        self._steps = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show a live line while the block runs, and its time afterwards."""
        start = time.perf_counter()
        self._begin(name)
        try:
            yield
        except BaseException:
            self._end(name, time.perf_counter() - start, "failed")
            raise
        self._end(name, time.perf_counter() - start, "done")

    def observe(self, record: Any) -> None:
        """Show a stage (anything with ``name``, ``status`` and ``seconds``) when it starts and when it ends."""
        if record.status == "running":
            self._begin(record.name)
        else:
            self._end(record.name, record.seconds, record.status)

    def checking(self, variation: Any) -> None:
        """Show on the live line which set of inputs was compared last."""
        if self._live is not None:
            self._live.update(
                self._live.task_ids[0], description=f"Verify: {_plain(variation.name)} {variation.status}"
            )

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Callable[[str, str], None]]:
        """Progress over many steps: a bar with counts and the time left on a terminal, else a line per step.

        Yields:
            What to call after each step, with a short text for beside the bar and a line for where there is none.
        """
        self._stop()
        if not self._err.is_terminal:
            yield lambda _, line: self.say(line)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[counts]}"), console=self._err) as live:
            task = live.add_task(_plain(name), total=total, counts="")
            yield lambda counts, _: live.update(task, advance=1, counts=_plain(counts))

    def say(self, text: str, style: str = "") -> None:
        """Write a line for people, on standard error."""
        from rich.text import Text

        self._err.print(Text(text, style=style), soft_wrap=True)

    def result(self, payload: dict[str, Any], view: RenderableType) -> None:
        """Write the command's result: ``payload`` with ``--json``, else ``view``."""
        if not self.as_json:
            if self._steps and self._err.is_terminal:
                self._err.print()  # sets the result off from the steps above it
            self._out.print(view)
            return
        from ..verification.summary import finite

        self.streams.out.write(json.dumps(finite(payload), indent=2, ensure_ascii=False, default=str) + "\n")
        self.streams.out.flush()

    def fail(self, error: BaseException) -> None:
        """Write one message for an error, after what the libraries said before it."""
        self._stop()
        if exit_code(error) == 1 and (noise := self.streams.noise()):
            self.say("── the libraries' own output before the error ──", "dim")
            self.say(noise, "dim")
        if self.verbose:
            self.say("".join(traceback.format_exception(error)).rstrip(), "dim")
        if self.as_json:
            self.result(error_payload(error), "")
        message, advice = error_text(error)
        self.say(f"✗ {message}", "bold red")
        if advice:
            self.say(f"  → {advice}")

    def _begin(self, name: str) -> None:
        self._stop()
        if not self._err.is_terminal:
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._live = Progress(*columns, console=self._err, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._live.add_task(_plain(name), total=None)
        self._live.start()

    def _end(self, name: str, seconds: float, status: str) -> None:
        from rich.text import Text

        self._stop()
        self._steps += 1
        good = status != "failed"
        line = Text().append("  ✓ " if good else "  ✗ ", style="green" if good else "red")
        line.append(f"{name:<34}").append(f"{seconds:8.2f} s", style="dim")
        self._err.print(line, soft_wrap=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


@contextmanager
def session(*, as_json: bool = False, verbose: bool = False) -> Iterator[Screen]:
    """The frame of every command: quiet libraries, one message for an error, the exit code that goes with it."""
    with captured(passthrough=verbose) as streams:
        screen = Screen(streams, as_json=as_json, verbose=verbose)
        try:
            yield screen
        except typer.Exit:
            raise
        except BrokenPipeError as error:
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            screen.fail(error)
            raise typer.Exit(130) from error
        except Exception as error:
            screen.fail(error)
            raise typer.Exit(exit_code(error)) from error


def _plain(text: str) -> str:
    """Text that rich's progress columns show as it is."""
    return text.replace("[", "\\[")


def console(stream: TextIO) -> Console:
    """A rich console on a stream, wide enough for tables when no terminal says its width."""
    from rich.console import Console

    wide = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(file=stream, width=wide, highlight=False, markup=False, emoji=False)


def sentence(text: str) -> str:
    """A remark as a sentence: with a capital and a full stop. An empty one stays empty."""
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def exit_code(error: BaseException) -> int:
    """1 for a failed export or verification, 2 for wrong use, 130 for an interrupt."""
    if isinstance(error, TransportersError):
        return error.exit_code
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def error_text(error: BaseException) -> tuple[str, str]:
    """The message and the advice that a person gets for an error."""
    if isinstance(error, TransportersError):
        stage = f"stage {error.stage}" if error.stage else None
        where = " · ".join(part for part in (error.backend, stage, error.workaround) if part)
        return f"{where}: {error.message}" if where else error.message, error.advice or ""
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted.", ""
    if isinstance(error, OSError) and error.strerror:
        place = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{place}", "check that the path exists and may be written, and that the disk has room"
    return f"Unexpected {type(error).__name__}: {error}", _REDO_WITH_VERBOSE


def error_payload(error: BaseException) -> dict[str, Any]:
    """The JSON document of an error."""
    message, advice = error_text(error)
    facts: dict[str, Any] = {"type": type(error).__name__, "message": message, "advice": advice or None}
    if isinstance(error, TransportersError):
        facts["message"] = error.message
        facts.update(backend=error.backend, stage=error.stage, workaround=error.workaround)
    return {"status": "error", "exit_code": exit_code(error), "error": facts}
