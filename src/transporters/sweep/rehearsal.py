# SPDX-License-Identifier: Apache-2.0
"""Which modules an export loads on its way: some hundred that no case needs to load again."""

from __future__ import annotations

import functools
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from .cases import Case

#: A small model that every backend exports.
_CLASS = ("BertModel", "bert")


@functools.cache
def loaded_modules(backends: tuple[str, ...]) -> list[str]:
    """Names of all modules that one export to each of these backends adds to `warm`'s, in the order of their loading.

    The exports run in a process of their own: they leave threads behind, and this process is forked from later.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_rehearse, backends).result()


def _rehearse(backends: tuple[str, ...]) -> list[str]:
    from . import warm

    known = set(sys.modules)
    for backend in backends:
        warm.single.run_case(Case(*_CLASS, backend, "dynamic"), lambda step: None)
    return [name for name in sys.modules if name not in known]
