# SPDX-License-Identifier: Apache-2.0
"""What results of sweeps add up to, and the Markdown page of it. The other page is `coverage_page`."""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..exporters import auto
from . import results as files
from .cases import SHAPES
from .results import STATUSES, Result

#: How many classes a list of the slowest has, per backend.
SLOWEST = 20
NOTHING = "There are no results yet: `transporters sweep` writes them to the folder `results`, `make docs` these pages."
_VERIFIED, _UNBUILT = STATUSES[0], STATUSES[-1]

#: Words in capitals that are no names of a model's classes.
_NOT_A_CLASS = re.compile(r".*(Error|Exception|Warning|Tensor)|Sym[A-Z].*")
_CAPITALS = re.compile(r"\b[A-Z][A-Za-z0-9_]*[a-z][A-Za-z0-9_]*[A-Z][A-Za-z0-9_]*\b")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Column:
    """All results of one backend with one kind of shapes."""

    backend: str
    shapes: str
    results: tuple[Result, ...]

    @property
    def name(self) -> str:
        """``torch dynamic``."""
        return f"{self.backend} {self.shapes}"

    @property
    def built(self) -> int:
        """Classes whose tiny model could be built."""
        return len(self.results) - self.count(_UNBUILT)

    @property
    def verified(self) -> int:
        """Classes that were verified."""
        return self.count(_VERIFIED)

    @property
    def share(self) -> str:
        """Verified ones as a share of the built ones."""
        return f"{self.verified / self.built:.1%}" if self.built else "–"

    def count(self, status: str) -> int:
        """Classes with this status."""
        return sum(result["status"] == status for result in self.results)


@dataclass(frozen=True)
class Pattern:
    """Failures that are alike: the same error in the same stage, but for numbers and names of classes."""

    kind: str
    stage: str
    message: str
    results: tuple[Result, ...]

    @property
    def classes(self) -> list[str]:
        """Names of the classes, sorted."""
        return sorted({result["class"] for result in self.results})

    @property
    def places(self) -> list[str]:
        """Backends and shapes, with how many results each."""
        return [f"{column.name} {len(column.results)}" for column in columns(self.results)]


def load(folder: Path) -> list[Result]:
    """All results in a folder; none when there is no folder or no file in it."""
    return files.read_all(folder) if folder.is_dir() else []


def columns(found: Iterable[Result]) -> list[Column]:
    """Results by backend and shapes, in the order of the formats, dynamic ones first."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in found:
        groups[result["backend"], result["shapes"]].append(result)
    order = {name: place for place, name in enumerate([*auto.formats(), *SHAPES])}
    ranked = sorted(groups, key=lambda key: [(order.get(word, len(order)), word) for word in key])
    return [Column(*key, tuple(groups[key])) for key in ranked]


def patterns(found: Iterable[Result]) -> list[Pattern]:
    """Results with an error, grouped by what is alike in them, the largest group first."""
    groups: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in found:
        error = result.get("error") or {}
        kind = error.get("type") or result["status"]
        groups[kind, error.get("stage") or "", blanked(error.get("message") or "", result["class"])].append(result)
    made = [Pattern(*key, tuple(group)) for key, group in groups.items()]
    return sorted(made, key=lambda group: (-len(group.results), group.kind, group.stage, group.message))


def blanked(message: str, name: str = "") -> str:
    """A message without what differs between alike failures: numbers, names of classes, names of model files.

    Args:
        message: One line.
        name: Name of the class that failed.
    """
    text = message.replace(name, "…") if name else message
    text = _CAPITALS.sub(lambda word: word[0] if _NOT_A_CLASS.fullmatch(word[0]) else "…", text)
    text = re.sub(r"modeling_\w+\.py", "modeling_….py", text)
    return _NUMBER.sub("N", text)


def failures(found: Iterable[Result]) -> list[Result]:
    """What was built and is not verified."""
    return [result for result in found if result["status"] not in (_VERIFIED, _UNBUILT)]


def unbuilt(found: Iterable[Result]) -> list[Result]:
    """What could not be built."""
    return [result for result in found if result["status"] == _UNBUILT]


def slowest(found: Iterable[Result]) -> dict[str, list[Result]]:
    """The slowest results of each backend, slowest first."""
    by_backend: dict[str, list[Result]] = defaultdict(list)
    for column in columns(found):
        by_backend[column.backend] += column.results
    return {
        backend: sorted(group, key=lambda result: (-result["seconds"], result["class"]))[:SLOWEST]
        for backend, group in by_backend.items()
    }


def costliest(result: Result) -> tuple[str, float]:
    """The stage that took most of a case's time, and its seconds; no name when none ran."""
    stages: dict[str, float] = result.get("stages") or {}
    return max(stages.items(), key=lambda stage: stage[1]) if stages else ("", 0.0)


