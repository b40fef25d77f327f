# SPDX-License-Identifier: Apache-2.0
"""Local attention over chunks of the sequence, one after the other in a Python loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


class _LocalAttention(torch.nn.Module):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.canine import modeling_canine as canine

        config = canine.CanineConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
        width = dict.fromkeys(("attend_from_chunk_width", "attend_to_chunk_width"), 4)
        stride = dict.fromkeys(("attend_from_chunk_stride", "attend_to_chunk_stride"), 4)
        self.attention = canine.CanineAttention(config, local=True, **width, **stride).eval()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Attend from states (batch, length, 8) to those of the same chunk of four that are not masked."""
        length = states.shape[1]
        seen = (torch.arange(length) < length - 1).to(states.dtype).expand(states.shape[0], length, length)
        result: torch.Tensor = self.attention(states, seen)[0]
        return result


@register_patch(
    "model",
    "transformers.models.canine.modeling_canine.CanineAttention.forward",
    why="a Python loop runs over the chunks, which freezes the length",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_LocalAttention, lambda: (torch.rand(2, 10, 8),), dynamic=True, builds=True),
)
def _patch_chunked_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attend within all chunks at once, as rows of a larger batch."""

    def forward(
        self: Any, hidden_states: torch.Tensor, attention_mask: Any = None, output_attentions: bool | None = False
    ) -> Any:
        width = self.attend_from_chunk_width
        sizes = {self.attend_from_chunk_stride, self.attend_to_chunk_width, self.attend_to_chunk_stride}
        if not self.local or output_attentions or self.first_position_attends_to_all or sizes != {width}:
            return NotImplemented
        batch, length, features = hidden_states.shape
        chunks = (length + width - 1) // width
        more = chunks * width - length
        states = F.pad(hidden_states, (0, 0, 0, more)).reshape(batch * chunks, width, features)
        # A key that is there but masked scores the lowest finite number, and one that is not there must score less.
        seen = F.pad(attention_mask.float(), (0, 0, 0, more))
        seen = F.pad(seen, (0, more), value=-torch.inf).reshape(batch, chunks, width, chunks, width)
        seen = seen.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(batch * chunks, width, width)
        keys = states
        if self.always_attend_to_first_position:
            first = hidden_states.narrow(1, 0, 1).unsqueeze(1).expand(batch, chunks, 1, features)
            keys = torch.cat([first.reshape(batch * chunks, 1, features), states], dim=1)
            sees_first = F.pad(attention_mask.narrow(2, 0, 1).float(), (0, 0, 0, more)).reshape(
                batch * chunks, width, 1
            )
            seen = torch.cat([sees_first, seen], dim=2)
        found = self.self(states, keys, seen, output_attentions)[0]
        found = found.reshape(batch, chunks * width, features).narrow(1, 0, length)
        return (self.output(found, hidden_states),)

    return forward
