# SPDX-License-Identifier: Apache-2.0
"""What a sweep runs: a class of the zoo, a backend, and whether shapes are dynamic."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import UsageError

#: Whether axes are dynamic or fixed at the sample's size.
SHAPES = ("dynamic", "static")


@dataclass(frozen=True, order=True)
class Case:
    """One export.

    Attributes:
        name: Name of the model class.
        architecture: Its ``model_type``.
        backend: Export format: "torch", "onnx", "executorch" or a third party's.
        shapes: "dynamic" or "static".
    """

    name: str
    architecture: str
    backend: str
    shapes: str

    @property
    def key(self) -> str:
        """What tells the case from every other one of a sweep."""
        return f"{self.name} · {self.backend} · {self.shapes}"

    def to_dict(self) -> dict[str, Any]:
        """The first fields of a result."""
        fields = asdict(self)
        return {"class": fields.pop("name"), **fields}


def select(
    classes: Iterable[tuple[str, str]], backends: Sequence[str], shapes: Sequence[str], only: Sequence[str] = ()
) -> list[Case]:
    """All cases of some classes, in the order of the hash of their names: a sweep's beginning is like its whole.

    Args:
        classes: Name and architecture of each class.
        backends: Export formats.
        shapes: Members of `SHAPES`.
        only: Glob patterns; a class is taken when one fits its name or its architecture. None takes all.

    Raises:
        UsageError: When nothing is left, or ``shapes`` has another word.
    """
    for word in shapes:
        if word not in SHAPES:
            raise UsageError(f"shapes are {' or '.join(SHAPES)}, not {word!r}")
    taken = [
        (name, architecture)
        for name, architecture in classes
        if not only or any(fnmatch.fnmatchcase(text, glob) for glob in only for text in (name, architecture))
    ]
    if not taken:
        raise UsageError(
            f"no model class fits {' or '.join(map(repr, only))}",
            advice="a pattern is held against names of classes ('Llama*') and of architectures ('llama')",
        )
    return [
        Case(name, architecture, backend, shape)
        for name, architecture in sorted(taken, key=lambda pair: _lot(pair[0]))
        for backend in backends
        for shape in shapes
    ]


def draw(classes: Iterable[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """A fixed sample that nobody chose: one class of each of ``count`` architectures, both by the hash of their names.

    Args:
        classes: Name and architecture of each class.
        count: How many; all architectures when there are fewer.
    """
    first: dict[str, str] = {}
    for name, architecture in classes:
        first[architecture] = min(first.get(architecture, name), name, key=_lot)
    return sorted((first[architecture], architecture) for architecture in sorted(first, key=_lot)[:count])


def _lot(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
