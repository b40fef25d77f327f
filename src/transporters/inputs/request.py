# SPDX-License-Identifier: Apache-2.0
"""What a sample is made for: one model, one batch size, one seed, and the way to look things up in its config."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..errors import InputError

#: Names under which configs keep the config of a part, by modality.
TEXT_PARTS = ("text_config", "thinker_config", "llm_config", "language_config", "decoder", "text_encoder", "encoder")
VISION_PARTS = ("vision_config", "image_config", "vit_config", "vision_encoder_config", "encoder", "backbone_config")
AUDIO_PARTS = ("audio_config", "audio_encoder_config", "encoder_config", "speech_config", "encoder", "audio_encoder")


@dataclass(eq=False)
class SampleRequest:
    """A model and the wishes for its sample inputs.

    Attributes:
        model: The ``PreTrainedModel``.
        tokenizer: Its tokenizer, or None.
        processor: Its processor, image processor or feature extractor, or None.
        batch: Number of rows.
        seed: Same seed, same sample.
        length: Number of text tokens in a row, or None for a length that suits.
    """

    model: Any
    tokenizer: Any | None = None
    processor: Any | None = None
    batch: int = 2
    seed: int = 0
    length: int | None = None

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The named parameters of the model's ``forward``, without ``*args`` and ``**kwargs``."""
        found = _named_parameters(self.model)
        if not found:  # a wrapper that passes on everything
            children = dict(self.model.named_children())
            inner = children.get("decoder") or (next(iter(children.values())) if len(children) == 1 else None)
            return {} if inner is None else _named_parameters(inner)
        return found

    @cached_property
    def generator(self) -> torch.Generator:
        """The source of everything random in this sample."""
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def main_inputs(self) -> tuple[str, ...]:
        """The model's ``main_input_name``, always as a tuple."""
        names = getattr(self.model, "main_input_name", "input_ids")
        return (names,) if isinstance(names, str) else tuple(names)

    @property
    def config(self) -> Any:
        """The model's config."""
        return self.model.config

    @property
    def class_name(self) -> str:
        """Name of the model's class."""
        return type(self.model).__name__

    @property
    def dtype(self) -> torch.dtype:
        """The model's floating dtype: that of its first parameter."""
        found = self.model.dtype
        assert isinstance(found, torch.dtype)
        return found

    def takes(self, *names: str) -> bool:
        """Whether ``forward`` has every one of these parameters."""
        return all(name in self.parameters for name in names)

    def needs(self, name: str) -> bool:
        """Whether ``forward`` cannot be called sensibly without this one: it has no default, or is the main input."""
        return name in self.parameters and (self.requires(name) or name in self.main_inputs)

    def requires(self, name: str) -> bool:
        """Whether ``forward`` has this parameter, without a default."""
        return name in self.parameters and self.parameters[name].default is inspect.Parameter.empty

    def find(self, *names: str, parts: tuple[str, ...] = (), default: Any = None) -> Any:
        """The first of these attributes that the config has (not None).

        The parts named are looked at first, in their order, then the config itself, then all its other parts. A name
        earlier in ``names`` wins only inside one config.
        """
        for config in self._configs(parts):
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
        return default

    def part(self, parts: tuple[str, ...]) -> Any | None:
        """The first of these parts that the config has."""
        return next((found for name in parts if _is_config(found := getattr(self.config, name, None))), None)

    def all_configs(self) -> list[Any]:
        """The config and every config inside of it, outermost first."""
        return list(_walk(self.config))

    def random_ints(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Seeded int64 values in ``[low, high)``."""
        return torch.randint(low, high, shape, generator=self.generator)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Seeded float32 values in ``[0, 1)``."""
        return torch.rand(shape, generator=self.generator)

    def impossible(self, argument: str, why: str) -> InputError:
        """The error for an argument that cannot be made."""
        return InputError(
            f"No sample for the argument {argument!r} of {self.class_name}: {why}.",
            advice=f'Pass sample inputs by hand ({{"{argument}": tensor, …}}), or teach them once with '
            f'@register_sample("{self.class_name}").',
        )

    def _configs(self, parts: tuple[str, ...]) -> Iterator[Any]:
        named = [found for name in parts if _is_config(found := getattr(self.config, name, None))]
        seen: set[int] = set()
        for config in (*(inner for part in named for inner in _walk(part)), *_walk(self.config)):
            if id(config) not in seen:
                seen.add(id(config))
                yield config


def _named_parameters(module: Any) -> dict[str, inspect.Parameter]:
    bundles = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(module.forward).parameters
    return {name: parameter for name, parameter in found.items() if parameter.kind not in bundles}


def _walk(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if _is_config(value):
            yield from _walk(value)


def _is_config(value: Any) -> bool:
    from transformers import PretrainedConfig

    return isinstance(value, PretrainedConfig)
