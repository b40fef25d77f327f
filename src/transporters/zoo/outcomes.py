# SPDX-License-Identifier: Apache-2.0
"""Does a class build, take its sample and give finite outputs?"""

from __future__ import annotations

from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from ..errors import InputError
from ..trees import pytrees
from .building import build_with_inputs

#: A tiny model has fewer parameters than this.
MOST_PARAMETERS = 2_000_000

#: What a class that cannot be built, sampled or run raises.
TROUBLES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    InputError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)


def outcome(name: str) -> str:
    """Why a class does not work, in one line; empty when it does.

    Args:
        name: Name of a model class.
    """
    try:
        model, inputs = build_with_inputs(name)
        count = sum(parameter.numel() for parameter in model.parameters())
        if count >= MOST_PARAMETERS:
            return f"It has {count} parameters."
        with torch.no_grad():
            return _fault(model(**inputs))
    except TROUBLES as error:
        return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def _fault(outputs: Any) -> str:
    """What is wrong with outputs: a NaN, or nothing finite at all (a mask of infinities is no fault)."""
    tensors = [(name, leaf) for name, leaf in pytrees.named_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    for name, leaf in tensors:
        if leaf.is_floating_point() and leaf.numel() and (leaf.isnan().any() or not leaf.isfinite().any()):
            return f"The output {name} is not finite."
    return "" if tensors else "There are no outputs."
