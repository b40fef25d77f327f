# SPDX-License-Identifier: Apache-2.0
"""``transporters sweep``: the zoo on every backend, each case in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from .console import Screen, session
from .options import FORMAT_HELP, AsJson, Verbose

if TYPE_CHECKING:
    from ..sweep.cases import Case
    from ..sweep.results import Result

#: How many of the slowest cases are shown.
_SLOWEST = 20


@dataclass(frozen=True)
class Order:
    """What the command line asked for."""

    backends: tuple[str, ...]
    shapes: tuple[str, ...]
    only: tuple[str, ...]
    richest: bool
    sample: int | None
    jobs: int
    engine: str
    seconds: float
    memory: int
    out: Path
    resume: bool
    retry: bool


def sweep(
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", metavar="FORMAT", help=f"{FORMAT_HELP} Repeatable; all by default."),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shapes", metavar="SHAPES", help="static or dynamic. Repeatable; dynamic by default."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="GLOB", help="Only classes or architectures that fit. Repeatable."),
    ] = None,
    richest: Annotated[bool, typer.Option("--richest", help="One class per architecture, the richest.")] = False,
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", min=1, help="A fixed sample of N architectures, drawn by hash."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=0, help="Cases at once.")] = 1,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="local, or ray for the Ray cluster that is running.")
    ] = "local",
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Time that a case may take.")] = 300.0,
    memory: Annotated[int, typer.Option("--memory", metavar="MIB", help="Memory that a case may take.")] = 8192,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the files of results, one per backend and shapes.")
    ] = Path("results"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on: leave out what the files have from these versions.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="As --resume, but what did not verify is run again.")] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="OLD NEW", help="Run nothing: list what got better and worse."),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Export and verify the tiny model of every class; a crash, a hang or too much memory is a result."""
    with session(as_json=as_json, verbose=verbose) as screen:
        if compare is not None:
            raise typer.Exit(_compare(*compare, screen))
        from ..exporters.auto import formats

        order = Order(
            backends=tuple(dict.fromkeys(backend or formats())),
            shapes=tuple(dict.fromkeys(shapes or ("dynamic",))),
            only=tuple(only or ()),
            richest=richest,
            sample=sample,
            jobs=jobs,
            engine=engine,
            seconds=timeout,
            memory=memory,
            out=out,
            resume=resume or retry,
            retry=retry,
        )
        raise typer.Exit(_carry_out(order, screen))


def _carry_out(order: Order, screen: Screen) -> int:
    from ..exporters import auto
    from ..sweep import engines, results
    from ..sweep.limits import Limits

    for name in order.backends:
        auto.backend(name)
    engines.check(order.engine)
    with screen.step("Find classes"):
        cases = _cases(order)
    finished = {results.case_of(result).key: result for result in _finished(order, screen)}
    todo = [case for case in cases if case.key not in finished]
    fresh: list[Result] = []
    with ExitStack() as stack:
        files = {
            group: stack.enter_context(results.journal(order.out / f"{'-'.join(group)}.jsonl"))
            for group in sorted({(case.backend, case.shapes) for case in todo})
        }
        show = stack.enter_context(_progress(screen, len(todo)))
        for result in engines.run(order.engine, todo, Limits(order.seconds, order.memory), order.jobs):
            files[result["backend"], result["shapes"]].add(result)
            fresh.append(result)
            show(result)
    wanted = {case.key for case in cases}
    found = [*(result for key, result in finished.items() if key in wanted), *fresh]
    _tell(found, len(fresh), screen)
    return 0 if all(result["status"] == "verified" for result in found) else 1


def _cases(order: Order) -> list[Case]:
    from .. import zoo
    from ..exporters.known_faults import EXPORT_SKIPS
    from ..sweep import cases

    pairs = [(entry.name, entry.model_type) for entry in zoo.classes() if entry.name not in EXPORT_SKIPS]
    if order.richest:
        from ..zoo.richest import richest_classes

        taken = set(richest_classes())
        pairs = [pair for pair in pairs if pair[0] in taken]
    if order.sample is not None:
        pairs = cases.draw(pairs, order.sample)
    return cases.select(pairs, order.backends, order.shapes, order.only)


