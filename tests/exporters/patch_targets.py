# SPDX-License-Identifier: Apache-2.0
"""Things for the tests of the registry to patch: one of every kind that a dotted path can name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transporters.exporters import registry
from transporters.exporters.run import ExportRun


def plain(value: int) -> int:
    return value


def untouched(value: int) -> int:
    return value


class Base:
    limit = 3

    def method(self, value: int) -> int:
        return value

    @staticmethod
    def fixed(value: int) -> int:
        return value

    @classmethod
    def of_class(cls, value: int) -> tuple[type, int]:
        return cls, value

    @property
    def size(self) -> int:
        return 1


class Child(Base):
    """Everything is inherited."""


class Other(Base):
    def method(self, value: int) -> int:
        return value + 1


#: A second name for a class; a pattern that matches both names means one class.
Alias = Other


def marked(name: str = "_patch_for_a_test", mark: str = "patched") -> Callable[[Any], Any]:
    """A factory whose replacement gives its mark with what the original gives."""

    def factory(original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return mark, original(*args, **kwargs)

        return replacement

    factory.__name__ = name
    return factory


#: Ids of the patches that `registered` has put into the registry.
_REGISTERED: list[str] = []


@contextmanager
def registered(backend: str, *paths: str, factory: Any = None, **facts: Any) -> Iterator[str]:
    """A patch that is registered for the length of a block; gives its id."""
    function = factory or marked()
    registry.register_patch(backend, *paths, **facts)(function)
    workaround_id = f"{backend}:{function.__name__}"
    _REGISTERED.append(workaround_id)
    try:
        yield workaround_id
    finally:
        _REGISTERED.remove(workaround_id)
        registry.unregister(workaround_id)


def standing(owner: Any, name: str) -> Any:
    """What stands in the owner itself, and not in something that it inherits from."""
    return vars(owner).get(name, "absent")


def counts(export: ExportRun) -> dict[str, int]:
    """How often each of the tests' patches fired; some of the project's own fire in every block, by standing there."""
    ours = {workaround.id for workaround in registry.list_workarounds("dynamo", "patch")} - set(_REGISTERED)
    return {name: count for name, count in export.fired.items() if name not in ours}
