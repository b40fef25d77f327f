# SPDX-License-Identifier: Apache-2.0
"""What a client is to an export: it adapts the program before it is verified, and writes files when it is saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: What is left to do with a model that a client cannot run in ONNX.
LEAVE_OUT = "leave --for out: ONNX Runtime and `transporters run` take the model"


class Client(ABC):
    """A client. It is an asset of `ExportedModel.save`, after the configuration and the tokenizer."""

    name: ClassVar[str]
    export_format: ClassVar[str]

    @abstractmethod
    def adapt(self, exported: ExportedModel, tokenizer: Any) -> None:
        """Give the program the client's names and place. What it computes stays as it is.

        Args:
            exported: The program; it is changed in place.
            tokenizer: The model's tokenizer, where there is one.

        Raises:
            UsageError: The client cannot run this program; the message says why.
        """

    @abstractmethod
    def save_pretrained(self, folder: Path) -> None:
        """Write the client's files into an artifact's folder, or change those that are there."""


def float_dtype(exported: ExportedModel) -> str:
    """The dtype in which the program gives its first floating-point output."""
    found = (entry["dtype"] for entry in exported.outputs if "float" in entry["dtype"])
    return str(next(found, "float32"))
