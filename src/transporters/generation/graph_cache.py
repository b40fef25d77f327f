# SPDX-License-Identifier: Apache-2.0
"""Transformers' cache in the form in which a graph can have it: tensors in, tensors out, and no questions asked.

Eager's own caches ask in Python whether the window is full, whether there is a state yet, and how long it is; a graph
would keep the answers that its sample gave. Here every layer has its tensors from the start (an empty one, or zeros, is
where a text begins), and all that a mask needs is computed from sizes:

- Attention layers append and never crop. The mask covers the entries that are there, and their place in the text
  follows from the attention mask, which is as long as the text: ``text - new - cached`` entries lie before the cache.
  So one graph serves a window layer that was cropped, and one that was not; who runs the graph decides.
- A convolution's state always stands before the new tokens. Zeros there are what the model pads with.
- Attention to an encoder's states appends as well, to what was kept of them. The graph projects only the states that
  were not (`transporters.generation.encoder_decoder`): all of them where a text begins, and none later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, DummyLayer, DynamicLayer, EncoderDecoderCache, LinearAttentionLayer

from ..exporters.workarounds.model.scans import INITIAL_STATE
from .cache_contract import TOKENS, CacheContract, LayerCache

if TYPE_CHECKING:
    from collections.abc import Mapping


class GraphAttention(DynamicLayer):  # type: ignore[misc]  # Transformers has no types for mypy
    """Keys and values ``(batch, heads, cached, head_dim)`` of the last ``cached`` of ``seen`` tokens."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, seen: Any, is_sliding: bool) -> None:
        super().__init__()
        self.keys, self.values, self.seen, self.is_sliding = keys, values, seen, is_sliding
        self.device, self.is_initialized = keys.device, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Append, and give all that is there."""
        self.seen = self.seen + key_states.shape[TOKENS]
        self.keys = torch.cat([self.keys, key_states], dim=TOKENS)
        self.values = torch.cat([self.values, value_states], dim=TOKENS)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: Any) -> Any:
        """Number of keys that the mask covers, and the place of the first in the text."""
        cached = self.keys.shape[TOKENS]
        return cached + query_length, self.seen - cached

    def get_seq_length(self) -> Any:
        """Tokens seen, whether or not they are still there."""
        return self.seen


class GraphState(LinearAttentionLayer):  # type: ignore[misc]  # as above
    """States of convolutions ``(batch, channels, kernel)`` and recurrences, which are always there."""

    def __init__(self, conv: dict[int, torch.Tensor], recurrent: dict[int, torch.Tensor]) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=max([*conv, *recurrent], default=0) + 1)
        self._hold(conv, recurrent)

    def _hold(self, conv: dict[int, torch.Tensor], recurrent: dict[int, torch.Tensor]) -> None:
        for index, states in conv.items():
            self.conv_states[index], self.conv_kernel_size[index] = states, states.shape[-1]
            self.is_conv_states_initialized[index] = self.has_previous_state[index] = True
        for index, states in recurrent.items():
            self.recurrent_states[index] = states
            self.is_recurrent_states_initialized[index] = self.has_previous_state[index] = True
        self.is_held = True

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, **_: Any) -> torch.Tensor:
        """The state before the new columns; its last ones are the next state."""
        full = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        self.conv_states[state_idx] = full.narrow(-1, conv_states.shape[-1], self.conv_kernel_size[state_idx])
        return full

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any) -> torch.Tensor:
        """Take the new state as it is."""
        self.recurrent_states[state_idx] = recurrent_states.to(self.recurrent_states[state_idx].dtype)
        return recurrent_states


class GraphHybrid(GraphState, GraphAttention):
    """A layer with attention and states side by side."""

    is_compileable = False

    def __init__(self, attention: dict[str, Any], conv: dict[int, torch.Tensor], recurrent: dict[int, Any]) -> None:
        GraphAttention.__init__(self, **attention)
        LinearAttentionLayer.__init__(self, number_of_states=max([*conv, *recurrent], default=0) + 1)
        self._hold(conv, recurrent)
        self.device = self.keys.device


class GraphCache(Cache):  # type: ignore[misc]  # as above
    """A cache over a program's inputs."""

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        """The state, which the scan that follows also starts from."""
        state = super().get_recurrent_state(layer_idx, state_idx)
        INITIAL_STATE.set(state)
        return state


