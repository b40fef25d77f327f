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


def _mask_of_blocks(text: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: words of a text see what is before them, and their own kind."""
    from transformers.masking_utils import and_masks, blockwise_overlay, causal_mask_function, or_masks, sdpa_mask

    batch, length = text.shape
    kinds = torch.where(text > 0.5, 1, -1)
    allowed = or_masks(causal_mask_function, blockwise_overlay(kinds))
    allowed = and_masks(allowed, lambda row, head, query, key: query < key + 3)
    rules = {"mask_function": allowed, "allow_is_causal_skip": False, "use_vmap": True}
    mask: torch.Tensor = sdpa_mask(batch, length, length, **rules)
    return mask


@register_patch(
    "model",
    "transformers.masking_utils._vmap_expansion_sdpa",
    why="a mask of more than one rule is built by vmap, with an operator for its indices that no program can be saved "
    "with",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_mask_of_blocks, lambda: (torch.rand(3, 9),), dynamic=True),
)
def _patch_mask_by_vmap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give the rules all indices at once, as other masks are built, without that operator, which is in force here."""
    from torch.overrides import _pop_mode_temporarily
    from transformers.masking_utils import _non_vmap_expansion_sdpa

    def expanded(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def mask(*indices: torch.Tensor) -> torch.Tensor:
            with _pop_mode_temporarily():
                found = rule(*_non_vmap_expansion_sdpa(*indices))
                return found.expand(*(index.shape[0] for index in indices))

        return mask

    return expanded
