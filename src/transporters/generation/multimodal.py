# SPDX-License-Identifier: Apache-2.0
"""A model that reads pictures as three graphs: `VisionEncoder`, `EmbedTokens`, and `EmbedsDecoder`, which steps.

The names are those that existing clients of ONNX have for them:

    vision_encoder   pixel_values, …                  image_features  (features, hidden)
    embed_tokens     input_ids      (batch, new)      inputs_embeds   (batch, new, hidden)
    decoder          inputs_embeds  (batch, new, hidden), and else as `transporters.generation.decoder` has it

The features of pictures go into the places of the picture's token, row by row, between the second graph and the third:
`transporters.generation.multimodal_loop` does it. Two kinds of decoders take more:

    token_type_ids           (batch, seen + new)      1 for a token of a picture, where the mask depends on it
    deepstack_visual_embeds.N  (batch, new, hidden)   added behind layer N, 0 where no picture is; the vision encoder
                                                      gives deepstack_features.N (features, hidden)

Which it is, is found by running the model: what its text model gets with a picture and does not get without one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import InputError
from ..exporters.tracing import preserved_state
from . import graph_cache
from .cache_contract import CacheContract
from .decoder import PLAIN, named_refusal, nested
from .encoder_decoder import without

#: Names of the two parts beside the decoder.
VISION, EMBEDDER = "vision_encoder", "embed_tokens"

#: Where configurations keep the id that stands for a feature of a picture.
_TOKENS = ("image_token_id", "image_token_index")

#: Features of inner layers, as Transformers' vision encoders name them.
INNER = "deepstack_features"

Nested = dict[str, Any]


def picture_token(config: Any) -> int | None:
    """The id that stands for a feature of a picture, or None."""
    found = (getattr(config, name, None) for name in _TOKENS)
    return next((token for token in found if isinstance(token, int)), None)


def reads_pictures(model: Any) -> bool:
    """Whether a model is a decoder alone that puts features of pictures among the embeddings of its tokens."""
    takes = inspect.signature(type(model).forward).parameters
    if getattr(model.config, "is_encoder_decoder", False) or not {"pixel_values", "inputs_embeds"} <= set(takes):
        return False
    return picture_token(model.config) is not None and hasattr(_owner(model), "get_image_features")


def _owner(model: Any) -> Any:
    """What has ``get_image_features``: the base model as ``forward`` calls it, or else the model itself."""
    base = getattr(model, "base_model", model)
    return base if hasattr(base, "get_image_features") else model


class _Part(torch.nn.Module):
    """Some modules of a model, under the names that they have in it.

    Args:
        model: The model; it is not changed.
        part: A module with the tree of those that are needed.
    """

    of_model: Any

    def __init__(self, model: Any, part: torch.nn.Module) -> None:
        super().__init__()
        self.training = model.training
        self.hold(part)
        self.__dict__["of_model"] = model  # beside the modules, which are the model's already
        self.config = model.config

    def hold(self, part: torch.nn.Module) -> None:
        """Have the modules and tensors of another module, and no others."""
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[table] = getattr(part, table)


class VisionEncoder(_Part):
    """What turns pictures into features.

    Args:
        model: A model that reads pictures, in evaluation mode.
        sample: Forward arguments of the whole model, to find its modules with; all modules are kept when None.
    """

    def __init__(self, model: Any, sample: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, model)
        if sample is not None:
            self.hold(called(model, lambda: self(**self.inputs(sample))))

    def forward(self, **inputs: Any) -> dict[str, Any]:
        """``image_features`` ``(features, hidden)`` of all pictures, and ``deepstack_features`` by layer alike."""
        found = _owner(self.of_model).get_image_features(**inputs)
        inner = getattr(found, INNER, None)
        pooled = found if isinstance(found, (torch.Tensor, list)) else getattr(found, "pooler_output", None)
        if pooled is None:
            name = type(self.of_model).__name__
            raise InputError(f"the features that {name} makes of pictures are in no known place", advice=PLAIN)
        more = {INNER: {str(at): _rows(features) for at, features in enumerate(inner)}} if inner else {}
        return {"image_features": _rows(pooled), **more}

    def inputs(self, sample: Mapping[str, Any]) -> Nested:
        """Those arguments of the whole model that are the vision encoder's."""
        names = inspect.signature(_owner(self.of_model).get_image_features).parameters
        return {n: value for n, value in sample.items() if n in names and isinstance(value, torch.Tensor)}


def _rows(features: Any) -> torch.Tensor:
    """Features ``(features, hidden)`` of pictures that may be apart."""
    if isinstance(features, torch.Tensor):
        return features.flatten(0, -2)
    return torch.cat([_rows(part) for part in features])


class EmbedTokens(_Part):
    """A model's table of embeddings.

    Args:
        model: A model that reads pictures, in evaluation mode.
    """

    def __init__(self, model: Any) -> None:
        table = model.get_input_embeddings()
        super().__init__(model, _alone(model, {id(table)}))
        self.__dict__["table"] = table
        token = picture_token(model.config)
        self.beyond = token is not None and token >= table.weight.shape[0]

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """``inputs_embeds`` ``(batch, new, hidden)``; a picture's token without an embedding gets the first one."""
        table = self.__dict__["table"]
        if self.beyond:
            input_ids = torch.where(input_ids < table.weight.shape[0], input_ids, 0)
        return {"inputs_embeds": table(input_ids)}


