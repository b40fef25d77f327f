# SPDX-License-Identifier: Apache-2.0
"""What generates with an artifact: a decoder's program, or an encoder's and a decoder's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UsageError
from .cache_contract import CacheContract
from .cross_loop import CrossGenerator
from .loop import Generator

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel


def generator(exported: ExportedModel) -> Generator:
    """What generates with an artifact.

    Raises:
        UsageError: The artifact is not a decoder with its cache.
    """
    if exported.cache_contract is None:
        raise UsageError(
            "this program keeps no cache, so it cannot generate",
            advice="make one with `exporter.export_for_generation(model)`",
        )
    has_cross = CacheContract.from_dict(exported.cache_contract).has_cross
    return CrossGenerator(exported) if has_cross else Generator(exported)
