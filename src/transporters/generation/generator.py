# SPDX-License-Identifier: Apache-2.0
"""What generates with an artifact: a decoder's program, or that and those which run before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UsageError
from .cache_contract import CacheContract
from .cross_loop import CrossGenerator
from .loop import Generator
from .multimodal_loop import PictureGenerator
from .static_loop import InnerCrossGenerator, InnerGenerator

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
    contract = CacheContract.from_dict(exported.cache_contract)
    if contract.context is not None:
        return InnerCrossGenerator(exported) if contract.has_cross else InnerGenerator(exported)
    if contract.pictures is not None:
        return PictureGenerator(exported)
    return CrossGenerator(exported) if contract.has_cross else Generator(exported)
