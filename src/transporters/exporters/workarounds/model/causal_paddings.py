# SPDX-License-Identifier: Apache-2.0
"""Convolutions over audio whose padding is worked out from the length, through tensors or Python numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


def padded(states: torch.Tensor, stride: int, left: int, right: int, mode: str) -> torch.Tensor:
    """Pad audio so that a convolution gives ``ceil(length / stride)`` outputs.

    Args:
        states: (batch, channels, length).
        stride: Of the convolution, which needs ``left + right + stride`` inputs for an output.
        left: Inputs before the first.
        right: Inputs after the last of a length that is a multiple of the stride.
        mode: "reflect", or another mode of `torch.nn.functional.pad`.
    """
    length: Any = states.shape[-1]
    more = (length + stride - 1) // stride * stride - length
    if mode != "reflect" or not (left or right or stride > 1):
        return F.pad(states, (left, right + more), mode) if left or right or stride > 1 else states
    # A length that is too short for its reflection gets zeros behind it first.
    widest = torch.sym_max(left, right + more)  # type: ignore[no-untyped-call]
    last = torch.sym_max(length - 1, widest)  # type: ignore[no-untyped-call]
    places = (torch.arange(left + length + right + more, device=states.device) - left).abs()
    places = last - (last - places).abs()
    inside = (places < length).to(states.dtype)
    found: torch.Tensor = states.index_select(-1, places.clamp(max=length - 1)) * inside
    return found


class _CausalConvolutions(torch.nn.Module):
    """The fault, for the reproducer: one convolution that pads by reflection, and one that pads with zeros."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.encodec import modeling_encodec as encodec
        from transformers.models.mimi import modeling_mimi as mimi

        self.reflected = encodec.EncodecConv1d(encodec.EncodecConfig(), 2, 3, kernel_size=7, stride=3)
        self.even = mimi.MimiConv1d(mimi.MimiConfig(use_causal_conv=False), 2, 3, kernel_size=4, stride=2)

    def forward(self, audio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Convolve audio (length, 2) twice."""
        states = audio.T[None]
        return self.reflected(states), self.even(states)


@register_patch(
    "model",
    "transformers.models.encodec.modeling_encodec.EncodecConv1d.forward",
    "transformers.models.mimi.modeling_mimi.MimiConv1d.forward",
    "transformers.models.pocket_tts_audio_tokenizer.modeling_pocket_tts_audio_tokenizer."
    "PocketTTSAudioTokenizerConv1d.forward",
    "transformers.models.wavtokenizer.modeling_wavtokenizer.WavTokenizerConv1d.forward",
    why="kernel and stride are tensors, and so the padding that follows from them and the length is data",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_CausalConvolutions, lambda: (torch.rand(11, 2),), dynamic=True, builds=True),
)
def _patch_tensor_padding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work the padding out from the convolution's own numbers."""

    def forward(self: Any, hidden_states: torch.Tensor, padding_cache: Any = None) -> Any:
        if padding_cache is not None:
            return NotImplemented
        stride = self.conv.stride[0]
        total = (self.conv.kernel_size[0] - 1) * self.conv.dilation[0] + 1 - stride
        if total < 0:
            return NotImplemented  # inputs are cut off, not added
        right = 0 if self.causal else total // 2
        states = self.conv(padded(hidden_states, stride, total - right, right, self.pad_mode))
        return self.norm(states) if getattr(self, "norm_type", "") == "time_group_norm" else states

    return forward


class _OneFrame(torch.nn.Module):
    """The fault, for the reproducer: codes of audio that is encoded in one frame."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.encodec import modeling_encodec as encodec

        sizes = {"hidden_size": 4, "num_filters": 2, "codebook_size": 4, "upsampling_ratios": [2], "num_lstm_layers": 1}
        config = encodec.EncodecConfig(**sizes, target_bandwidths=[1.5], sampling_rate=800)
        self.model = encodec.EncodecModel(config)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Codes of audio (batch, 40)."""
        found: torch.Tensor = self.model.encode(audio[:, None], return_dict=True).audio_codes
        return found


@register_patch(
    "model",
    "transformers.models.encodec.modeling_encodec.EncodecModel.encode",
    why="a Python loop over frames runs also where all audio is one frame, which freezes its length",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_OneFrame, lambda: (torch.rand(2, 40),), dynamic=True, builds=True),
)
def _patch_single_frame(original: Callable[..., Any]) -> Callable[..., Any]:
    """Encode the frame, without a loop."""
    from transformers.models.encodec.modeling_encodec import EncodecEncoderOutput

    def encode(
        self: Any, input_values: torch.Tensor, padding_mask: Any = None, bandwidth: Any = None, return_dict: Any = None
    ) -> Any:
        known = bandwidth is None or bandwidth in self.config.target_bandwidths
        if self.config.chunk_length is not None or not known or input_values.shape[1] not in (1, 2):
            return NotImplemented
        if padding_mask is not None:
            input_values = input_values * padding_mask.reshape(padding_mask.shape[0], -1, padding_mask.shape[-1]).bool()
        codes, scale = self._encode_frame(input_values, bandwidth or self.config.target_bandwidths[0])
        found = (codes[None], [scale], 0)
        return EncodecEncoderOutput(*found) if return_dict in (None, True) else found

    return encode
