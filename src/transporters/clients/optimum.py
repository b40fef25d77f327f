# SPDX-License-Identifier: Apache-2.0
"""🤗 Optimum's ``ORTModelFor…`` (PyPI ``optimum-onnx``): the layout of ``optimum-cli export onnx``.

``model.onnx`` stands beside ``config.json`` and the tokenizer, or in ``onnx/``, where another client wants it; both are
found. The client makes an empty cache from the configuration: heads and sizes must be what that says, in every layer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UsageError
from .base import Client, float_dtype

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: Model types whose cache the client shapes in ways of their own.
_ODD_CACHES = frozenset({"bloom", "falcon", "gpt_bigcode"})

#: The classes of any tokenizer.json: of Transformers from version 5 on, and of the older one that the client stands on.
_ANY_TOKENIZER, _OLD_NAME = "TokenizersBackend", "PreTrainedTokenizerFast"


class Optimum(Client):
    """Optimum on ONNX Runtime."""

    name: ClassVar[str] = "optimum"
    export_format: ClassVar[str] = "onnx"

    def __init__(self) -> None:
        self._inputs: list[str] = []

    def adapt(self, exported: ExportedModel, tokenizer: Any) -> None:
        """Check that the client can run the program, whose names are the client's already.

        Raises:
            UsageError: It cannot; the message says why.
        """
        if exported.parts:
            raise UsageError(
                f"{self.name} expects other graphs of a model with {', '.join(exported.parts)}",
                advice="leave --for out: ONNX Runtime and `transporters run` take the programs",
            )
        if float_dtype(exported) == "bfloat16":
            raise UsageError(f"{self.name} cannot read bfloat16", advice="export with --dtype float32 or float16")
        if exported.cache_contract is not None:
            self._check_cache(exported.cache_contract, exported.model_config)
        self._inputs = [name for name in exported.sample_inputs if name in getattr(tokenizer, "model_input_names", ())]

    def _check_cache(self, contract: dict[str, Any], config: Any) -> None:
        if config.model_type in _ODD_CACHES:
            raise UsageError(
                f"{self.name} gives the cache of a {config.model_type} another shape",
                advice="leave --for out: ONNX Runtime and `transporters run` take the program",
            )
        all_heads = getattr(config, "num_attention_heads", 0)
        heads = getattr(config, "num_key_value_heads", None) or all_heads
        size = getattr(config, "head_dim", None) or (all_heads and config.hidden_size // all_heads)
        kept = [tensor for layer in contract["layers"] for tensor in layer["tensors"]]
        names = [f"past_key_values.{n}.{part}" for n in range(config.num_hidden_layers) for part in ("key", "value")]
        shapes = {tuple(tensor["shape"][1::2]) for tensor in kept}
        if [tensor["input"] for tensor in kept] != names or shapes != {(heads, size)}:
            raise UsageError(
                f"{self.name} wants keys and values of one size in every layer, and no other state",
                advice="leave --for out: ONNX Runtime and `transporters run` take the program",
            )

    def save_pretrained(self, folder: Path) -> None:
        """Call the tokenizer's class by its older name, and say which of its outputs the program takes."""
        path = folder / "tokenizer_config.json"
        if not path.is_file():
            return
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("tokenizer_class") == _ANY_TOKENIZER:
            config["tokenizer_class"] = _OLD_NAME
        config["model_input_names"] = self._inputs
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
