# SPDX-License-Identifier: Apache-2.0
"""A causal language model as one graph that takes its cache and gives it back: `Decoder`, and how to find its cache.

One graph does the prompt, the next token, a prompt in pieces and the continuation of a text: any number of new tokens,
any number of cached ones (none, too), any number of rows, with padding on the left. The names are those that existing
clients of ONNX decoders use:

    input_ids        (batch, new)               logits               (batch, new, vocabulary)
    attention_mask   (batch, seen + new)
    position_ids     (batch, new)
    past_key_values.N.key / .value              present.N.key / .value
    past_conv.N                                 present_conv.N
    past_ssm.N                                  present_ssm.N

**Windows.** A layer with a sliding window takes any number of cached entries from ``window - 1`` up and masks by their
place in the text, which follows from the length of ``attention_mask``. Clients that know a single length for all layers
can therefore load a graph with windows; `transporters.generation.loop` crops such a layer's cache, and the graph need
not know when.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionCacheLayerMixin

from ..errors import InputError
from ..exporters.tracing import preserved_state
from ..trees import pytrees
from . import graph_cache
from .cache_contract import BATCH, PAST, PRESENT, WINDOW, CacheContract, LayerCache, Slot

#: Tokens and rows of the run that shows what a model keeps; no size of a model's configuration should be mistaken.
_ROWS, _TOKENS = 2, 3

#: A function of several tokens that begins with a state of zeros, whatever the cache holds.
_FORGETFUL = "mamba_selective_scan"

#: What to do with a model that cannot have such a graph.
PLAIN = "`export`, on the command line with --no-cache, makes a program of its forward pass"

Nested = dict[str, Any]


class Decoder(torch.nn.Module):
    """A model with its cache as plain tensors. It holds the model's own parts, so that weights keep their names.

    Args:
        model: A causal language model in evaluation mode; it is not changed.
        contract: What it keeps; found with `cache_contract` when None.

    Raises:
        InputError: The model has no cache, or one of a kind that is not known.
    """

    of_model: Any

    def __init__(self, model: Any, contract: CacheContract | None = None) -> None:
        super().__init__()
        self.training = model.training
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[part] = getattr(model, part)
        self.__dict__["of_model"] = model  # beside the modules, which are the model's already
        self.contract = contract or cache_contract(model)
        self.config = model.config
        self.takes_positions = "position_ids" in inspect.signature(type(model).forward).parameters
        modules = {type(module).__module__ for module in model.modules()}
        self.forgets = any(hasattr(sys.modules[name], _FORGETFUL) for name in modules)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        past_key_values: Nested | None = None,
        past_conv: Nested | None = None,
        past_ssm: Nested | None = None,
    ) -> dict[str, Any]:
        """One step.

        Args:
            input_ids: ``(batch, new)`` int64.
            attention_mask: ``(batch, seen + new)`` int64; 0 for padding, on the left.
            position_ids: ``(batch, new)`` int64, for models that take them.
            past_key_values: Layer to ``key`` and ``value``, each ``(batch, heads, cached, head_dim)``.
            past_conv: Layer to the state of its convolution.
            past_ssm: Layer to the state of its recurrence.

        Returns:
            ``logits`` ``(batch, new, vocabulary)``; ``present``, ``present_conv``, ``present_ssm`` for the next step.
        """
        given = {"past_key_values": past_key_values, "past_conv": past_conv, "past_ssm": past_ssm}
        new = input_ids.shape[1]
        if self.forgets and new > 1 and not torch.compiler.is_exporting() and _any_state(past_ssm):
            return self._one_by_one(input_ids, attention_mask, position_ids, given)
        seen = attention_mask.shape[1] - new
        cache = graph_cache.build(self.contract, given, seen)
        more = {"position_ids": position_ids} if position_ids is not None else {}
        if all(self.contract.linear):
            attention_mask = attention_mask.narrow(1, seen, new)  # such models take the mask of the new tokens only
        more |= {"input_ids": input_ids, "attention_mask": attention_mask}
        logits, tensors = graph_cache.step(self.of_model, self.contract, cache, **more)
        return {"logits": logits, **self._present(tensors)}

    def _one_by_one(self, ids: torch.Tensor, mask: torch.Tensor, places: Any, given: Nested) -> Nested:
        """The same step token by token, as eager's reference where several at once would forget the state."""
        new, logits = ids.shape[1], []
        present: Nested = {}
        for at in range(new):
            state = {name: value for name, value in given.items() if value is not None}
            here = {} if places is None else {"position_ids": places[:, at : at + 1]}
            seen = mask[:, : mask.shape[1] - new + at + 1]
            present = self(ids[:, at : at + 1], seen, **here, **state)
            logits.append(present.pop("logits"))
            given = {group: present.get(name) for group, name in PRESENT.items()}
        return {"logits": torch.cat(logits, dim=1), **present}

    def _present(self, tensors: Mapping[str, torch.Tensor]) -> Nested:
        return nested({slot.present: tensors[slot.name] for slot in self.contract.slots})


