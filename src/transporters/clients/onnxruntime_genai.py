# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime GenAI (PyPI ``onnxruntime-genai``): ``genai_config.json`` beside the tokenizer.

The client keeps one length for all layers, which a program with windows takes as well, and it numbers its layers from
0: each of them must have keys and values of the same heads and sizes, and nothing else.

Where the program's attention can be ONNX Runtime's own operator (`onnx_fusing`), the client gets a graph of its own
beside the program, over the same file of weights: it writes the cache in place. That graph is not the program itself,
because the operator refuses a batch of texts that go on by several tokens, which the client never asks for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ..errors import UsageError
from ..runners.onnx_runner import OnnxRunner
from ..trees import pytrees
from .base import LEAVE_OUT, Client, float_dtype
from .onnx_fusing import fuse_attention, fuse_norms
from .onnx_packing import pack

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: Model types that the client runs as plain decoders.
_TYPES = frozenset(
    (
        *("ernie4_5", "gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "nemotron", "olmo"),
        *("phi", "phi3", "qwen2", "qwen3", "smollm3"),
    )
)

#: Searches begin here; a caller changes what it wants to.
_SEARCH = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 1,
    "top_p": 1.0,
}

#: How many machine epsilons the outputs of two graphs may be apart.
_EPSILONS = 64

#: The graph of its own.
_FUSED = "genai_model.onnx"

#: The class that stands for any tokenizer.json.
_ANY_TOKENIZER = "PreTrainedTokenizerFast"


class OnnxRuntimeGenai(Client):
    """ONNX Runtime GenAI, on the CPU."""

    name: ClassVar[str] = "onnxruntime-genai"
    export_format: ClassVar[str] = "onnx"

    def __init__(self) -> None:
        self._config: dict[str, Any] = {}
        self._fused: Any = None

    def adapt(self, exported: ExportedModel, tokenizer: Any) -> None:
        """Work out the configuration, and a graph with fused attention; the program has the client's names already.

        Raises:
            UsageError: The program is no decoder with a cache, or one that the client cannot run.
        """
        if exported.cache_contract is None:
            raise UsageError(f"{self.name} runs decoders with their cache only", advice="leave --for out")
        if exported.parts:
            raise UsageError(
                f"{self.name} runs decoders alone, and this one has its {', '.join(exported.parts)} beside it",
                advice=LEAVE_OUT,
            )
        model_type = str(exported.model_config.model_type)
        if model_type not in _TYPES:
            raise UsageError(
                f"{self.name} does not know the model type {model_type}",
                advice=f"it knows: {', '.join(sorted(_TYPES))}",
            )
        if float_dtype(exported) == "bfloat16":
            raise UsageError(f"{self.name} has no bfloat16 on the CPU", advice="export with --dtype float32 or float16")
        heads, head_size, layers = self._sizes(exported.cache_contract)
        config = exported.model_config.get_text_config()
        positions = {"position_ids": "position_ids"} if "position_ids" in exported.sample_inputs else {}
        context = int(getattr(config, "max_position_embeddings", None) or 2048)
        self._fused = _fused(exported, context)
        self._config = {
            "model": {
                "type": model_type,
                "vocab_size": config.vocab_size,
                "context_length": context,
                **_special(exported, tokenizer),
                "decoder": {
                    "session_options": {"log_id": self.name, "provider_options": []},
                    "filename": "",
                    "head_size": head_size,
                    "hidden_size": config.hidden_size,
                    "num_attention_heads": config.num_attention_heads,
                    "num_hidden_layers": layers,
                    "num_key_value_heads": heads,
                    "inputs": {
                        "input_ids": "input_ids",
                        "attention_mask": "attention_mask",
                        **positions,
                        "past_key_names": "past_key_values.%d.key",
                        "past_value_names": "past_key_values.%d.value",
                    },
                    "outputs": {
                        "logits": "logits",
                        "present_key_names": "present.%d.key",
                        "present_value_names": "present.%d.value",
                    },
                },
            },
            "search": {
                "max_length": context,
                "min_length": 0,
                # Without such a graph the program gives its cache back longer than it got it.
                "past_present_share_buffer": self._fused is not None,
                **_SEARCH,
            },
        }

    def _sizes(self, contract: dict[str, Any]) -> tuple[int, int, int]:
        """Heads of keys and values, their size, and the number of layers."""
        kept = [layer["tensors"] for layer in contract["layers"] if layer["tensors"]]
        names = [tensor["input"] for tensors in kept for tensor in tensors]
        wanted = [f"past_key_values.{layer}.{part}" for layer in range(len(kept)) for part in ("key", "value")]
        sizes = {(tensor["shape"][1], tensor["shape"][3]) for tensors in kept for tensor in tensors[:2]}
        if names != wanted or len(sizes) != 1:
            raise UsageError(
                f"{self.name} wants keys and values of one size in every layer, and no other state",
                advice=LEAVE_OUT,
            )
        heads, head_size = sizes.pop()
        return heads, head_size, len(kept)

    def save_pretrained(self, folder: Path) -> None:
        """Write ``genai_config.json``, and call the tokenizer's class by a name that the client knows."""
        graph = next(path for path in sorted(folder.rglob("model*.onnx")))
        if self._fused is not None:
            graph = _write_beside(self._fused, graph)
        self._config["model"]["decoder"]["filename"] = graph.relative_to(folder).as_posix()
        _write(folder / "genai_config.json", self._config)
        path = folder / "tokenizer_config.json"
        if path.is_file():
            _write(path, {**json.loads(path.read_text(encoding="utf-8")), "tokenizer_class": _ANY_TOKENIZER})


def _fused(exported: ExportedModel, context: int) -> Any:
    """The program with fused operators, if there is one and it computes the same; the weights are shared."""
    fused = fuse_attention(exported.program, exported.cache_contract or {"layers": []})
    if fused is None:
        return None
    fuse_norms(fused)
    pack(fused, context)
    step = {name: pytrees.map_named(lambda _, leaf: leaf[:1], tree) for name, tree in exported.sample_inputs.items()}
    inputs = exported.complete_inputs(step)
    given = OnnxRunner(fused, exported.inputs, exported.outputs).run(inputs)
    if not all(_is_same(one, other) for one, other in zip(given, exported.runner.run(inputs), strict=True)):
        return None
    exported.program.meta["external_data"] = True  # so that two graphs can have one file of weights
    return fused


def _is_same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two outputs are apart by rounding at most; as near as a verification wants it of an exact model."""
    near = _EPSILONS * torch.finfo(expected.dtype).eps
    return torch.allclose(actual, expected, rtol=near, atol=near * float(expected.abs().max()))


def _write_beside(fused: Any, graph: Path) -> Path:
    """Write a graph whose large weights lie in the data file of another one, and give its path."""
    import onnx_ir as ir

    place = graph.with_name(_FUSED)
    for name, value in ir.load(graph).graph.initializers.items():
        if isinstance(value.const_value, ir.ExternalTensor) and name in fused.graph.initializers:
            fused.graph.initializers[name].const_value = value.const_value
    ir.save(fused, place)
    return place


def _special(exported: ExportedModel, tokenizer: Any) -> dict[str, Any]:
    """Ids that begin, end and pad a text: as generation has them, else the configuration, else the tokenizer."""
    found = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        sources = (exported.generation_config, exported.model_config.get_text_config(), tokenizer)
        ids = next((value for source in sources if (value := getattr(source, name, None)) is not None), None)
        if ids is not None:
            found[name] = ids
    ends = found.get("eos_token_id", 0)
    found.setdefault("pad_token_id", ends[0] if isinstance(ends, list) else ends)
    return found


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
