# SPDX-License-Identifier: Apache-2.0
"""Runs the three programs of a model that reads pictures in their runtime, under Transformers' own ``generate``.

The vision encoder runs once for a prompt. Its features are put into the places of their token, and go with the prompt's
embeddings into the first step of the decoder; the steps after it have embeddings of ids only. What the model's class
does around ``forward`` (positions in three axes, types of tokens) is done by that class itself: an instance without
weights stands in for the model.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..errors import InputError, UsageError
from ..trees import containers
from .decoder import positions
from .loop import Generator, ProgramCache
from .multimodal import EMBEDDER, INNER, VISION
from .multimodal_contract import among

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: Begins the names of what pictures give to a prompt, among the arguments that `generate` keeps for its steps.
_OF_PICTURES = "of_pictures."


class PictureGenerator(Generator):
    """Three programs where Transformers' ``generate`` expects a model that reads pictures.

    Args:
        exported: The decoder, with the vision encoder and the embeddings among its parts.
    """

    def __init__(self, exported: ExportedModel) -> None:
        super().__init__(exported)
        assert self.contract.pictures is not None, "`generator` says so"
        self.pictures = self.contract.pictures
        self._vision, self._embedder = exported.parts[VISION], exported.parts[EMBEDDER]
        self.host = _without_weights(exported)
        self._axes = max(len(entry["shape"]) for entry in exported.inputs if entry["name"] == "position_ids") - 2
        signature = inspect.signature(type(self.host).forward)

        def forward(**inputs: Any) -> Any:
            return self.step(**inputs)

        # `generate` reads off it what may be given.
        forward.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
        self.forward = forward  # type: ignore[assignment, method-assign]

    def prepare_inputs_for_generation(self, *args: Any, is_first_iteration: bool | None = False, **kwargs: Any) -> Any:
        """As the model's class does; what pictures gave is for the prompt only."""
        if not is_first_iteration:
            kwargs = {name: value for name, value in kwargs.items() if not name.startswith(_OF_PICTURES)}
        return self.host.prepare_inputs_for_generation(*args, is_first_iteration=is_first_iteration, **kwargs)

    def _prepare_position_ids_for_generation(self, inputs_tensor: torch.Tensor, model_kwargs: dict[str, Any]) -> Any:
        cache = model_kwargs.get("cache")
        base = self.host.base_model
        if hasattr(base, "rope_deltas"):  # how far positions are behind the number of tokens, by the pictures so far
            base.rope_deltas = cache.rope_deltas if cache is not None else None
        return self.host._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)

    def _expand_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        return self.host._expand_inputs_for_generation(*args, **kwargs)

    def _maybe_prepare_encoder_kwargs_for_generation(
        self, inputs_tensor: torch.Tensor, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> dict[str, Any]:
        """Run the vision encoder, and put what it gives where it belongs in the new tokens of the prompt."""
        takes = {entry["name"].split(".")[0] for entry in self._vision.inputs} & {*self._vision.sample_inputs}
        given = {name: model_kwargs.pop(name) for name in takes if model_kwargs.get(name) is not None}
        if "pixel_values" not in given:
            return model_kwargs
        new = inputs_tensor[:, self._seen_of(inputs_tensor, model_kwargs) :]
        places = new == self.pictures.token
        features = self._vision(**given)
        zeros = torch.zeros(*new.shape, features["image_features"].shape[-1], dtype=self.dtype)
        found = {"places": places, "embeds": self._among(zeros, places, features["image_features"])}
        for at, rows in (features.get(INNER) or {}).items():
            if self.pictures.inner is not None:
                found[f"{self.pictures.inner}.{at}"] = self._among(zeros, places, rows)
        return {**model_kwargs, **{f"{_OF_PICTURES}{name}": value for name, value in found.items()}}

    @staticmethod
    def _among(zeros: torch.Tensor, places: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        try:
            return among(zeros, places, features)
        except InputError as error:
            raise UsageError(error.message, advice=error.advice) from error

    @staticmethod
    def _seen_of(ids: torch.Tensor, model_kwargs: dict[str, Any]) -> int:
        """How many of the given ids a cache has seen: all of the text may be given again, or what is new in it."""
        cache, mask = model_kwargs.get("cache"), model_kwargs.get("attention_mask")
        seen = cache.get_seq_length() if cache is not None else 0
        return seen if mask is None or mask.shape[1] == ids.shape[1] else 0

    def step(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: ProgramCache | None = None,
        **more: Any,
    ) -> Any:
        """One step: ``logits`` ``(batch, new, vocabulary)``, and the cache, advanced in place.

        Args:
            input_ids: ``(batch, new)`` int64.
            attention_mask: ``(batch, seen + new)``; all tokens are real ones when None.
            position_ids: As the model's class made them.
            cache: What the steps before left.
            more: What pictures gave to the prompt, and types of tokens.
        """
        cache = cache if cache is not None else self.new_cache()
        mask = self._whole_mask(input_ids, attention_mask, cache)
        new = input_ids.shape[1]
        embeds = self._embedder(input_ids=input_ids)["inputs_embeds"]
        prompt = self._of_step(more, cache, new)
        if prompt:
            embeds = torch.where(prompt["places"][..., None], prompt["embeds"], embeds)
        given = {"inputs_embeds": embeds, "attention_mask": mask}
        if "position_ids" in self._inputs:
            given["position_ids"] = self._positions(position_ids, mask, new)
        if self.pictures.types is not None:
            given[self.pictures.types] = self._types(more.get(self.pictures.types), mask, new)
        for at in range(self.pictures.layers if self.pictures.inner is not None else 0):
            name = f"{self.pictures.inner}.{at}"
            given[name] = prompt[name] if prompt else torch.zeros_like(embeds)
        cache.rope_deltas = getattr(self.host.base_model, "rope_deltas", None)
        ordered = {name: given[name].contiguous() for name in self._inputs if name in given}
        return CausalLMOutputWithPast(logits=cache.advance(ordered), cache=cache)

    @staticmethod
    def _of_step(more: dict[str, Any], cache: ProgramCache, new: int) -> dict[str, torch.Tensor]:
        """What pictures give to the new tokens of a step, which may be a piece of the prompt; empty after it."""
        given = {n.removeprefix(_OF_PICTURES): value for n, value in more.items() if n.startswith(_OF_PICTURES)}
        if not given:
            cache.prompt_from = None
            return {}
        if cache.prompt_from is None:
            cache.prompt_from = cache.seen
        first = cache.seen - cache.prompt_from
        return {name: value[:, first : first + new] for name, value in given.items()}

    def _positions(self, position_ids: torch.Tensor | None, mask: torch.Tensor, new: int) -> torch.Tensor:
        found = position_ids if position_ids is not None else positions(mask, new)
        if not self._axes:
            return found
        found = found if found.ndim == 3 else found[None]
        return found[-3:].expand(3, -1, -1)

    @staticmethod
    def _types(types: torch.Tensor | None, mask: torch.Tensor, new: int) -> torch.Tensor:
        """Types of all tokens; those that are not given are text."""
        found = torch.zeros_like(mask)
        if types is not None:
            whole = types.shape[1] == mask.shape[1]
            found[:, 0 if whole else mask.shape[1] - new :] = types if whole else types[:, -new:]
        return found


def _without_weights(exported: ExportedModel) -> Any:
    """An instance of the model's class that has modules and no weights."""
    model_class = containers.find_type(exported.model_class)
    with torch.device("meta"):
        return model_class(copy.deepcopy(exported.model_config)).eval()
