# SPDX-License-Identifier: Apache-2.0
"""Spectrograms that are resampled to the one size that a vision encoder takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


class _Squares(torch.nn.Module):
    """The fault, for the reproducer: spectrograms that are as long as the encoder's image, or shorter."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.clap import modeling_clap as clap

        sizes = {"patch_embeds_hidden_size": 8, "depths": [1, 1], "num_attention_heads": [1, 2], "window_size": 2}
        squares = {"spec_size": 16, "num_mel_bins": 8, "patch_size": 4, "patch_stride": [4, 4], "hidden_size": 16}
        self.encoder = clap.ClapAudioModel(clap.ClapAudioConfig(**sizes, **squares)).audio_encoder

    def forward(self, loudness: torch.Tensor) -> torch.Tensor:
        """The image (batch, 1, 16, 16) of spectrograms with 8 bins, all as loud as (batch, time) says."""
        squares: torch.Tensor = self.encoder.reshape_mel2img(loudness[:, None, :, None].repeat(1, 1, 1, 8))
        return squares


@register_patch(
    "model",
    "transformers.models.clap.modeling_clap.ClapAudioEncoder.reshape_mel2img",
    why="only a spectrogram shorter than the encoder's image is stretched, under an `if`, so that a trace of one that "
    "is just as long takes no other",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Squares, lambda: (torch.rand(2, 32),), dynamic=True, builds=True),
)
def _patch_stretched_spectrograms(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stretch every spectrogram; to its own size that changes nothing."""

    def reshape_mel2img(self: Any, normalized_input_features: torch.Tensor) -> Any:
        time, bins = normalized_input_features.shape[2:]
        width, height = int(self.spec_size * self.freq_ratio), self.spec_size // self.freq_ratio
        if bins != height or time > width:
            return NotImplemented  # other bins are stretched beside another length, or are an error of the model's own
        stretched = F.interpolate(normalized_input_features, (width, bins), mode="bicubic", align_corners=True)
        return original(self, stretched)

    return reshape_mel2img
