# SPDX-License-Identifier: Apache-2.0
"""ExecuTorch's runner of language models (``executorch.extension.llm.runner``): ``model.pte`` and ``tokenizer.json``.

The program has the runner's inputs and answers what it asks for already
(`transporters.generation.static_decoder`). What is left is the tokenizer, which the runner reads from one file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UsageError
from .base import Client, float_dtype

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: Any tokenizer of the library 🤗 Tokenizers.
_TOKENIZER = "tokenizer.json"

#: Dtypes of logits that the runner samples from.
_DTYPES = frozenset({"float32", "float16", "bfloat16"})


class ExecutorchLlm(Client):
    """ExecuTorch's ``TextLLMRunner``."""

    name: ClassVar[str] = "executorch"
    export_format: ClassVar[str] = "executorch"

    def adapt(self, exported: ExportedModel, tokenizer: Any) -> None:
        """Check that the runner can run the program, and that there will be a tokenizer for it.

        Raises:
            UsageError: The program is no decoder with its cache inside, or has an encoder before it, or the tokenizer
                is of another kind.
        """
        if "context" not in (exported.cache_contract or {}):
            raise UsageError(
                f"{self.name}'s runner takes decoders with their cache inside of the program, and this is none",
                advice="leave --for out: `transporters run` takes the program",
            )
        if exported.parts:
            raise UsageError(
                f"{self.name}'s runner runs decoders alone, and this one has its encoder beside it",
                advice="leave --for out: `transporters run` takes the program",
            )
        if float_dtype(exported) not in _DTYPES:
            raise UsageError(f"{self.name}'s runner does not sample from {float_dtype(exported)}")
        if not getattr(tokenizer, "is_fast", False):
            raise UsageError(
                f"{self.name}'s runner wants a {_TOKENIZER}, which "
                f"{'a model without a tokenizer' if tokenizer is None else type(tokenizer).__name__} does not give",
                advice="put one beside the model, or leave --for out",
            )

    def save_pretrained(self, folder: Path) -> None:
        """Write nothing: program and tokenizer stand where the runner takes them.

        Raises:
            UsageError: There is no ``tokenizer.json``.
        """
        if not (folder / _TOKENIZER).is_file():
            raise UsageError(f"the tokenizer wrote no {_TOKENIZER}", advice="leave --for out")
