# SPDX-License-Identifier: Apache-2.0
"""transformers.js (npm ``@huggingface/transformers`` 4): graphs in ``onnx/``, and what ``config.json`` says of them.

A model of one graph is ``onnx/model.onnx``; an encoder with a decoder is ``onnx/encoder_model.onnx`` and
``onnx/decoder_model_merged.onnx``, whose names, and those of their inputs, the programs have already. A model that
reads pictures has ``onnx/vision_encoder.onnx`` and ``onnx/embed_tokens.onnx`` before the decoder; the client puts the
features into the places of their token.

The client makes an empty cache from the graph's own description of its inputs, where a size called ``batch_size`` is
the number of rows and every other symbolic size is 0. Which inputs are a cache it knows from the model's configuration.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UsageError
from ..exporters.onnx_names import rename_size
from .base import LEAVE_OUT, Client, float_dtype

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: Where it looks for programs, and for one in float32 that is alone; what it calls that dtype. A browser's default is
#: another one.
_FOLDER, _ALONE, _DTYPE = "onnx", "model.onnx", "fp32"

#: Model types whose cache of keys and values the client knows by layer.
_KNOWN = frozenset(
    [
        "afmoe",
        "apertus",
        "arcee",
        "bloom",
        "codegen",
        "cohere",
        "cohere2",
        "ernie4_5",
        "deepseek_v3",
        "exaone",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gemma3n_text",
        "gemma4_text",
        "glm",
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gpt_oss",
        "gptj",
        "granite",
        "helium",
        "hunyuan_v1_dense",
        "llama",
        "llama4_text",
        "ministral",
        "ministral3",
        "mistral",
        "modernbert-decoder",
        "mpt",
        "nanochat",
        "olmo",
        "olmo2",
        "olmo3",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "solar_open",
        "stablelm",
        "starcoder2",
        "vaultgemma",
    ]
)

#: Model types of which it knows states as well, under the names that the program has.
_KNOWN_STATES = frozenset(["falcon_h1", "granitemoehybrid", "lfm2", "lfm2_moe", "nemotron_h"])


#: Model types of which it knows the decoder's cache and that of the encoder's states, by layer.
_KNOWN_CROSS = frozenset(
    ["t5", "mt5", "bart", "mbart", "marian", "m2m_100", "blenderbot", "blenderbot-small", "whisper"],
)

#: Model types of which it gives pictures to a program.
_KNOWN_PICTURES = frozenset(["llava"])

#: What it gives of a picture, and what of a text.
_OF_PICTURES, _OF_TEXT = frozenset({"pixel_values"}), frozenset({"inputs_embeds", "attention_mask", "position_ids"})


class TransformersJs(Client):
    """transformers.js, in Node and in a browser."""

    name: ClassVar[str] = "transformers.js"
    export_format: ClassVar[str] = "onnx"

    def adapt(self, exported: ExportedModel, tokenizer: Any) -> None:
        """Put the programs under ``onnx/``, and call their rows ``batch_size``.

        Raises:
            UsageError: A program is not in float32, or the client does not know the model's cache.
        """
        dtype = float_dtype(exported)
        if dtype != "float32":  # without a Float16Array, which Node has from 24 on, it takes the bits for integers
            raise UsageError(f"{self.name} cannot read outputs in {dtype} everywhere", advice="add --dtype float32")
        if exported.cache_contract is not None:
            self._check_cache(exported)
        for program in (exported, *exported.parts.values()):
            place = f"{_FOLDER}/{program.file or _ALONE}"
            program.file = place if program.file else None
            program.program.meta["file"] = place
            rename_size(program.program, "batch", "batch_size")

    def _check_cache(self, exported: ExportedModel) -> None:
        model_type = str(exported.model_config.model_type)
        layers = (exported.cache_contract or {})["layers"]
        if "pictures" in (exported.cache_contract or {}):
            self._check_pictures(exported)
            model_type = str(exported.model_config.get_text_config().model_type)
        states = any(layer["kind"] in ("linear", "hybrid") for layer in layers)
        plain = _KNOWN_CROSS if "encoder" in exported.parts else _KNOWN | _KNOWN_STATES
        if model_type not in (_KNOWN_STATES if states else plain):
            raise UsageError(
                f"{self.name} does not know what a {model_type} keeps between two steps",
                advice=LEAVE_OUT,
            )

    def _check_pictures(self, exported: ExportedModel) -> None:
        model_type = str(exported.model_config.model_type)
        if model_type not in _KNOWN_PICTURES:
            known = ", ".join(sorted(_KNOWN_PICTURES))
            raise UsageError(f"{self.name} gets pictures for {known} here, not for {model_type}", advice=LEAVE_OUT)
        given = [(exported.parts["vision_encoder"], _OF_PICTURES), (exported, _OF_TEXT)]
        names = [e["name"] for program, gives in given for e in program.inputs if e["name"] not in gives]
        if further := [name for name in names if not name.startswith("past_")]:
            raise UsageError(f"{self.name} does not give the programs {', '.join(further)}", advice=LEAVE_OUT)

    def save_pretrained(self, folder: Path) -> None:
        """Say in ``config.json`` which files to load; put the chat template where the client looks for it."""
        own: dict[str, Any] = {"dtype": _DTYPE}
        graphs = sorted((folder / _FOLDER).glob("*.onnx"))
        if external := {graph.name: 1 for graph in graphs if graph.with_name(f"{graph.name}_data").is_file()}:
            own["use_external_data_format"] = external
        _add(folder / "config.json", {"transformers.js_config": own})
        template = folder / "chat_template.jinja"
        if template.is_file():
            _add(folder / "tokenizer_config.json", {"chat_template": template.read_text(encoding="utf-8")})


def _add(path: Path, entries: dict[str, Any]) -> None:
    config = {**json.loads(path.read_text(encoding="utf-8")), **entries}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
