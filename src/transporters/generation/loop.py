# SPDX-License-Identifier: Apache-2.0
"""Runs a decoder's program in its runtime, under Transformers' own ``generate``.

The cache stays where the runtime put it: a step hands the runtime's own buffers of the step before back to it, and only
ids, masks and logits cross. A layer with a window is cropped when it holds twice of what it needs, so that what a crop
copies is spread over a window of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..errors import UsageError
from .cache_contract import TOKENS, CacheContract
from .decoder import empty_state, nested, positions

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel


class PlainSteps:
    """Steps of a runtime that takes and gives tensors: what it gives is passed back as it is.

    Args:
        runner: The program in its runtime.
        outputs: The manifest's description of its outputs.
    """

    def __init__(self, runner: Any, outputs: list[dict[str, Any]]) -> None:
        self._runner = runner
        self._names = [entry["name"] for entry in outputs]

    def step(self, inputs: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> dict[str, Any]:
        """Every output by name, for inputs and state by name, in the program's order."""
        return dict(zip(self._names, self._runner.run(nested({**inputs, **state})), strict=True))

    @staticmethod
    def tensor(value: Any) -> torch.Tensor:
        """A buffer of the runtime as a tensor over the same memory."""
        found: torch.Tensor = value
        return found

    @staticmethod
    def buffer(tensor: torch.Tensor) -> Any:
        """A tensor as what the runtime takes."""
        return tensor


class ProgramCache(Cache):  # type: ignore[misc]  # Transformers has no types for mypy
    """The cache of a text that a program generates: the runtime's buffers, and the number of tokens seen.

    Args:
        contract: What each layer keeps.
        steps: The runtime.
    """

    is_compileable = False
    is_croppable = False
    is_initialized = True

    def __init__(self, contract: CacheContract, steps: Any) -> None:
        self.contract, self.steps = contract, steps
        self.layers: list[Any] = []
        self.buffers: dict[str, Any] = {}
        self.seen = 0
        self.prompt_from: int | None = None  # for pictures: tokens seen where a prompt begins that comes in pieces
        self.rope_deltas: Any = None  # and how far positions are behind the number of tokens

    def __len__(self) -> int:
        return len(self.contract.layers)

    @property
    def is_linear(self) -> list[bool]:
        """Per layer whether it counts no tokens."""
        return self.contract.linear

    def get_seq_length(self, layer_idx: int | None = 0) -> int:
        """Number of tokens seen."""
        return self.seen

    def advance(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run a step, keep its cache, and give its logits ``(batch, new, vocabulary)``."""
        batch, new = next(iter(inputs.values())).shape[:2]  # ids, or embeddings
        if not self.buffers:
            empty = empty_state(self.contract, batch)
            self.buffers = {name: self.steps.buffer(tensor) for name, tensor in empty.items()}
        outputs = self.steps.step(inputs, self.buffers)
        self.buffers = {slot.name: outputs[slot.present] for slot in self.contract.slots}
        self.seen += new
        self._crop_windows()
        logits: torch.Tensor = self.steps.tensor(outputs["logits"])
        return logits

    def _crop_windows(self) -> None:
        for slot in self.contract.slots:
            if slot.window is None:
                continue
            kept = slot.window - 1
            held = self.steps.tensor(self.buffers[slot.name])
            if held.shape[TOKENS] > 2 * kept:
                cropped = held[:, :, held.shape[TOKENS] - kept :].contiguous()
                self.buffers[slot.name] = self.steps.buffer(cropped)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Give each row the cache of row ``beam_idx[row]``."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order."""
        for name, value in self.buffers.items():
            self.buffers[name] = self.steps.buffer(self.steps.tensor(value).index_select(0, indices))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        for name, value in self.buffers.items():
            self.buffers[name] = self.steps.buffer(self.steps.tensor(value).repeat_interleave(repeats, dim=0))

    def reset(self) -> None:
        """Begin a new text."""
        self.buffers, self.seen = {}, 0


class Generator(GenerationMixin):  # type: ignore[misc]  # as above
    """A program where Transformers' ``generate`` expects a model.

    Args:
        exported: A decoder with its cache.
    """

    main_input_name = "input_ids"
    input_modalities = ("text",)
    base_model_prefix = ""
    _is_stateful = True  # no step can be undone, which assisted generation would need

    def __init__(self, exported: ExportedModel) -> None:
        self.config = exported.model_config
        self.generation_config = exported.generation_config or GenerationConfig.from_model_config(self.config)
        self.device = torch.device("cpu")
        self.contract = CacheContract.from_dict(exported.cache_contract or {"layers": []})
        self._inputs = [entry["name"] for entry in exported.inputs]
        logits = next(entry for entry in exported.outputs if entry["name"] == "logits")
        self.dtype = getattr(torch, logits["dtype"])
        runner = exported.runner
        self.steps = runner.steps() if hasattr(runner, "steps") else PlainSteps(runner, exported.outputs)

    def __call__(self, **inputs: Any) -> Any:
        """`forward`."""
        return self.forward(**inputs)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: ProgramCache | None = None,
        **_: Any,
    ) -> Any:
        """One step: ``logits`` ``(batch, new, vocabulary)`` and the cache, which is advanced in place."""
        cache = cache if cache is not None else self.new_cache()
        mask = self._whole_mask(input_ids, attention_mask, cache)
        given = {"input_ids": input_ids, "attention_mask": mask}
        if "position_ids" in self._inputs:
            given["position_ids"] = position_ids if position_ids is not None else positions(mask, input_ids.shape[1])
        logits = cache.advance({name: tensor.contiguous() for name, tensor in given.items()})
        return CausalLMOutputWithPast(logits=logits, cache=cache)

    @staticmethod
    def _whole_mask(ids: torch.Tensor, mask: torch.Tensor | None, cache: ProgramCache) -> torch.Tensor:
        """The mask ``(batch, seen + new)`` of a step; tokens that it does not cover were real ones."""
        batch, new = ids.shape
        missing = cache.seen + new - (mask.shape[1] if mask is not None else 0)
        if missing:
            rest = [mask] if mask is not None else []
            mask = torch.cat([ids.new_ones(batch, missing), *rest], dim=1)
        assert mask is not None, "a step without a mask has new tokens, which are missing from it"
        return mask.to(ids.dtype)

    def new_cache(self) -> ProgramCache:
        """A cache in which nothing is."""
        return ProgramCache(self.contract, self.steps)

    def is_remote_code(self) -> bool:
        """False: the model's class is not even loaded."""
        return False

    def can_generate(self) -> bool:
        """True."""
        return True

    def get_experts_implementation(self) -> dict[str, str]:
        """None: how experts are computed is the program's."""
        return {}

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> None:
        given = model_kwargs.get("cache")
        if given is not None and not isinstance(given, ProgramCache):
            raise UsageError(
                f"a {type(given).__name__} is no cache of this program",
                advice="pass what `generate(…, return_dict_in_generate=True).cache` gave",
            )
        generation_config.use_cache = True
        model_kwargs["cache"] = given if given is not None else self.new_cache()
        model_kwargs["cache"]._is_user_defined = given is not None