def versions(found: Iterable[Result]) -> dict[str, str]:
    """Package to version; where results are of several versions, all of them."""
    seen: dict[str, set[str]] = defaultdict(set)
    for result in found:
        for name, version in (result.get("versions") or {}).items():
            seen[name].add(str(version))
    return {name: ", ".join(sorted(seen[name])) for name in sorted(seen)}


def dates(found: Iterable[Result]) -> str:
    """The day of the results, or the first and the last; empty when none says."""
    days = sorted({result["date"][:10] for result in found if result.get("date")})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""


def summary_rows(made: Sequence[Column]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table of backends and shapes."""
    others = STATUSES[1:]
    head = ["Backend", "Shapes", "Classes", "Built", "Verified", "Share of the built", *map(str.capitalize, others)]
    return head, [
        [
            column.backend,
            column.shapes,
            *(f"{count:,}" for count in (len(column.results), column.built, column.verified)),
            column.share,
            *(f"{column.count(status):,}" for status in others),
        ]
        for column in made
    ]


def architecture_rows(found: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table of architectures: verified of tried, per backend and shapes."""
    made = columns(found)
    tally: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    classes: dict[str, set[str]] = defaultdict(set)
    for column in made:
        for result in column.results:
            tally[result["architecture"]][column.name].append(result["status"])
            classes[result["architecture"]].add(result["class"])
    rows = []
    for name in sorted(tally):
        cells = [tally[name][column.name] for column in made]
        shown = [f"{cell.count(_VERIFIED)} / {len(cell)}" if cell else "–" for cell in cells]
        rows.append([name or "(none)", str(len(classes[name])), *shown])
    return ["Architecture", "Classes", *(column.name for column in made)], rows


def markdown(found: Sequence[Result]) -> str:
    """The page as Markdown.

    Args:
        found: Results, one of each case.
    """
    return "\n".join(_markdown(found))


def _markdown(found: Sequence[Result]) -> Iterator[str]:
    yield "# Coverage\n"
    if not found:
        yield f"{NOTHING}\n"
        return
    yield (
        "Every model class of Transformers, tiny and with random weights, exported and compared with eager PyTorch in "
        f"the real runtime. Results of {dates(found)}. The same with filters: [coverage.html](coverage.html), which "
        "any browser opens from a clone.\n"
    )
    yield ", ".join(f"{name} {version}" for name, version in versions(found).items()) + "\n"
    yield from _table(*summary_rows(columns(found)), numbers_from=2)
    yield from _pattern_list("Failures", failures(found), "Everything that was built is verified.")
    yield from _pattern_list("What cannot be built", unbuilt(found), "Every class was built.")
    yield "## The slowest\n"
    for backend, group in slowest(found).items():
        yield f"### {backend}\n"
        rows = []
        for result in group:
            stage, seconds = costliest(result)
            rows.append(
                [
                    result["class"],
                    result["shapes"],
                    f"{result['seconds']:.1f}",
                    f"{stage} {seconds:.1f}" if stage else "–",
                ]
            )
        yield from _table(["Class", "Shapes", "Seconds", "Stage that costs most"], rows, numbers_from=2, numbers_to=3)
    yield "## Architectures\n"
    yield "Verified classes of those that were tried.\n"
    yield from _table(*architecture_rows(found), numbers_from=1)


def _pattern_list(title: str, found: Sequence[Result], nothing: str) -> Iterator[str]:
    yield f"## {title}\n"
    if not found:
        yield f"{nothing}\n"
        return
    yield "By what is alike in them; … and N stand for names of classes and numbers.\n"
    rows = [
        [
            str(len(group.results)),
            group.kind,
            group.stage or "–",
            group.message or "–",
            ", ".join(group.places),
            ", ".join(group.classes),
        ]
        for group in patterns(found)
    ]
    yield from _table(["Results", "Error", "Stage", "Message", "Where", "Classes"], rows, numbers_from=0, numbers_to=1)


def _table(
    head: list[str], rows: list[list[str]], *, numbers_from: int, numbers_to: int | None = None
) -> Iterator[str]:
    last = len(head) if numbers_to is None else numbers_to
    rule = ["---:" if numbers_from <= place < last else "---" for place in range(len(head))]
    lines = [head, rule, *([_escaped(cell) for cell in row] for row in rows)]
    yield "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, in the cell of a table."""
    text = html.escape(" ".join(text.split()), quote=False)
    for character in "|[]`*$\\~":
        text = text.replace(character, f"&#{ord(character)};")
    return text