def _any_state(past_ssm: Nested | None) -> bool:
    return any(bool(leaf.any()) for leaf in pytrees.leaves(past_ssm or {}))


@contextmanager
def named_refusal(name: str) -> Iterator[None]:
    """Eager's refusal of ids with a cache, as an `InputError` that names the model's class."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"
        raise InputError(f"{name} refuses a text of ids with a cache of tensors: {text}", advice=PLAIN) from error


def nested(tensors: Mapping[str, Any]) -> Nested:
    """``{"present.0.key": …}`` as ``{"present": {"0": {"key": …}}}``, in the same order."""
    found: Nested = {}
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        place = found
        for key in path:
            place = place.setdefault(key, {})
        place[last] = tensor
    return found


def empty_state(contract: CacheContract, batch: int, device: Any = "cpu") -> dict[str, torch.Tensor]:
    """Input name to what a text of no tokens has: no keys and values, states of zeros."""
    return {
        slot.name: torch.zeros(slot.sizes(batch), dtype=getattr(torch, slot.dtype), device=device)
        for slot in contract.slots
    }


def positions(attention_mask: torch.Tensor, new: int) -> torch.Tensor:
    """``position_ids`` ``(batch, new)`` of the last tokens: padding does not count."""
    counted = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    return counted[:, counted.shape[1] - new :]


def cache_contract(model: Any) -> CacheContract:
    """Run the model on a few tokens and read off its cache what each layer keeps.

    Args:
        model: A causal language model in evaluation mode.

    Raises:
        InputError: The model has no cache, or one of a kind that is not known.
    """
    name = type(model).__name__
    if "cache" not in inspect.signature(type(model).forward).parameters:
        raise InputError(
            f"{name} takes no cache, so there is nothing to generate with",
            advice=PLAIN,
        )
    ids = torch.arange(_ROWS * _TOKENS, device=model.device).reshape(_ROWS, _TOKENS)
    with torch.no_grad(), preserved_state(model), named_refusal(name):
        cache = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True).get("cache")
    if cache is None:
        raise InputError(
            f"{name} gives no cache back",
            advice=f"some models do with is_decoder=True in the config; {PLAIN}",
        )
    if not hasattr(cache, "layers"):
        raise InputError(f"{name} keeps its state in a {type(cache).__name__}, no known kind of cache", advice=PLAIN)
    layers = tuple(layer_cache((str(index),), layer, name) for index, layer in enumerate(cache.layers))
    if not any(layer.slots for layer in layers):
        raise InputError(f"{name} keeps nothing between two steps", advice=PLAIN)
    return CacheContract(layers)


def layer_cache(path: tuple[str, ...], layer: Any, model_name: str) -> LayerCache:
    """What a layer of Transformers' cache keeps.

    Args:
        path: Where it stands under the arguments: ``("3",)``.
        layer: It, after some tokens.
        model_name: For the error.

    Raises:
        InputError: It is of a kind that is not known.
    """
    is_linear = isinstance(layer, LinearAttentionCacheLayerMixin)
    is_attention = isinstance(layer, DynamicLayer)
    known = type(layer).__module__ == "transformers.cache_utils" and not hasattr(layer, "indexer_keys")
    if not known or not (is_linear or is_attention or isinstance(layer, DummyLayer)):
        raise InputError(
            f"layer {path[0]} of {model_name} keeps its state in a {type(layer).__name__}, no known kind of cache",
            advice=PLAIN,
        )
    slots = _attention_slots(path, layer) if is_attention else ()
    states = _state_slots(path, layer) if is_linear else ()
    if slots and states:
        return LayerCache("hybrid", slots + states)
    if states:
        return LayerCache("linear", states)
    if slots:
        return LayerCache("full" if slots[0].window is None else "window", slots)
    return LayerCache("shared")


def _attention_slots(path: tuple[str, ...], layer: Any) -> tuple[Slot, ...]:
    if layer.keys is None or layer.keys.ndim != 4:
        return ()  # reads another layer's
    window = layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None
    law = PAST if window is None else WINDOW
    return tuple(
        Slot(
            "past_key_values",
            (*path, part),
            str(tensor.dtype).removeprefix("torch."),
            (BATCH, tensor.shape[1], law, tensor.shape[3]),
            window,
        )
        for part, tensor in (("key", layer.keys), ("value", layer.values))
    )


def _state_slots(path: tuple[str, ...], layer: Any) -> tuple[Slot, ...]:
    found = []
    for group, states in (("past_conv", layer.conv_states), ("past_ssm", layer.recurrent_states)):
        for place, tensor in states.items():
            if tensor is not None:
                inner = path if len(states) == 1 else (*path, str(place))
                dtype = str(tensor.dtype).removeprefix("torch.")
                found.append(Slot(group, inner, dtype, (BATCH, *tensor.shape[1:])))
    return tuple(found)
