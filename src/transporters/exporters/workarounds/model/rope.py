# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings that choose their frequencies by the length of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


def dynamic_ntk_frequencies(config: Any, length: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Inverse frequencies of dynamic NTK scaling (as in ``rope_type="dynamic"``) for a length known only at run time.

    With L the larger of the length and the original maximum M, the base becomes
    ``base * ((factor * L / M) - (factor - 1)) ** (d / (d - 2))``; at L = M that is the base itself. The formula is
    u/emozilla's, as cited in `transformers.modeling_rope_utils`.

    Args:
        config: The model's text configuration.
        length: Scalar tensor: largest position + 1.
        device: Where the frequencies are needed.

    Returns:
        (d / 2,) float32.
    """
    parameters = config.rope_parameters
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    maximum = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
    factor = parameters["factor"]
    reached = length.to(torch.float32).clamp(min=float(maximum))
    base = parameters["rope_theta"] * ((factor * reached / maximum) - (factor - 1)) ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.int64, device=device).to(torch.float32) / dim
    return torch.pow(base, -exponents)


def _scaled_embedding() -> torch.nn.Module:
    """The fault, for the reproducer: other frequencies beyond 8 positions."""
    from transformers.models.llama import modeling_llama as llama

    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 8}
    embedding: torch.nn.Module = llama.LlamaRotaryEmbedding(llama.LlamaConfig(**sizes, rope_parameters=rope))
    return embedding


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*RotaryEmbedding.forward",
    why="dynamic NTK scaling compares the sequence length with a stored maximum in Python and stores new "
    "frequencies on "
    "the module",
    issue="https://github.com/pytorch/pytorch/issues/163791",
    needed="transformers>=5.24",
    repro=Repro(
        _scaled_embedding,
        lambda: {"x": torch.zeros(1), "position_ids": torch.arange(6)[None]},
        dynamic=True,
        builds=True,
    ),
)
def _patch_dynamic_rope(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compute the frequencies from the positions as a tensor, and leave the module's own tables alone."""
    plain = getattr(original, "__wrapped__", None)

    def forward(self: Any, x: torch.Tensor, position_ids: Any = None, *args: Any, **kwargs: Any) -> Any:
        if plain is None or getattr(self, "rope_type", None) != "dynamic" or position_ids is None:
            return NotImplemented  # other rotary embeddings take other arguments
        standing = self._buffers["inv_freq"]
        self._buffers["inv_freq"] = dynamic_ntk_frequencies(self.config, position_ids.max() + 1, x.device)
        try:
            return _innermost(plain)(self, x, position_ids, *args, **kwargs)
        finally:
            self._buffers["inv_freq"] = standing

    return forward


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under all decorators that say what they wrap."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
