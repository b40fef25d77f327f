# SPDX-License-Identifier: Apache-2.0
"""What a preparer is, and what it does unless it says otherwise: nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch


class Preparer(ABC):
    """Computes further inputs before a program runs, or brings its outputs into eager's structure.

    Attributes:
        name: Goes into the manifest, with `settings`.
    """

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def find(cls, model: torch.nn.Module, inputs: Mapping[str, Any]) -> Self | None:
        """A preparer for these inputs, when they need one."""

    def settings(self) -> dict[str, Any]:
        """What it found out when it was made, JSON-ready."""
        return {}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Inverse of `settings`."""
        return cls()

    def before(self, config: Any, model_class: type, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs with what the model would have computed; what the caller gave himself is kept."""
        return dict(inputs)

    def after(self, config: Any, inputs: Mapping[str, Any], outputs: Any) -> Any:
        """The program's outputs in eager's structure, where that depends on the inputs' values."""
        return outputs
