# SPDX-License-Identifier: Apache-2.0
"""A causal language model that keeps its cache inside of the program, as ExecuTorch's runner of language models has it.

The runner passes tokens and the place of the first of them, and nothing else; it never sees a cache:

    tokens     (1, new) int64        logits     (1, 1, vocabulary), of the last token
    input_pos  (1,) int64

Keys and values are buffers of the program with a place for every token that a text may have. A step writes its own at
``input_pos`` and masks all places after it, so what an earlier text left there is never seen: a text begins with
``input_pos`` 0, and nothing needs to be emptied. A layer with a window masks what is before it. States of convolutions
and recurrences are buffers as well; a step at ``input_pos`` 0 takes zeros in their place.

ExecuTorch allots the buffers when it loads the program, as zeros, and the file holds none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, DummyLayer, DynamicLayer, LinearAttentionLayer

from ..errors import InputError
from ..exporters.tracing import preserved_state
from . import graph_cache
from .cache_contract import TOKENS, CacheContract, LayerCache, Slot
from .decoder import Decoder, Nested, cache_contract
from .graph_cache import GraphCache, GraphState

if TYPE_CHECKING:
    from ..exporters.shapes import ShapeContract

#: Tokens that a text may have, where the model says more and the caller nothing. Each takes memory, used or not.
CONTEXT = 2048

#: Attributes of a configuration that limit the tokens of a text, the first that is there wins.
_LIMITS = ("max_target_positions", "max_position_embeddings", "max_seq_len")

#: Tokens of the run that shows whether a model takes such a cache.
TRIAL = 10

#: How many machine epsilons the scores of a text in two steps may be from those of the text at once.
_EPSILONS = 256


class StaticAttention(DynamicLayer):  # type: ignore[misc]  # Transformers has no types for mypy
    """Keys and values ``(1, heads, context, head_dim)``, written at the places ``(new,)``.

    A window is one of the mask: its layer keeps all places, too.
    """

    def __init__(self, places: torch.Tensor, is_sliding: bool, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.places, self.is_sliding = keys, values, places, is_sliding
        self.device, self.is_initialized = keys.device, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Write, and give every place, whether or not there is something."""
        self.keys.index_copy_(TOKENS, self.places, key_states.to(self.keys.dtype))
        self.values.index_copy_(TOKENS, self.places, value_states.to(self.values.dtype))
        return self.keys, self.values

    def get_mask_sizes(self, query_length: Any) -> Any:
        """Every place, from the text's first token on."""
        return self.keys.shape[TOKENS], 0

    def get_seq_length(self) -> torch.Tensor:
        """The place of the step's first token, a tensor ``()``: masks and positions are computed from it."""
        return self.places[0]


