# SPDX-License-Identifier: Apache-2.0
"""Random weights that show what is lost: nothing is constant, nothing is small, nothing is left uninitialised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Deviation of embeddings at least, and of the noise on biases and norms.
WIDE = 0.2
NOISE = 0.1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Fixed random numbers, and NaN in memory that nobody initialises, so that it cannot be taken for a weight."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def perturb(model: Any) -> None:
    """Widen what is narrow and add noise to what is constant, in place and from torch's global generator."""
    with torch.no_grad():
        embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
        done: set[int] = set()
        for name, parameter in model.named_parameters():
            if id(parameter) not in done and parameter.is_floating_point() and parameter.numel():
                done.add(id(parameter))
                _widen(name, parameter, is_embedding=id(parameter) in embeddings)
        for name, buffer in model.named_buffers():
            if not buffer.is_floating_point():
                continue
            if not bool(buffer.isfinite().any()) and bool(buffer.isnan().any()):
                buffer.normal_(0.0, NOISE)
            if name.endswith("running_mean"):
                buffer += NOISE * torch.randn_like(buffer)
            if name.endswith("running_var"):
                buffer *= 0.8 + 0.4 * torch.rand_like(buffer)


def _widen(name: str, parameter: torch.Tensor, *, is_embedding: bool) -> None:
    if bool(parameter.isnan().any()):
        parameter.normal_(0.0, NOISE)
    if parameter.ndim < 2 or "parametrizations" in name or parameter.shape[0] == parameter.numel():
        parameter += NOISE * torch.randn_like(parameter)
        return
    deviation = float(parameter.std()) if parameter.numel() > 1 else 0.0
    if deviation < 1e-4:
        parameter += WIDE * torch.randn_like(parameter)
        return
    if is_embedding:
        parameter *= max(1.0, WIDE / deviation)
        return
    usual = 1 / math.sqrt(parameter[0].numel())
    parameter *= min(max(deviation, 0.8 * usual), 1.6 * usual) / deviation
