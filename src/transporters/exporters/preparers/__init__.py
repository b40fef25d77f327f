# SPDX-License-Identifier: Apache-2.0
"""Inputs that a model would compute from data, computed before the trace.

A loop over the values of an input cannot be in a graph. Where the model takes the loop's result as an argument of its
own, a preparer computes it from the other inputs: before the trace, and again whenever the program runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...errors import ArtifactError
from .base import Preparer
from .image_sizes import ImageSizes
from .listed_images import ListedImages
from .padded_images import PaddedImages
from .tiles import Tiles
from .vision_grid import VisionGrid

__all__ = ["PREPARERS", "Preparer", "describe", "from_description", "preparers_for"]

PREPARERS: tuple[type[Preparer], ...] = (VisionGrid, PaddedImages, ImageSizes, Tiles, ListedImages)


def preparers_for(model: torch.nn.Module, inputs: Mapping[str, Any]) -> tuple[Preparer, ...]:
    """The preparers that these inputs need, in order."""
    return tuple(found for kind in PREPARERS if (found := kind.find(model, inputs)) is not None)


def describe(preparers: Iterable[Preparer]) -> list[dict[str, Any]]:
    """Preparers as a manifest keeps them."""
    return [{"name": preparer.name, **preparer.settings()} for preparer in preparers]


def from_description(entries: Iterable[Any]) -> tuple[Preparer, ...]:
    """Inverse of `describe`.

    Raises:
        ArtifactError: When an entry is none of this package's.
    """
    kinds = {kind.name: kind for kind in PREPARERS}
    try:
        return tuple(kinds[entry["name"]].from_settings(entry) for entry in entries)
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            "the manifest names a preparer that this package does not have", advice="export the model again"
        ) from error