class StaticHybrid(GraphState, StaticAttention):
    """A layer with attention and states side by side."""

    is_compileable = False

    def __init__(self, attention: dict[str, Any], conv: dict[int, torch.Tensor], recurrent: dict[int, Any]) -> None:
        StaticAttention.__init__(self, **attention)
        LinearAttentionLayer.__init__(self, number_of_states=max([*conv, *recurrent], default=0) + 1)
        self._hold(conv, recurrent)
        self.device = self.keys.device


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
        for slot in contract.inner:
            sizes, dtype = replace(slot, window=None).sizes(1, self.context), getattr(torch, slot.dtype)
            self.register_buffer(_buffer(slot), torch.zeros(sizes, dtype=dtype, device=model.device))
        self.keeps_last = "logits_to_keep" in inspect.signature(type(model).forward).parameters

    def forward(  # type: ignore[override]
        self, tokens: torch.Tensor, input_pos: torch.Tensor, **encoded: Any
    ) -> dict[str, Any]:
        """One step of the one text that there is.

        Args:
            tokens: ``(1, new)`` int64.
            input_pos: ``(1,)`` int64, how many tokens came before.
            encoded: What there is of an encoder (`transporters.generation.static_cross`).

        Returns:
            ``logits`` ``(1, 1, vocabulary)`` of the last token.
        """
        new = tokens.shape[1]
        torch._check(new <= self.context)  # type: ignore[no-untyped-call]
        if not torch.compiler.is_exporting() and self.forgets and new > 1 and bool(input_pos):
            outputs = {}
            for at, token in enumerate(torch.split(tokens, 1, dim=1)):  # eager would forget the state
                outputs = self(token, input_pos + at, **encoded)
            return outputs
        if not torch.compiler.is_exporting() and self._is_plain and new == 1 and not bool(input_pos):
            # Eager leaves the mask of a text's first tokens to SDPA, which has none for a single one. Of two the first
            # does not see the second, and what the second leaves in the cache the next step writes over.
            return {"logits": self._run(tokens.repeat(1, 2), input_pos, 2, encoded)[:, :1]}
        return {"logits": self._run(tokens, input_pos, 1, encoded)[:, -1:]}

    def _run(self, tokens: torch.Tensor, input_pos: torch.Tensor, kept: int, encoded: Nested) -> torch.Tensor:
        """A step's logits ``(1, kept or new, vocabulary)``; the cache is written."""
        new = tokens.shape[1]
        places = input_pos + torch.arange(new, device=tokens.device)
        more: dict[str, Any] = {"logits_to_keep": kept} if self.keeps_last else {}
        more |= self._arguments(tokens, places, encoded)
        logits, tensors = graph_cache.step(self.of_model, self.contract, self._cache(places, encoded), **more)
        for name, held in self._states.items():
            held.copy_(tensors[name])
        return logits

    def _cache(self, places: torch.Tensor, encoded: Nested) -> Cache:
        """The cache that a step at ``places`` writes."""
        return GraphCache(layers=[self._layer(layer, places) for layer in self.contract.layers])

    def _arguments(self, tokens: torch.Tensor, places: torch.Tensor, encoded: Nested) -> dict[str, Any]:
        """What the model takes in such a step, beside the cache."""
        more = {"position_ids": places[None]} if self.takes_positions else {}
        return {**more, "input_ids": tokens, "attention_mask": self._mask(places)}

    @property
    def _is_plain(self) -> bool:
        """Whether no layer keeps a state."""
        return not any(layer.kind in ("linear", "hybrid") for layer in self.contract.layers)

    @property
    def _states(self) -> dict[str, torch.Tensor]:
        """Input name to the buffer of each state that a step replaces as a whole."""
        slots = [slot for slot in self.contract.inner if slot.group != "past_key_values"]
        return {slot.name: self.get_buffer(_buffer(slot)) for slot in slots}

    def _mask(self, places: torch.Tensor) -> Any:
        """What of the cache a step sees.

        A mask ``(1, context)``, from which the model makes those of its layers. A layer with a state would take the
        last columns of that mask for its own tokens, none of which is padding: where there is one, each kind of layer
        has its mask by its name, as the model would make it.
        """
        columns = torch.arange(self.context, device=places.device)
        if all(self.contract.linear):
            return None
        if self._is_plain:
            return (columns <= places[-1]).long()[None]
        window = next((slot.window for slot in self.contract.slots if slot.window is not None), self.context)
        full = columns <= places[:, None]
        masks = {"full_attention": full, "sliding_attention": full & (columns > places[:, None] - window)}
        dtype = self.of_model.dtype
        zeros = torch.zeros(full.shape, dtype=dtype, device=places.device)
        found: dict[str, Any] = {
            kind: zeros.masked_fill(~seen, torch.finfo(dtype).min)[None, None] for kind, seen in masks.items()
        }
        states = dict.fromkeys(("linear_attention", "conv"))
        return {**found, **states, "hybrid": found | states, "hybrid_sliding": found | states}

    def _layer(self, layer: LayerCache, places: torch.Tensor) -> Any:
        """The layer's part of the cache; a text that begins has states of zeros."""
        if not layer.slots:
            return DummyLayer()
        attention: dict[str, Any] = {"places": places}
        states: dict[str, dict[int, torch.Tensor]] = {"past_conv": {}, "past_ssm": {}}
        for slot in layer.slots:
            held = self.get_buffer(_buffer(slot))
            if slot.group == "past_key_values":
                attention |= {"keys" if slot.path[-1] == "key" else "values": held}
                attention |= {"is_sliding": slot.window is not None}
            else:
                states[slot.group][graph_cache.state_index(slot.path)] = torch.where(places[0] > 0, held, 0)
        if layer.kind == "linear":
            return GraphState(states["past_conv"], states["past_ssm"])
        if layer.kind == "hybrid":
            return StaticHybrid(attention, states["past_conv"], states["past_ssm"])
        return StaticAttention(**attention)

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
    """What a model keeps, for texts of a largest length, as `context_of` has it.

    Raises:
        InputError: The model has no cache, or takes no texts of the wanted length.
    """
    context = context_of(model, wanted)
    return CacheContract(cache_contract(model).layers, context)


