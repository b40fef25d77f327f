# SPDX-License-Identifier: Apache-2.0
"""Runs a program with its cache inside under Transformers' own ``generate``: one text at a time.

A program in its runtime has one cache. The text that wrote to it last is the one that can go on; a text that begins
takes its place, and the earlier one is refused from then on. Behind an encoder a text begins with a run of the
encoder's program, and each step gets what that gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput

from ..errors import RunError, UsageError
from ..trees import pytrees
from .cache_contract import TOKENS
from .cross_loop import CrossGenerator, ProgramEncoder
from .loop import Generator, ProgramCache

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: A program in its runtime, to the text that is in it.
_TEXTS: WeakKeyDictionary[Any, ref[InnerCache]] = WeakKeyDictionary()


class InnerCache(ProgramCache):
    """The cache of a text that lies in the program: the number of tokens seen.

    Args:
        contract: What each layer keeps.
        steps: The runtime.
        runner: The program in it.
    """

    def __init__(self, contract: Any, steps: Any, runner: Any) -> None:
        super().__init__(contract, steps)
        self._runner = runner

    def advance(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run a step, and give the logits ``(1, 1, vocabulary)`` of its last token.

        Raises:
            UsageError: Another text was begun in the program since.
            RunError: The program has no room for the step's tokens.
        """
        tokens = inputs["input_ids"]
        most = self.contract.context
        if most is not None and self.seen + tokens.shape[1] > most:
            raise RunError(
                f"the text has {self.seen + tokens.shape[1]} tokens, the program's cache holds {most}",
                backend="executorch",
                advice=f"export again with max_context={self.seen + tokens.shape[1]} or more",
            )
        if not self.seen:
            _TEXTS[self._runner] = ref(self)
        elif (held := _TEXTS.get(self._runner)) is None or held() is not self:
            raise UsageError(
                "the program holds one text at a time, and another one was begun in it",
                advice="generate from the whole text, without cache=",
            )
        place = tokens.new_tensor([self.seen])
        encoded = {name: tensor for name, tensor in inputs.items() if name != "input_ids"}
        logits: torch.Tensor = self.steps.step({"tokens": tokens, "input_pos": place, **encoded}, {})["logits"]
        self.seen += tokens.shape[1]
        return logits

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refused, unless it keeps the one row that there is."""
        if indices.tolist() != [0]:
            raise _one_text()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused, as above."""
        if repeats != 1:
            raise _one_text()


class InnerGenerator(Generator):
    """A program with its cache inside where Transformers' ``generate`` expects a model.

    Args:
        exported: Such a program.
    """

    def __init__(self, exported: ExportedModel) -> None:
        super().__init__(exported)
        self._runner = exported.runner
        self._most = _most(exported)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: ProgramCache | None = None,
        **more: Any,
    ) -> Any:
        """One step, in as many runs as it takes: ``logits`` ``(1, 1, vocabulary)``, and the cache, advanced in place.

        Raises:
            UsageError: There are several texts, or one with padding.
        """
        if input_ids.shape[0] != 1:
            raise _one_text()
        if attention_mask is not None and not bool(attention_mask.all()):
            raise _no_padding()
        cache = cache if cache is not None else self.new_cache()
        outputs = None
        for piece in torch.split(input_ids, self._most or input_ids.shape[1], dim=1):
            outputs = super().forward(piece, cache=cache)
        return outputs

    def new_cache(self) -> ProgramCache:
        """A cache in which nothing is."""
        return InnerCache(self.contract, self.steps, self._runner)


class ProgramCrossStates(ProgramEncoder):
    """An encoder's program, with what the decoder's layers make of its states.

    Args:
        exported: The program.
    """

    def __call__(self, **inputs: Any) -> ModelOutput:
        """Keys and values ``(1, heads, encoded, head_dim)``, by the names under which a step takes them.

        Raises:
            UsageError: There are several texts.
        """
        if inputs[self.main_input_name].shape[0] != 1:
            raise _one_text()
        present = self.outputs(inputs)["present"]
        return ModelOutput(dict(pytrees.named_leaves({"past_key_values": present})))


class InnerCrossGenerator(CrossGenerator):
    """An encoder, and a decoder with its cache inside, where Transformers' ``generate`` expects a model.

    Args:
        exported: The decoder, with the encoder among its parts.
    """

    encoder_class = ProgramCrossStates

    def __init__(self, exported: ExportedModel) -> None:
        super().__init__(exported)
        self._runner = exported.runner
        self._most = _most(exported)

    def forward(  # type: ignore[override]  # as there
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: ModelOutput | None = None,
        cache: ProgramCache | None = None,
        **_: Any,
    ) -> Any:
        """One step, in as many runs as it takes: ``logits`` ``(1, 1, vocabulary)``, and the cache, advanced in place.

        Raises:
            UsageError: There are several texts, or one whose beginning is padding.
        """
        assert encoder_outputs is not None, "`generate` gives them"
        assert decoder_input_ids is not None, "`generate` gives them"
        if decoder_input_ids.shape[0] != 1:
            raise _one_text()
        if decoder_attention_mask is not None and not bool(decoder_attention_mask.all()):
            raise _no_padding()
        cache = cache if cache is not None else self.new_cache()
        encoded = {**self._encoder_mask(attention_mask, 1, encoder_outputs[0].shape[TOKENS]), **encoder_outputs}
        logits = None
        for piece in torch.split(decoder_input_ids, self._most or decoder_input_ids.shape[1], dim=1):
            logits = cache.advance({"input_ids": piece, **encoded})
        return Seq2SeqLMOutput(logits=logits, cache=cache)

    def new_cache(self) -> ProgramCache:
        """A cache in which nothing is."""
        return InnerCache(self.contract, self.steps, self._runner)


def _most(exported: ExportedModel) -> int | None:
    """The most tokens of a step."""
    found: int | None = next(axis.maximum for axis in exported.contract.axes if axis.label == "sequence")
    return found


def _no_padding() -> UsageError:
    return UsageError("the program takes no padding", advice="pass the text alone, without what is masked")


def _one_text() -> UsageError:
    return UsageError(
        "the program holds one text at a time: no batch of several, and no beams",
        advice="generate from one text after the other; the formats torch and onnx take batches",
    )
