# SPDX-License-Identifier: Apache-2.0
"""What attention asks in Python about the number of its queries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


class _FewQueries(torch.nn.Module):
    """The fault, for the reproducer: attention over a quarter of the states, which is one in the sample."""

    is_causal = False

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Attention (1, length / 4, 1, 3) over a quarter of the states (length, 3)."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        taken = states[: (states.shape[0] + 3) // 4][None, None]
        found: torch.Tensor = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)(self, taken, taken, taken, None)[0]
        return found


@register_patch(
    "model",
    "transformers.utils.generic.GeneralInterface.__getitem__",
    why="attention asks whether there is more than one query; of a dynamic number that is one in the sample, the "
    "answer is a SymBool, which SDPA does not take for is_causal",
    issue="https://github.com/huggingface/transformers/pull/46196",
    needed="transformers>=5.24",
    repro=Repro(_FewQueries, lambda: (torch.rand(4, 3),), dynamic=True, builds=True),
)
def _patch_query_question(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where the answer is not needed, because of a mask or of a module that is not causal, do not ask."""
    from transformers.integrations import sdpa_attention as sdpa

    def getitem(self: Any, key: str) -> Any:
        attention = original(self, key)
        if attention is not sdpa.sdpa_attention_forward:
            return attention

        @functools.wraps(attention)
        def unasked(
            module: Any,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            attention_mask: torch.Tensor | None = None,
            **options: Any,
        ) -> Any:
            causal = options.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            special = options.get("position_bias") is not None or options.get("softcap") is not None
            if not _is_open(query.shape[2]) or special or (causal and attention_mask is None):
                return attention(module, query, key, value, attention_mask, **options)
            torch._check(query.shape[2] > 0)  # type: ignore[no-untyped-call]  # SDPA asks, too
            more: dict[str, Any] = {}
            if (groups := getattr(module, "num_key_value_groups", 1)) > 1:
                if sdpa.use_gqa_in_sdpa(attention_mask, key, value):
                    more = {"enable_gqa": True}
                else:
                    key, value = sdpa.repeat_kv(key, groups), sdpa.repeat_kv(value, groups)
            found = F.scaled_dot_product_attention(
                query, key, value, attn_mask=attention_mask, scale=options.get("scaling"), **more
            )
            return found.transpose(1, 2).contiguous(), None

        return unasked

    return getitem


def _is_open(length: Any) -> bool:
    """Whether a trace cannot say that a size is above one, or would say that it is not."""
    if not isinstance(length, torch.SymInt):
        return False
    return not length.node.has_hint() or length.node.hint <= 1