def context_of(model: Any, wanted: int | None = None) -> int:
    """Tokens that a text may have: what is wanted, else the model's own limit up to `CONTEXT`.

    Raises:
        InputError: The model takes no texts of the wanted length.
    """
    config = model.config.get_text_config(decoder=True)
    found = (getattr(config, name, None) for name in _LIMITS)
    limit = next((limit for limit in found if isinstance(limit, int)), None)
    if wanted is not None and limit is not None and wanted > limit:
        raise InputError(f"{type(model).__name__} takes up to {limit} tokens, so max_context={wanted} is too much")
    return wanted if wanted is not None else min(limit or CONTEXT, CONTEXT)


def unfit(model: Any, contract: CacheContract) -> str | None:
    """Why a model's cache cannot be kept inside of a program, or None: a trial says it."""
    decoder = StaticDecoder(model, trial_contract(model, contract))
    ids = torch.arange(TRIAL, device=model.device)[None] % model.config.get_text_config().vocab_size
    return trial(decoder, ids, lambda: model(input_ids=ids, use_cache=False).logits)


def trial_contract(model: Any, contract: CacheContract) -> CacheContract:
    """What a model keeps, as a trial wants it: with as many places as a text may have tokens, for a model may count
    from their end.
    """
    return replace(contract, context=max(TRIAL + 2, context_of(model)))


def trial(decoder: StaticDecoder, ids: torch.Tensor, whole: Callable[[], torch.Tensor], **encoded: Any) -> str | None:
    """Why a model does not take its cache from a program, or None.

    The question is put to the model: a text in two steps must have the scores of the text at once.

    Args:
        decoder: The model with such a cache.
        ids: The text ``(1, TRIAL)``.
        whole: Gives the scores ``(1, TRIAL, vocabulary)`` of the text at once.
        encoded: What the decoder gets of an encoder.
    """
    name = type(decoder.of_model).__name__
    try:
        with torch.no_grad(), preserved_state(decoder):
            expected = whole()[:, -1]
            for start, end in ((0, TRIAL - 4), (TRIAL - 4, TRIAL)):
                actual = decoder(ids[:, start:end], ids.new_tensor([start]), **encoded)["logits"][:, -1]
    except Exception as error:  # noqa: BLE001  whatever it is, the model does not take its cache so
        return f"{name} refuses it: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    near = _EPSILONS * torch.finfo(expected.dtype).eps
    if torch.allclose(actual, expected, rtol=near, atol=near * float(expected.abs().max())):
        return None
    return f"{name} gives other scores with it"


def _buffer(slot: Slot) -> str:
    return "_".join((slot.group.replace("past_key_values", "past").replace("past", "cache"), *slot.path))
