# SPDX-License-Identifier: Apache-2.0
"""Runs an encoder's and a decoder's program in their runtime, under Transformers' own ``generate``.

The encoder runs once for a text. Its states go into each step of the decoder, in the same buffer; the keys and values
that the first step made of them stay in the runtime's buffers, as all of the decoder's cache does.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers.modeling_outputs import BaseModelOutput, ModelOutput, Seq2SeqLMOutput

from .loop import Generator, ProgramCache

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel


class ProgramEncoder:
    """An encoder's program where Transformers' ``generate`` expects the encoder of a model.

    Args:
        exported: The program.
    """

    def __init__(self, exported: ExportedModel) -> None:
        self._exported = exported
        self.names = list(exported.sample_inputs)
        self.main_input_name = self.names[0]
        arguments = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in self.names]

        def forward(**inputs: Any) -> ModelOutput:
            return self(**inputs)

        forward.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]  # `generate` reads it
        self.forward = forward

    def __call__(self, **inputs: Any) -> ModelOutput:
        """``last_hidden_state`` ``(batch, encoded, hidden)`` for the encoder's arguments; others are left out."""
        return BaseModelOutput(last_hidden_state=self.outputs(inputs)["last_hidden_state"])

    def outputs(self, inputs: Mapping[str, Any]) -> Any:
        """All that the program gives."""
        given = {name: inputs[name] for name in self.names if inputs.get(name) is not None}
        if "attention_mask" in self.names and "attention_mask" not in given:  # every token is a real one
            given["attention_mask"] = torch.ones_like(given["input_ids"])
        return self._exported(**given)


class CrossGenerator(Generator):
    """Two programs where Transformers' ``generate`` expects an encoder with a decoder.

    Args:
        exported: The decoder, with the encoder among its parts.
    """

    encoder_class: ClassVar[type[ProgramEncoder]] = ProgramEncoder

    def __init__(self, exported: ExportedModel) -> None:
        super().__init__(exported)
        self.encoder = self.encoder_class(exported.parts["encoder"])
        self.main_input_name = self.encoder.main_input_name
        dtypes = {entry["name"]: entry["dtype"] for entry in exported.inputs}
        self._mask_dtype = getattr(torch, dtypes.get("encoder_attention_mask", "int64"))
        self.input_modalities = ("text",) if self.main_input_name == "input_ids" else ("audio",)

    def get_encoder(self, *_: Any, **__: Any) -> ProgramEncoder:
        """The encoder's program."""
        return self.encoder

    def forward(  # type: ignore[override]  # the arguments of another kind of model
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: ModelOutput | None = None,
        cache: ProgramCache | None = None,
        **_: Any,
    ) -> Any:
        """One step of the decoder: ``logits`` ``(batch, new, vocabulary)``, and the cache, advanced in place."""
        assert encoder_outputs is not None, "`generate` gives them"
        assert decoder_input_ids is not None, "`generate` gives them"
        cache = cache if cache is not None else self.new_cache()
        states = encoder_outputs[0]
        given = {"input_ids": decoder_input_ids, "encoder_hidden_states": states}
        given |= self._encoder_mask(attention_mask, states.shape[0], states.shape[1])
        ordered = {name: given[name].contiguous() for name in self._inputs if name in given}
        return Seq2SeqLMOutput(logits=cache.advance(ordered), cache=cache)

    def _encoder_mask(self, mask: torch.Tensor | None, rows: int, encoded: int) -> dict[str, torch.Tensor]:
        """The mask ``(rows, encoded)`` of the encoder's states, where the decoder takes one."""
        if "encoder_attention_mask" not in self._inputs:
            return {}
        mask = mask if mask is not None else torch.ones(rows, encoded)
        return {"encoder_attention_mask": mask.to(self._mask_dtype)}
