# SPDX-License-Identifier: Apache-2.0
"""Attention masks that are built only where they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


def _mask_of_a_window(keys: torch.Tensor, queries: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: the mask over the last keys of a text of which the first token is padding."""
    from transformers.masking_utils import sdpa_mask

    (batch, length), new, cached = text.shape, queries.shape[1], keys.shape[1]
    places = {"q_offset": length - new, "kv_offset": length - new - cached}
    real = text != text[:, :1]
    mask: torch.Tensor = sdpa_mask(batch, new, cached + new, **places, attention_mask=real, local_size=1)
    return mask


@register_patch(
    "model",
    "transformers.masking_utils._ignore_causal_mask_sdpa",
    why="whether a mask can be left out is asked of the sizes of mask and cache before it is said that a program never "
    "leaves it out, so that the program takes only texts longer, or only texts shorter than what is cached",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_mask_of_a_window, lambda: (torch.rand(2, 3, 4), torch.rand(2, 4, 4), torch.rand(2, 12)), dynamic=True),
)
def _patch_causal_mask_question(original: Callable[..., Any]) -> Callable[..., Any]:
    """Never leave it out."""
    return lambda *_, **__: False