class FirstAttention(DynamicLayer):  # type: ignore[misc]  # as above
    """Keys and values of a text's first step, as they are: there is nothing before them."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Take them."""
        self.keys, self.values = key_states, value_states
        return key_states, value_states


def first_cross() -> EncoderDecoderCache:
    """The cache of a text that begins, which gets its layers as the model asks for them."""
    own, cross = (Cache(layer_class_to_replicate=FirstAttention) for _ in range(2))
    return EncoderDecoderCache(own, cross)


class GraphCrossCache(EncoderDecoderCache):  # type: ignore[misc]  # as above
    """The decoder's own cache and that of an encoder's states.

    Args:
        own: One layer per layer of the decoder.
        cross: The same.
        is_whole: What the model is told: whether ``cross`` has every state of the encoder, and none is to be projected.
    """

    def __init__(self, own: Cache, cross: Cache, is_whole: bool) -> None:
        self.self_attention_cache, self.cross_attention_cache = own, cross
        self.is_updated = dict.fromkeys(range(len(own.layers)), is_whole)


def build_cross(contract: CacheContract, given: Mapping[str, Any], seen: Any, is_whole: bool) -> GraphCrossCache:
    """`build` for a decoder behind an encoder; ``is_whole`` as `GraphCrossCache` has it."""
    layers = [(layer.kind, _layer(layer, given, seen)) for layer in contract.layers]
    own = GraphCache(layers=[layer for kind, layer in layers if kind != "cross"])
    return GraphCrossCache(own, GraphCache(layers=[layer for kind, layer in layers if kind == "cross"]), is_whole)


def build(contract: CacheContract, given: Mapping[str, Any], seen: Any) -> Cache:
    """A cache over the tensors that a program was given.

    Args:
        contract: What each layer keeps.
        given: Group to its nested tensors, as `Decoder.forward` takes them.
        seen: Number of tokens before this step, which may be symbolic.
    """
    return GraphCache(layers=[_layer(layer, given, seen) for layer in contract.layers])


def step(
    model: Any, contract: CacheContract, cache: Cache, **inputs: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Run a model with a cache, which it writes.

    Returns:
        Its logits, and what `read` gives.
    """
    token = INITIAL_STATE.set(None)
    try:
        logits: torch.Tensor = model(cache=cache, use_cache=True, **inputs).logits
    finally:
        INITIAL_STATE.reset(token)
    return logits, read(contract, cache)


def read(contract: CacheContract, cache: Cache) -> dict[str, torch.Tensor]:
    """Input name to the tensor that the next step gets in its place."""
    found = {}
    for layer, held in zip(contract.layers, _layers_of(contract, cache), strict=True):
        for slot in layer.slots:
            if slot.group == "past_key_values":
                found[slot.name] = held.keys if slot.path[-1] == "key" else held.values
            else:
                states = held.conv_states if slot.group == "past_conv" else held.recurrent_states
                found[slot.name] = states[state_index(slot.path)]
    return found


def _layers_of(contract: CacheContract, cache: Cache) -> list[Any]:
    """The cache's layers in the contract's order."""
    if not isinstance(cache, GraphCrossCache):
        layers: list[Any] = cache.layers
        return layers
    own, cross = iter(cache.self_attention_cache.layers), iter(cache.cross_attention_cache.layers)
    return [next(cross if layer.kind == "cross" else own) for layer in contract.layers]


def _layer(layer: LayerCache, given: Mapping[str, Any], seen: Any) -> Any:
    attention: dict[str, Any] = {}
    states: dict[str, dict[int, torch.Tensor]] = {"past_conv": {}, "past_ssm": {}}
    for slot in layer.slots:
        tensor: Any = given[slot.group]
        for key in slot.path:
            tensor = tensor[key]
        if slot.group == "past_key_values":
            attention["keys" if slot.path[-1] == "key" else "values"] = tensor
            attention |= {"seen": seen, "is_sliding": slot.window is not None}
        else:
            states[slot.group][state_index(slot.path)] = tensor
    if not layer.slots:
        return DummyLayer()
    if layer.kind == "hybrid":
        return GraphHybrid(attention, states["past_conv"], states["past_ssm"])
    if layer.kind == "linear":
        return GraphState(states["past_conv"], states["past_ssm"])
    return GraphAttention(**attention)


def state_index(path: tuple[str, ...]) -> int:
    """Which of a layer's states: ``("3",)`` is the first, ``("3", "1")`` the second."""
    return int(path[1]) if len(path) > 1 else 0