class EmbedsDecoder(_Part):
    """A text model with its head, from embeddings on, with its cache as plain tensors.

    Args:
        model: A model that reads pictures, in evaluation mode; it is not changed.
        contract: What it keeps, and what it gets of pictures.
    """

    def __init__(self, model: Any, contract: CacheContract) -> None:
        super().__init__(model, model)
        assert contract.pictures is not None, "a decoder of ids is another"
        self.contract, self.pictures = contract, contract.pictures
        self.takes_positions = "position_ids" in inspect.signature(type(model).forward).parameters

    def narrow_to(self, sample: Mapping[str, Any]) -> None:
        """Keep only the modules that a step needs.

        Args:
            sample: Inputs of a step.
        """
        text, table = self.of_model.get_decoder(), self.of_model.get_input_embeddings()
        through = {id(part) for part in self.of_model.modules() if any(inner is text for inner in _inside(part))}
        ran: set[int] = set()
        kept = called(self.of_model, lambda: self(**sample), through, ran)
        self.hold(kept if id(table) in ran else without(kept, table))

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        past_key_values: Nested | None = None,
        past_conv: Nested | None = None,
        past_ssm: Nested | None = None,
        **of_pictures: Any,
    ) -> dict[str, Any]:
        """One step.

        Args:
            inputs_embeds: ``(batch, new, hidden)``.
            attention_mask: ``(batch, seen + new)`` int64; 0 for padding, on the left.
            position_ids: ``(batch, new)`` or ``(3, batch, new)`` int64, for models that take them.
            past_key_values: As `Decoder` takes them, and the other two.
            past_conv: The same.
            past_ssm: The same.
            of_pictures: What `Pictures` says.

        Returns:
            As `Decoder`.
        """
        given = {"past_key_values": past_key_values, "past_conv": past_conv, "past_ssm": past_ssm}
        new = inputs_embeds.shape[1]
        seen = attention_mask.shape[1] - new
        cache = graph_cache.build(self.contract, given, seen)
        more = {"position_ids": position_ids} if position_ids is not None else {}
        if self.pictures.types is not None:
            more[self.pictures.types] = of_pictures[self.pictures.types]
        if all(self.contract.linear):
            attention_mask = attention_mask.narrow(1, seen, new)  # such models take the mask of the new tokens only
        more |= {"inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
        with self._inner(inputs_embeds, of_pictures):
            logits, tensors = graph_cache.step(self.of_model, self.contract, cache, **more)
        return {"logits": logits, **nested({slot.present: tensors[slot.name] for slot in self.contract.slots})}

    @contextmanager
    def _inner(self, embeds: torch.Tensor, of_pictures: Mapping[str, Any]) -> Iterator[None]:
        """Give the text model what is added behind its layers: in every place, for it is 0 where no picture is.

        It writes ``states[places] += features``. The numbers of all rows are such places, and no mask, whose count a
        graph would have to know.
        """
        inner = self.pictures.inner
        if inner is None:
            yield
            return

        def add(_: Any, args: Any, given: dict[str, Any]) -> Any:
            rows = torch.arange(embeds.shape[0], device=embeds.device)
            more: dict[str, Any] = {inner: list(of_pictures[inner].values()), str(self.pictures.places): rows}
            return args, {**given, **more}

        handle = self.of_model.get_decoder().register_forward_pre_hook(add, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def _inside(part: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """All modules of one, without itself."""
    return (inner for inner in part.modules() if inner is not part)


def called(
    model: torch.nn.Module, run: Callable[[], Any], through: Set[int] = frozenset(), ran: set[int] | None = None
) -> torch.nn.Module:
    """The tree of those modules that a run calls, each with all that is in it.

    Args:
        model: The whole.
        run: It uses the model.
        through: Ids of modules whose call says nothing, as all calls go through them.
        ran: Takes the ids of all modules that were called.
    """
    found: set[int] = set() if ran is None else ran
    handles = [part.register_forward_pre_hook(lambda part, _: found.add(id(part))) for part in model.modules()]
    try:
        with torch.no_grad(), preserved_state(model), named_refusal(type(model).__name__):
            run()
    finally:
        for handle in handles:
            handle.remove()
    return _alone(model, found - through)


def _alone(module: torch.nn.Module, wanted: set[int]) -> torch.nn.Module:
    """The tree down to some modules, which are whole; what is on the way keeps its own tensors and no other modules."""
    rest = torch.nn.Module()
    rest.training = module.training
    for table in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
        rest.__dict__[table] = getattr(module, table)
    for name, child in module._modules.items():
        if child is not None and id(child) in wanted:
            rest.add_module(name, child)
        elif child is not None and any(id(inner) in wanted for inner in child.modules()):
            rest.add_module(name, _alone(child, wanted))
    return rest
