# SPDX-License-Identifier: Apache-2.0
"""An encoder with a decoder as two graphs: `Encoder`, which runs once for a text, and `CrossDecoder`, which steps.

As in `transporters.generation.decoder` one graph of the decoder does every step. The names are those that existing
clients of ONNX have for it:

    input_ids                (batch, new)                        logits   (batch, new, vocabulary)
    encoder_attention_mask   (batch, encoded)                    where the decoder takes one
    encoder_hidden_states    (batch, encoded, hidden)
    past_key_values.N.decoder.key / .value                       present.N.decoder.key / .value
    past_key_values.N.encoder.key / .value                       present.N.encoder.key / .value

**Attention to the encoder.** Its keys and values are computed in a text's first step and kept. Eager asks in Python
whether they are there; the graph asks nothing. It takes ``kept`` of them, which is 0 or ``encoded``, projects the last
``encoded - kept`` states, and appends: the result is always ``encoded`` long, and a later step projects nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ..errors import InputError
from ..exporters.tracing import preserved_state
from . import graph_cache
from .cache_contract import CROSS, TOKENS, CacheContract, LayerCache, Slot
from .decoder import PLAIN, layer_cache, named_refusal, nested

Nested = dict[str, Any]


@dataclass
class EncoderStates(BaseModelOutput):  # type: ignore[misc]  # Transformers has no types for mypy
    """An encoder's output as every decoder can read it: those with experts ask for the encoder's routing as well."""

    router_logits: None = None


class Encoder(torch.nn.Module):
    """A model's encoder, whose weights keep the names that they have in the model.

    Args:
        model: An encoder with a decoder, in evaluation mode; it is not changed.

    Raises:
        InputError: It has no encoder of its own.
    """

    of_model: Any

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.training = model.training
        part = model.get_encoder()
        named = model.named_modules(remove_duplicate=False)
        path = next((name for name, module in named if module is part), "")
        if not path:
            raise InputError(f"{type(model).__name__} has no encoder among its parts", advice=PLAIN)
        place: torch.nn.Module = self
        *outer, last = path.split(".")
        for name in outer:
            place.add_module(name, torch.nn.Module().eval())
            place = place.get_submodule(name)
        place.add_module(last, part)
        self.__dict__ |= {"of_model": model, "encoder": part}  # beside the modules
        self.config = model.config

    def forward(self, **inputs: Any) -> dict[str, torch.Tensor]:
        """``last_hidden_state`` ``(batch, encoded, hidden)`` for the encoder's own arguments."""
        return {"last_hidden_state": self.__dict__["encoder"](**inputs).last_hidden_state}

    def inputs(self, sample: Mapping[str, Any]) -> Nested:
        """Those arguments of the whole model that are the encoder's."""
        names = inspect.signature(self.__dict__["encoder"].forward).parameters
        return {name: value for name, value in sample.items() if name in names and not name.startswith("decoder_")}


class CrossDecoder(torch.nn.Module):
    """All of a model but its encoder, with its cache as plain tensors; weights keep their names.

    Args:
        model: An encoder with a decoder, in evaluation mode; it is not changed.
        contract: What the decoder keeps.
    """

    of_model: Any

    def __init__(self, model: Any, contract: CacheContract) -> None:
        super().__init__()
        self.training = model.training
        rest = without(model, model.get_encoder())
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[part] = getattr(rest, part)
        self.__dict__["of_model"] = model
        self.contract = contract
        self.config = model.config
        self.takes_mask = "encoder_attention_mask" in inspect.signature(model.get_decoder().forward).parameters

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        past_key_values: Nested | None = None,
    ) -> dict[str, Any]:
        """One step.

        Args:
            input_ids: ``(batch, new)`` int64.
            encoder_attention_mask: ``(batch, encoded)`` int64; 0 for padding.
            encoder_hidden_states: ``(batch, encoded, hidden)``.
            past_key_values: Layer to ``decoder`` and ``encoder`` to ``key`` and ``value``, each
                ``(batch, heads, cached, head_dim)``.

        Returns:
            ``logits`` ``(batch, new, vocabulary)``, and ``present`` for the next step.
        """
        assert encoder_hidden_states is not None, "optional for its place in the signature only"
        assert past_key_values is not None, "optional for its place in the signature only"
        first = past_key_values[next(iter(past_key_values))]
        seen, kept = first["decoder"]["key"].shape[TOKENS], first["encoder"]["key"].shape[TOKENS]
        encoded = encoder_hidden_states.shape[1]
        is_whole = not torch.compiler.is_exporting() and kept == encoded  # eager's own way, to compare with
        if not is_whole:
            encoder_hidden_states = encoder_hidden_states.narrow(1, kept, encoded - kept)
        cache = graph_cache.build_cross(self.contract, {"past_key_values": past_key_values}, seen, is_whole)
        more = {} if encoder_attention_mask is None else {"attention_mask": encoder_attention_mask}
        outputs = self.of_model(
            encoder_outputs=EncoderStates(last_hidden_state=encoder_hidden_states),
            decoder_input_ids=input_ids,
            cache=cache,
            use_cache=True,
            **more,
        )
        tensors = graph_cache.read(self.contract, cache)
        return {"logits": outputs.logits, **nested({slot.present: tensors[slot.name] for slot in self.contract.slots})}


