# SPDX-License-Identifier: Apache-2.0
"""Operations that must be right in ONNX Runtime, at sizes that they were not traced with; a file per family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from transporters.exporters.registry import Repro

Make = Callable[[], torch.Tensor]

#: Name of the case to what is exported and run.
CASES: dict[str, Repro] = {}

#: The smallest integer that float64 cannot hold: a sum that takes a way over floats is wrong from here on.
UNEVEN = 2**53 + 1


def case(**inputs: Make) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function of tensors into `CASES`; the keywords make its arguments, new values with every call."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        enter(function.__name__, function, **inputs)
        return function

    return decorate


def enter(name: str, function: Callable[..., Any] | torch.nn.Module, **inputs: Make) -> None:
    """Enter a function or a module into `CASES` under a name."""
    assert name not in CASES, f"two cases are called {name}"
    CASES[name] = Repro(function, lambda: {key: make() for key, make in inputs.items()}, dynamic=True)


def real(*shape: int) -> Make:
    """Normal values."""
    return lambda: torch.randn(shape)


def whole(low: int, high: int, *shape: int) -> Make:
    """int64 values from ``low`` to ``high``, both included."""
    return lambda: torch.randint(low, high + 1, shape)


def flags(*shape: int) -> Make:
    """Booleans, of which the first is always True."""

    def make() -> torch.Tensor:
        made = torch.rand(shape) > 0.5
        made.view(-1)[0] = True
        return made

    return make


def places(count: int, size: int) -> Make:
    """Different indices of an axis, some of them negative."""
    return lambda: torch.randperm(size)[:count] - torch.tensor([size, 0]).repeat(count)[:count]
