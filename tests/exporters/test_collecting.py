# SPDX-License-Identifier: Apache-2.0
"""The collector of garbage is left as it was found, and does not go through what was there before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from transporters.exporters.collecting import settled


@pytest.fixture(autouse=True)
def nothing_set_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_it_is_left_as_it_was() -> None:
    before = gc.get_threshold()
    with settled():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() > before
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


def test_it_is_left_as_it_was_by_a_failure() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), settled():
        raise KeyError
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


def test_what_the_block_makes_is_collected() -> None:
    class Cycle:
        made = 0

        def __init__(self) -> None:
            self.me = self
            Cycle.made += 1

        def __del__(self) -> None:
            Cycle.made -= 1

    with settled():
        Cycle()
        gc.collect()
        assert Cycle.made == 0


def test_what_a_caller_set_aside_stays_so() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with settled():
        pass
    assert count - 100 < gc.get_freeze_count()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with settled():
            assert gc.get_freeze_count() == 0
        assert not gc.isenabled()
    finally:
        gc.enable()
