# SPDX-License-Identifier: Apache-2.0
"""A causal language model that keeps its cache inside of the program, as ExecuTorch's runner of language models has it.

The runner passes tokens and the place of the first of them, and nothing else; it never sees a cache:

    tokens     (1, new) int64        logits     (1, 1, vocabulary), of the last token
    input_pos  (1,) int64

Keys and values are buffers of the program with a place for every token that a text may have. A step writes its own at
``input_pos`` and masks all places after it, so what an earlier text left there is never seen: a text begins with
``input_pos`` 0, and nothing needs to be emptied.

ExecuTorch allots the buffers when it loads the program, as zeros, and the file holds none of them.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from ..errors import InputError
from ..exporters.tracing import preserved_state
from .cache_contract import CacheContract
from .decoder import Decoder, cache_contract

if TYPE_CHECKING:
    from ..exporters.shapes import ShapeContract

#: Tokens that a text may have, where the model says more and the caller nothing. Each takes memory, used or not.
CONTEXT = 2048

#: Places of the cache in the run that shows whether a model takes it.
_PROBE = 12

#: How many machine epsilons the scores of a text in two steps may be from those of the text at once.
_EPSILONS = 256


class StaticAttention(DynamicLayer):  # type: ignore[misc]  # Transformers has no types for mypy
    """Keys and values ``(1, heads, context, head_dim)``, written at the places ``(new,)``."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.places = keys, values, places
        self.device, self.is_initialized = keys.device, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Write, and give every place, whether or not there is something."""
        self.keys.index_copy_(2, self.places, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self.places, value_states.to(self.values.dtype))
        return self.keys, self.values

    def get_mask_sizes(self, query_length: Any) -> Any:
        """Every place, from the text's first token on."""
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        """Nothing that a graph could compute with: the places are values, and the decoder is given what follows."""
        return 0


class StaticDecoder(Decoder):
    """A model with its cache as buffers. It holds the model's own parts, and the model does not get the buffers.

    Args:
        model: A causal language model in evaluation mode.
        contract: What it keeps, with its ``context``.
    """

    def __init__(self, model: Any, contract: CacheContract) -> None:
        super().__init__(model, contract)
        assert contract.context is not None, "by `static_contract`"
        self.context: int = contract.context
        self.__dict__["_buffers"] = dict(model._buffers)
        self.__dict__["_non_persistent_buffers_set"] = set(model._non_persistent_buffers_set)
        for slot in contract.slots:
            sizes, dtype = slot.sizes(1, self.context), getattr(torch, slot.dtype)
            self.register_buffer(_buffer(slot.path), torch.zeros(sizes, dtype=dtype, device=model.device))
        self.keeps_last = "logits_to_keep" in inspect.signature(type(model).forward).parameters

    def forward(self, tokens: torch.Tensor, input_pos: torch.Tensor) -> dict[str, Any]:  # type: ignore[override]
        """One step of the one text that there is.

        Args:
            tokens: ``(1, new)`` int64.
            input_pos: ``(1,)`` int64, how many tokens came before.

        Returns:
            ``logits`` ``(1, 1, vocabulary)`` of the last token.
        """
        new = tokens.shape[1]
        torch._check(new <= self.context)  # type: ignore[no-untyped-call]
        places = input_pos + torch.arange(new, device=tokens.device)
        is_seen = torch.arange(self.context, device=tokens.device) <= places[:, None]
        dtype = self.of_model.dtype
        mask = torch.zeros(is_seen.shape, dtype=dtype, device=tokens.device)
        mask = mask.masked_fill(~is_seen, torch.finfo(dtype).min)[None, None]
        layers = [StaticAttention(*self._tensors(layer), places) for layer in self.contract.layers]
        more = {"logits_to_keep": 1} if self.keeps_last else {}
        outputs = self.of_model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=places[None],
            cache=Cache(layers=layers),
            use_cache=True,
            **more,
        )
        return {"logits": outputs.logits[:, -1:]}

    def _tensors(self, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (self._buffers[_buffer(slot.path)] for slot in layer.slots)
        assert keys is not None, "registered with a tensor"
        assert values is not None, "as above"
        return keys, values

    def constant_methods(self, shapes: ShapeContract) -> dict[str, Any]:
        """What the runner asks a program for, by the names that it asks with.

        Args:
            shapes: The program's shape contract, with the most tokens of a step.
        """
        config = self.config.get_text_config()
        most = next(axis.maximum for axis in shapes.axes if axis.label == "sequence")
        found = {
            "get_max_seq_len": most,
            "get_max_context_len": self.context,
            "get_n_layers": len(self.contract.layers),
            "get_vocab_size": config.vocab_size,
            "use_kv_cache": True,
            "use_sdpa_with_kv_cache": False,
            "enable_dynamic_shape": True,
        }
        for method, name in (("get_bos_id", "bos_token_id"), ("get_eos_ids", "eos_token_id")):
            sources = (getattr(self.of_model, "generation_config", None), config)
            ids = next((value for of in sources if (value := getattr(of, name, None)) is not None), None)
            if ids is not None:
                ids = ids if isinstance(ids, list) else [ids]
                found[method] = ids if method == "get_eos_ids" else ids[0]
        return found


def static_contract(model: Any, wanted: int | None) -> CacheContract:
    """What a model keeps, for texts of a largest length: what is wanted, else the model's own limit up to `CONTEXT`.

    Raises:
        InputError: The model has no cache, or takes no texts of the wanted length.
    """
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if wanted is not None and limit is not None and wanted > limit:
        raise InputError(f"{type(model).__name__} takes up to {limit} tokens, so max_context={wanted} is too much")
    context = wanted if wanted is not None else min(limit or CONTEXT, CONTEXT)
    return CacheContract(cache_contract(model).layers, context)


def unfit(model: Any, contract: CacheContract) -> str | None:
    """Why a model's cache cannot be kept inside of a program, or None.

    The last question is put to the model: a text in two steps must have the scores of the text at once.
    """
    name = type(model).__name__
    kinds = sorted({layer.kind for layer in contract.layers} - {"full"})
    if kinds:
        return f"{name} has layers of another kind than full attention: {', '.join(kinds)}"
    if "position_ids" not in inspect.signature(type(model).forward).parameters:
        return f"{name} takes no position_ids, which say where in the text a step stands"
    decoder = StaticDecoder(model, replace(contract, context=_PROBE))
    ids = torch.arange(_PROBE - 2, device=model.device)[None] % model.config.get_text_config().vocab_size
    try:
        with torch.no_grad(), preserved_state(decoder):
            expected = model(input_ids=ids, use_cache=False).logits[:, -1]
            for start, end in ((0, _PROBE - 6), (_PROBE - 6, _PROBE - 2)):
                actual = decoder(ids[:, start:end], ids.new_tensor([start]))["logits"][:, -1]
    except Exception as error:  # noqa: BLE001  whatever it is, the model does not take its cache so
        return f"{name} refuses it: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    near = _EPSILONS * torch.finfo(expected.dtype).eps
    if torch.allclose(actual, expected, rtol=near, atol=near * float(expected.abs().max())):
        return None
    return f"{name} gives other scores with it"


def _buffer(path: tuple[str, ...]) -> str:
    return "_".join(("cache", *path))
