# SPDX-License-Identifier: Apache-2.0
"""🤗 Optimum's ``ORTModelFor…`` (PyPI ``optimum-onnx``): the layout of ``optimum-cli export onnx``.

``model.onnx``, or ``encoder_model.onnx`` with ``decoder_model_merged.onnx``, stands beside ``config.json`` and the
tokenizer, or in ``onnx/``, where another client wants it; both are found. The client makes an empty cache from the
configuration: heads and sizes must be what that says, in every layer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UsageError
from .base import LEAVE_OUT, Client, float_dtype

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: Model types whose cache the client shapes in ways of their own.
_ODD_CACHES = frozenset({"bloom", "falcon", "gpt_bigcode"})

#: What it gives to an encoder and to the decoder behind it, besides the cache.
_TO_ENCODER = frozenset({"input_ids", "input_features", "attention_mask"})
_TO_DECODER = frozenset({"input_ids", "attention_mask", "encoder_hidden_states", "encoder_attention_mask"})

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
        if set(exported.parts) - {"encoder"}:
            raise UsageError(
                f"{self.name} expects other graphs of a model with {', '.join(exported.parts)}", advice=LEAVE_OUT
            )
        if float_dtype(exported) == "bfloat16":
            raise UsageError(f"{self.name} cannot read bfloat16", advice="export with --dtype float32 or float16")
        if exported.cache_contract is not None:
            self._check_cache(exported.cache_contract, exported.model_config)
            self._check_inputs(exported)
        self._inputs = [name for name in exported.sample_inputs if name in getattr(tokenizer, "model_input_names", ())]

    def _check_cache(self, contract: dict[str, Any], config: Any) -> None:
        if config.model_type in _ODD_CACHES:
            raise UsageError(f"{self.name} gives the cache of a {config.model_type} another shape", advice=LEAVE_OUT)
        heads = all_heads = getattr(config, "num_attention_heads", 0)
        size = all_heads and config.hidden_size // all_heads
        if not config.is_encoder_decoder:  # with an encoder it asks for no more than that
            heads = getattr(config, "num_key_value_heads", None) or heads
            size = getattr(config, "head_dim", None) or size
        kept = [tensor["input"] for layer in contract["layers"] for tensor in layer["tensors"]]
        shapes = {tuple(tensor["shape"][1::2]) for layer in contract["layers"] for tensor in layer["tensors"]}
        kinds = {layer["kind"] for layer in contract["layers"]}
        fits = kinds <= {"full", "window", "cross"} and shapes == {(heads, size)}
        if not fits or kept != _wanted(len(kept), "cross" in kinds):
            raise UsageError(
                f"{self.name} wants keys and values of one size in every layer, and no other state", advice=LEAVE_OUT
            )

    def _check_inputs(self, exported: ExportedModel) -> None:
        if "encoder" not in exported.parts:
            return
        for program, gives in ((exported.parts["encoder"], _TO_ENCODER), (exported, _TO_DECODER)):
            names = [e["name"] for e in program.inputs if not e["name"].startswith("past_")]
            if further := [name for name in names if name not in gives]:
                raise UsageError(f"{self.name} does not give the programs {', '.join(further)}", advice=LEAVE_OUT)

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


def _wanted(count: int, crossed: bool) -> list[str]:
    """Names of a cache's tensors: each layer's key and value, and behind them those of the encoder's states."""
    sides = ("decoder.", "encoder.") if crossed else ("",)
    parts = [f"{side}{part}" for side in sides for part in ("key", "value")]
    return [f"past_key_values.{layer}.{part}" for layer in range(count // len(parts)) for part in parts]
