# SPDX-License-Identifier: Apache-2.0
"""Cache layers whose update depends on how long the sequence happens to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


def _visible_after_a_prompt(keys: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: the positions that a layer with a window of 4 shows to a query."""
    from transformers.cache_utils import DynamicSlidingWindowLayer

    layer = DynamicSlidingWindowLayer(4)
    layer.update(keys, keys)
    length, offset = layer.get_mask_sizes(query.shape[2])
    positions: torch.Tensor = torch.arange(length) + offset
    return positions


def _last_of_a_convolution(states: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: what a layer with a kernel of 4 keeps of a prompt."""
    from transformers.cache_utils import LinearAttentionLayer

    layer = LinearAttentionLayer()
    layer.update_conv_state(states, conv_kernel_size=4)
    kept: torch.Tensor = layer.conv_states[0]
    return kept


@register_patch(
    "model",
    "transformers.cache_utils.DynamicSlidingWindowLayer.get_mask_sizes",
    why="whether the window is full is asked in Python, so that the program takes only the cached length it was traced "
    "with, or only lengths below the window",
    issue="https://github.com/huggingface/transformers/issues/44609",
    needed="transformers>=5.24",
    repro=Repro(_visible_after_a_prompt, lambda: (torch.rand(2, 2, 7, 4), torch.rand(2, 2, 5, 4)), dynamic=True),
)
def _patch_sliding_window_mask_sizes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Read the length off the cached keys: with as many as there are, no question remains."""

    def get_mask_sizes(self: Any, query_length: int) -> Any:
        if not self.is_initialized or self.keys.dim() == 1 or self.record_past:
            return NotImplemented
        cached = self.keys.shape[-2]
        return cached + query_length, self.cumulative_length - cached

    return get_mask_sizes


@register_patch(
    "model",
    "transformers.cache_utils.LinearAttentionLayer.update_conv_state",
    why="a prompt shorter than the convolution kernel is padded under an `if`, so that the program refuses either "
    "short "
    "or long prompts, depending on the sample",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_last_of_a_convolution, lambda: (torch.rand(2, 3, 7),), dynamic=True),
)
def _patch_conv_state_update(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pad a prompt by the whole kernel, whatever its length: the causal convolution ignores zeros on the left."""

    def update_conv_state(
        self: Any, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Any:
        if self.record_past or self.has_previous_state[state_idx]:
            return NotImplemented
        kernel = conv_kernel_size if conv_kernel_size is not None else conv_states.shape[-1]
        if not self.is_conv_states_initialized[state_idx]:
            self.lazy_initialization(conv_states=conv_states, state_idx=state_idx, conv_kernel_size=kernel)
        self.has_previous_state[state_idx] = True
        self.conv_states[state_idx] = F.pad(conv_states, (kernel, 0))[..., -kernel:]
        return conv_states

    return update_conv_state
