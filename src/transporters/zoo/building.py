# SPDX-License-Identifier: Apache-2.0
"""Tiny models by name, and what to run them with."""

from __future__ import annotations

import zlib
from typing import Any

from ..inputs.samples import sample_inputs
from . import classes, defaults, families, parts, weights
from .shrinking import tiny_config


def build(name: str, config: Any = None) -> Any:
    """A tiny random ``PreTrainedModel`` of this class, in evaluation mode; the same weights every time.

    A class that only works inside of another model is taken out of that one.

    Args:
        name: Name of a model class, as in :func:`~transporters.zoo.classes.classes`.
        config: A config of the class (for a part, of its whole), of any size, which is left alone; its defaults when
            None.

    Raises:
        KeyError: If there is no such class.
    """
    if name in parts.WHOLES:
        return parts.inside(build(parts.WHOLES[name], config), name)
    entry = classes.find(name)
    tiny = tiny_config(defaults.default_config(entry.config_class, name) if config is None else config)
    text = tiny.get_text_config(decoder=True)
    if getattr(text, "pad_token_id", 0) is None:
        text.pad_token_id = 0  # without it, a head that classifies at the last token takes one row only
    families.prepare(name, tiny)
    with weights.seeded(zlib.crc32(name.encode())):
        model = entry.load()(tiny)
        weights.perturb(model)
    return model.eval()


def build_with_inputs(name: str, *, batch: int = 2, config: Any = None) -> tuple[Any, dict[str, Any]]:
    """A tiny model as :func:`build` makes it, and valid inputs: sampled, or what its whole passes to a part.

    Args:
        name: Name of a model class.
        batch: Number of rows.
        config: As in :func:`build`.

    Raises:
        KeyError: If there is no such class.
        InputError: If an argument cannot be made.
    """
    if name not in parts.WHOLES:
        model = build(name, config)
        return model, sample_inputs(model, batch=batch)
    whole, inputs = build_with_inputs(parts.WHOLES[name], batch=batch, config=config)
    part = parts.inside(whole, name)
    return part, parts.passed(whole, inputs, part)
