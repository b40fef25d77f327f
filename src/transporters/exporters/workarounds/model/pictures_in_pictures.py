# SPDX-License-Identifier: Apache-2.0
"""Images that a model joins to one of a fixed size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


class _Joined(torch.nn.Module):
    """The fault, for the reproducer: a prompt above the image that it is for."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.seggpt import modeling_seggpt as seggpt

        config = seggpt.SegGptConfig(hidden_size=8, image_size=[16, 8], patch_size=4, pretrain_image_size=8)
        self.embeddings = seggpt.SegGptEmbeddings(config)

    def forward(self, prompt: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Embeddings (2 * batch, 4, 2, 8) of two images (batch, 3, 8, 8), of which the lower is hidden."""
        both = torch.cat([prompt, image], dim=2)
        hidden = torch.arange(8)[None] >= 4
        found: torch.Tensor = self.embeddings(both, both, bool_masked_pos=hidden)
        return found


@register_patch(
    "model",
    "transformers.models.seggpt.modeling_seggpt.SegGptPatchEmbeddings.forward",
    why="the height of two joined images is compared with the configuration's, and torch does not conclude from the "
    "sum how many rows of patches there are",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Joined, lambda: (torch.rand(3, 3, 8, 8), torch.rand(3, 3, 8, 8)), dynamic=True, builds=True),
)
def _patch_joined_images(original: Callable[..., Any]) -> Callable[..., Any]:
    """Say how many rows and columns of patches an image of the one size has."""

    def forward(self: Any, pixel_values: torch.Tensor) -> torch.Tensor:
        rows, columns = (side // patch for side, patch in zip(self.image_size, self.patch_size))
        patches: torch.Tensor = original(self, pixel_values)
        return patches.reshape(patches.shape[0], rows, columns, patches.shape[3])

    return forward
