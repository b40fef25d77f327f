# SPDX-License-Identifier: Apache-2.0
"""Python's collector of garbage, for the length of an export."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Objects after which the youngest are looked through, and how often that happens before older ones are.
_THRESHOLDS = (20_000, 10, 20)


@contextmanager
def settled() -> Iterator[None]:
    """Spare the collector what is alive already, while the block runs: it collects what the block makes, and only that.

    Imported packages and a model are a million objects that stay, and graphs are so many objects that the collector
    goes through all there are again and again. Where a caller has set objects aside, or has switched the collector
    off, nothing is done: the end of the block would undo that.
    """
    if gc.get_freeze_count() or not gc.isenabled():
        yield
        return
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
