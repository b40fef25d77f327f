# SPDX-License-Identifier: Apache-2.0
"""Runs a program with its cache inside under Transformers' own ``generate``: one text at a time.

A program in its runtime has one cache. The text that wrote to it last is the one that can go on; a text that begins
takes its place, and the earlier one is refused from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch

from ..errors import RunError, UsageError
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
        logits: torch.Tensor = self.steps.step({"tokens": tokens, "input_pos": place}, {})["logits"]
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
        self._most = next(axis.maximum for axis in exported.contract.axes if axis.label == "sequence")

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
            raise UsageError("the program takes no padding", advice="pass the text alone, without what is masked")
        cache = cache if cache is not None else self.new_cache()
        outputs = None
        for piece in torch.split(input_ids, self._most or input_ids.shape[1], dim=1):
            outputs = super().forward(piece, cache=cache)
        return outputs

    def new_cache(self) -> ProgramCache:
        """A cache in which nothing is."""
        return InnerCache(self.contract, self.steps, self._runner)


def _one_text() -> UsageError:
    return UsageError(
        "the program holds one text at a time: no batch of several, and no beams",
        advice="generate from one text after the other; the formats torch and onnx take batches",
    )