def cross_contract(encoder: Encoder, inputs: Mapping[str, Any]) -> CacheContract:
    """Run the model and read off its cache what each layer keeps.

    Args:
        encoder: The model's encoder.
        inputs: Forward arguments of the whole model.

    Raises:
        InputError: The model has no cache, or one of a kind that is not known.
    """
    model = encoder.of_model
    name = type(model).__name__
    given = {key: value for key, value in inputs.items() if key == "attention_mask" or key.startswith("decoder_")}
    with torch.no_grad(), preserved_state(model), named_refusal(name):
        states = EncoderStates(**encoder(**encoder.inputs(inputs)))
        cache = model(encoder_outputs=states, **given, use_cache=True).get("cache")
    if not isinstance(cache, EncoderDecoderCache):
        kind = f"keeps its state in a {type(cache).__name__}" if cache is not None else "gives no cache back"
        raise InputError(f"{name} {kind}, no known kind of cache of a decoder behind an encoder", advice=PLAIN)
    layers: list[LayerCache] = []
    for index, pair in enumerate(zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers)):
        own, cross = (layer_cache((str(index), at), layer, name) for at, layer in zip(("decoder", "encoder"), pair))
        if own.kind != "full" or cross.kind != "full":
            raise InputError(
                f"layer {index} of {name} keeps a {own.kind} and a {cross.kind} cache, not all of its own keys and "
                "values and all of the encoder's states",
                advice=PLAIN,
            )
        layers += [own, LayerCache("cross", tuple(map(_of_encoder, cross.slots)))]
    return CacheContract(tuple(layers))


def mask_of_states(name: str, given: Mapping[str, Any], encoded: int) -> torch.Tensor:
    """The mask ``(batch, encoded)`` of an encoder's states: that of its inputs, or ones where it takes none.

    Args:
        name: The model's class, for the error.
        given: The encoder's arguments.
        encoded: How many states it gives for them.

    Raises:
        InputError: There are more or fewer states than inputs.
    """
    mask: torch.Tensor | None = given.get("attention_mask")
    if mask is None:
        first = next(iter(given.values()))
        return torch.ones(first.shape[0], encoded, dtype=torch.int64, device=first.device)
    if mask.shape[1] != encoded:
        raise InputError(
            f"the encoder of {name} gives {encoded} states for {mask.shape[1]} inputs, so its mask is none for the "
            "decoder",
            advice=PLAIN,
        )
    return mask


def _of_encoder(slot: Slot) -> Slot:
    batch, heads, _, width = slot.shape
    return Slot(slot.group, slot.path, slot.dtype, (batch, heads, CROSS, width))


def without(module: torch.nn.Module, part: torch.nn.Module) -> torch.nn.Module:
    """The module without a part that may be deep inside; what has no share in it is the module's own."""
    if all(inner is not part for inner in module.modules()):
        return module
    rest = torch.nn.Module()
    rest.training = module.training
    for table in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
        rest.__dict__[table] = getattr(module, table)
    for name, child in module._modules.items():
        if child is not None and child is not part:
            rest.add_module(name, without(child, part))
    return rest
