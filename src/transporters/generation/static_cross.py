# SPDX-License-Identifier: Apache-2.0
"""An encoder with a decoder as two programs for one text, the decoder with its cache inside.

`CrossStates` runs once for a text: it is the encoder, and the projections of its states that each layer of the decoder
attends to. `StaticCrossDecoder` steps, as `transporters.generation.static_decoder` does, and takes these tensors as
they are. No step computes them again, and the weights of their projections are in the encoder's file only:

    input_ids, …     (1, length)                   present.N.encoder.key / .value          (1, heads, encoded, head_dim)

    tokens                  (1, new) int64         logits     (1, 1, vocabulary), of the last token
    input_pos               (1,) int64
    encoder_attention_mask  (1, encoded) int64, where the decoder takes one
    past_key_values.N.encoder.key / .value         as above

The trace of `CrossStates` runs a step of the decoder as well, for only the model knows how it projects. What the step
computes beside is dead, and goes with its weights before the program is lowered.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import Cache

from ..errors import InputError
from ..exporters.tracing import preserved_state
from ..inputs import axes, resizing
from ..trees import pytrees
from . import graph_cache
from .cache_contract import TOKENS, CacheContract
from .decoder import PLAIN, Nested, named_refusal, nested
from .encoder_decoder import Encoder, EncoderStates, cross_contract, mask_of_states, without
from .graph_cache import GraphCache, GraphCrossCache
from .static_decoder import TRIAL, StaticDecoder, context_of, trial, trial_contract

#: The fewest encoder's states in the sample of a decoder: no size that freezes.
_ENCODED = 6

#: Tokens of a sample's step.
_NEW = 3


class CrossStates(torch.nn.Module):
    """A model's encoder, and what the decoder's layers make of its states. It holds the model's own parts.

    Args:
        model: An encoder with a decoder, in evaluation mode; it is not changed.

    Raises:
        InputError: It has no encoder of its own.
    """

    of_model: Any
    of_encoder: Encoder

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.training = model.training
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[part] = getattr(model, part)
        self.__dict__ |= {"of_model": model, "of_encoder": Encoder(model)}  # beside the modules, which are the model's
        self.config = model.config

    def forward(self, **inputs: Any) -> Nested:
        """``present``: layer to ``encoder`` to ``key`` and ``value`` ``(batch, heads, encoded, head_dim)``.

        Args:
            inputs: The encoder's own arguments.
        """
        states = EncoderStates(**self.of_encoder(**inputs))
        cache = graph_cache.first_cross()
        hidden = states.last_hidden_state
        first = torch.zeros(hidden.shape[0], 1, dtype=torch.int64, device=hidden.device)
        self.of_model(encoder_outputs=states, decoder_input_ids=first, cache=cache, use_cache=True)
        layers = enumerate(cache.cross_attention_cache.layers)
        return {"present": {str(at): {"encoder": {"key": one.keys, "value": one.values}} for at, one in layers}}

    def inputs(self, sample: Mapping[str, Any]) -> Nested:
        """Those arguments of the whole model that are the encoder's, for the sample's first text."""
        given = self.of_encoder.inputs(sample)
        return resizing.resize(given, axes.label_axes(given), {"batch": 1})


class StaticCrossDecoder(StaticDecoder):
    """All of a model but its encoder, with its own cache as buffers.

    Args:
        model: An encoder with a decoder, in evaluation mode.
        contract: What the decoder keeps, with its ``context``.
    """

    def __init__(self, model: Any, contract: CacheContract) -> None:
        super().__init__(model, contract)
        encoder = model.get_encoder()
        self.__dict__["_modules"] = without(model, encoder)._modules
        arguments = inspect.signature(model.get_decoder().forward).parameters
        self.takes_mask, self.takes_positions = "encoder_attention_mask" in arguments, "position_ids" in arguments
        self._width = getattr(getattr(encoder, "config", model.config), "hidden_size", 1)

    def forward(  # type: ignore[override]
        self,
        tokens: torch.Tensor,
        input_pos: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Nested | None = None,
    ) -> dict[str, Any]:
        """One step of the one text that there is.

        Args:
            tokens: ``(1, new)`` int64.
            input_pos: ``(1,)`` int64, how many tokens came before.
            encoder_attention_mask: ``(1, encoded)`` int64; 0 for padding.
            past_key_values: What `CrossStates` gave as ``present``.

        Returns:
            ``logits`` ``(1, 1, vocabulary)`` of the last token.
        """
        assert past_key_values is not None, "optional for its place in the signature only"
        encoded = {"past_key_values": past_key_values, "encoder_attention_mask": encoder_attention_mask}
        return super().forward(tokens, input_pos, **encoded)

    def _cache(self, places: torch.Tensor, encoded: Nested) -> Cache:
        own = [self._layer(layer, places) for layer in self.contract.layers if layer.kind != "cross"]
        cross = CacheContract(tuple(layer for layer in self.contract.layers if layer.kind == "cross"))
        return GraphCrossCache(GraphCache(layers=own), graph_cache.build(cross, encoded, 0), is_whole=True)

    def _arguments(self, tokens: torch.Tensor, places: torch.Tensor, encoded: Nested) -> dict[str, Any]:
        """The model asks the encoder's states for their number only: their keys and values are in the cache.

        One that asks for more, of zeros, is found out by the trial.
        """
        first = next(leaf for _, leaf in pytrees.named_leaves(encoded["past_key_values"]))
        states = torch.zeros(1, first.shape[TOKENS], self._width, dtype=self.of_model.dtype, device=tokens.device)
        mask = encoded["encoder_attention_mask"]
        return {
            "encoder_outputs": EncoderStates(last_hidden_state=states),
            "decoder_input_ids": tokens,
            "decoder_attention_mask": self._mask(places),
            **({"decoder_position_ids": places[None]} if self.takes_positions else {}),
            **({} if mask is None else {"attention_mask": mask}),
        }


def static_cross_contract(model: Any, sample: Mapping[str, Any], wanted: int | None) -> CacheContract:
    """What the decoder keeps, for texts of a largest length as `context_of` has it.

    Args:
        model: An encoder with a decoder, in evaluation mode.
        sample: Forward arguments of the whole model.
        wanted: The caller's ``max_context``.

    Raises:
        InputError: The model has no cache, or one of a kind that is not known, or takes no texts of the wanted length.
    """
    return CacheContract(cross_contract(Encoder(model), sample).layers, context_of(model, wanted))


def static_cross_sample(states: CrossStates, decoder: StaticCrossDecoder, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a text's first step, ``tokens`` ``(1, 3)``, behind at least 6 states of the encoder.

    Args:
        states: It computes what the decoder gets of the encoder.
        decoder: Whose inputs they are.
        sample: Forward arguments of the whole model.

    Raises:
        InputError: The encoder's mask is none for the decoder.
    """
    ids = _text(states.of_model, sample, _NEW)
    encoded = _encoded(states, decoder, sample)
    times = -(-_ENCODED // next(reversed(encoded.values())).shape[TOKENS])
    longer = {name: leaf.repeat_interleave(times, 1 if leaf.ndim == 2 else TOKENS) for name, leaf in encoded.items()}
    return {"tokens": ids, "input_pos": ids.new_zeros(1), **nested(longer)}


def _encoded(states: CrossStates, decoder: StaticCrossDecoder, sample: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What a decoder gets of an encoder, by name: the mask, where it takes one, and keys and values."""
    given = states.inputs(sample)
    name = type(states.of_model).__name__
    with torch.no_grad(), preserved_state(states), named_refusal(name):
        present = dict(pytrees.named_leaves(states(**given)))
    kept = {slot.name: present[slot.present] for slot in decoder.contract.cross}
    if not decoder.takes_mask:
        return kept
    return {"encoder_attention_mask": mask_of_states(name, given, next(iter(kept.values())).shape[TOKENS]), **kept}


def unfit_behind_encoder(model: Any, sample: Mapping[str, Any], contract: CacheContract) -> str | None:
    """Why a model's cache cannot be kept inside of a program, or None: a trial says it.

    Args:
        model: An encoder with a decoder, in evaluation mode.
        sample: Forward arguments of the whole model.
        contract: What the decoder keeps.
    """
    states, decoder = CrossStates(model), StaticCrossDecoder(model, trial_contract(model, contract))
    given = states.inputs(sample)
    ids = _text(model, sample, TRIAL)

    def whole() -> torch.Tensor:
        scores: torch.Tensor = model(**given, decoder_input_ids=ids, use_cache=False).logits
        return scores

    return trial(decoder, ids, whole, **nested(_encoded(states, decoder, sample)))


def _text(model: Any, sample: Mapping[str, Any], length: int) -> torch.Tensor:
    """Ids ``(1, length)`` of the decoder.

    Raises:
        InputError: It does not write rows of ids.
    """
    ids: torch.Tensor = sample["decoder_input_ids"]
    if ids.ndim != 2:
        raise InputError(f"the decoder of {type(model).__name__} writes no rows of ids", advice=PLAIN)
    return ids[:1].repeat(1, length // ids.shape[1] + 1)[:, :length].clone()