def _finished(order: Order, screen: Screen) -> list[Result]:
    """What need not be run again.

    Raises:
        UsageError: When a file of results is there, and nobody said that it is to be gone on with.
    """
    from ..sweep import results

    found: list[Result] = []
    for name in (f"{backend}-{shapes}.jsonl" for backend in order.backends for shapes in order.shapes):
        path = order.out / name
        if not path.exists():
            continue
        if not order.resume:
            raise UsageError(
                f"{path} is there already", advice="go on with it by --resume, or write somewhere else with --out"
            )
        here = results.read(path)
        current = [result for result in here if results.is_current(result)]
        if len(current) < len(here):
            screen.say(f"  ! {len(here) - len(current)} results in {path} are of other versions", "yellow")
        found += current
    return [result for result in found if not order.retry or result["status"] in ("verified", "cannot build")]


@contextmanager
def _progress(screen: Screen, total: int) -> Iterator[Any]:
    """A bar with counts and the time left on a terminal, else a line per case."""
    from ..sweep import results

    seen: list[Result] = []
    start = time.monotonic()
    with screen.bar("Sweep", total) as advance:

        def show(result: Result) -> None:
            seen.append(result)
            counted = ", ".join(f"{count} {status}" for status, count in results.counts(seen).items())
            left = (time.monotonic() - start) / len(seen) * (total - len(seen))
            line = f"{len(seen)}/{total} {result['class']} · {result['backend']} · {result['status']}"
            advance(counted, f"{line} ({result['seconds']:.0f} s; {left / 60:.0f} min left)")

        yield show


def _tell(found: list[Result], ran: int, screen: Screen) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ..sweep import results
    from ..sweep.coverage import costliest

    counted = results.counts(found)
    table = Table(title=f"{len(found)} cases, {ran} of them run now")
    for column in ("backend", "shapes", *counted, "share of the built"):
        table.add_column(column, justify="left" if column in ("backend", "shapes") else "right")
    for group in sorted({(result["backend"], result["shapes"]) for result in found}):
        rows = [result for result in found if (result["backend"], result["shapes"]) == group]
        here = results.counts(rows)
        built = len(rows) - here.get("cannot build", 0)
        share = f"{here.get('verified', 0) / built:.2%}" if built else "–"
        table.add_row(*group, *(str(here.get(status, 0)) for status in counted), share)
    slow = Table(title="Slowest")
    for column in ("class", "backend", "seconds", "stage that costs most"):
        slow.add_column(column)
    for result in sorted(found, key=lambda entry: -entry["seconds"])[:_SLOWEST]:
        stage, seconds = costliest(result)
        told = f"{stage} ({seconds:.1f} s)" if stage else ""
        slow.add_row(result["class"], result["backend"], f"{result['seconds']:.1f}", told)
    screen.result({"counts": counted, "ran": ran, "results": found}, Group(table, slow, Text("")))


def _compare(old: Path, new: Path, screen: Screen) -> int:
    from dataclasses import asdict

    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ..sweep import comparing, results

    found = comparing.compare(results.read_all(old), results.read_all(new))
    parts: list[Any] = []
    for kind in ("worse", "better", "other"):
        changes = getattr(found, kind)
        if not changes:
            continue
        table = Table(title=f"{kind} ({len(changes)})")
        for column in ("class", "backend", "shapes", "old", "new", "message"):
            table.add_column(column)
        for change in changes:
            case = change.case
            table.add_row(case.name, case.backend, case.shapes, change.old, change.new, Text(change.message))
        parts.append(table)
    apart = f"{len(found.gone)} are in {old} only, {len(found.added)} in {new} only"
    parts.append(Text(f"{found.same} cases have the same status; {apart}."))
    screen.result(asdict(found), Group(*parts))
    return 1 if found.worse else 0
