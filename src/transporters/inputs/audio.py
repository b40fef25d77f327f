# SPDX-License-Identifier: Apache-2.0
"""Audio: tones as raw waveforms, and moving bands of energy as log-mel-like features."""

from __future__ import annotations

import math
from typing import Any

import torch

from .request import AUDIO_PARTS, SampleRequest

#: Encoder frames that a waveform is to become, and feature frames where the config fixes no number.
FRAMES = 24
FEATURE_FRAMES = 64

_RATES = ("sampling_rate", "sample_rate")
_MELS = (
    "num_mel_bins",
    "input_feat_per_channel",
    "feature_projection_input_dim",
    "num_mel_channels",
    "input_feat_size",
    "model_in_dim",
    "mel_bins",
    "n_mels",
    "feature_size",
    "input_dim",
)


def waveforms(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``input_values``: tones ``(batch, samples)`` float, with an all-ones mask int64 where the model takes one.

    Codecs, which name their audio channels, get ``(batch, channels, samples)``; models with a spectrogram of a fixed
    length under this name get ``(batch, frames, mel bins)``.
    """
    if not _wanted(request, "input_values"):
        return {}
    mels = request.find("num_mel_bins", parts=AUDIO_PARTS)
    if mels is not None and request.find("conv_stride", parts=AUDIO_PARTS) is None:
        frames = int(request.find("max_length", parts=AUDIO_PARTS, default=FEATURE_FRAMES))
        return {"input_values": spectrogram(request, request.batch, frames, int(mels))}
    samples = sample_count(request)
    channels = request.find("audio_channels", parts=AUDIO_PARTS)
    if channels is not None or _is_codec(request):
        tones = waveform(request, request.batch * int(channels or 1), samples)
        return {"input_values": tones.reshape(request.batch, int(channels or 1), samples)}
    found = {"input_values": waveform(request, request.batch, samples)}
    mask_name = next((name for name in ("attention_mask", "padding_mask") if request.takes(name)), None)
    if mask_name is not None and not request.takes("input_ids"):
        found[mask_name] = torch.ones(request.batch, samples, dtype=torch.int64)
    return found


def spectrograms(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``input_features``: log-mel-like features float, with an all-ones mask int64 where one is used.

    ``(batch, mel bins, frames)`` for encoders that begin with a convolution over the frames (Whisper's kind; where they
    have a fixed number of positions, two frames become one), else ``(batch, frames, mel bins)``. Encoders that fold a
    spectrogram into a square image get ``(batch, 1, frames, mel bins)``.
    """
    if not _wanted(request, "input_features"):
        return {}
    mels = _feature_bins(request)
    square = request.find("spec_size", parts=AUDIO_PARTS)
    if square is not None:  # an image of size × size, folded out of a longer spectrogram
        frames = int(square) * (int(square) // mels)
        return {"input_features": spectrogram(request, request.batch, frames, mels).unsqueeze(1)}
    mels_first = _convolves_mels(request, mels)
    frames = _feature_frames(request) if mels_first else FEATURE_FRAMES
    features = spectrogram(request, request.batch, frames, mels)
    found = {"input_features": features.transpose(1, 2).contiguous() if mels_first else features}
    names = ["input_features_mask", "feature_attention_mask"]
    if not mels_first and not request.takes("input_ids"):
        names.append("attention_mask")
    mask_name = next((name for name in names if request.takes(name)), None)
    if mask_name is not None:
        found[mask_name] = torch.ones(request.batch, frames, dtype=torch.int64)
    return found


def waveform(request: SampleRequest, count: int, samples: int) -> torch.Tensor:
    """Tones ``(count, samples)`` float32 of mean 0 and deviation 1: three sines each, swelling and fading."""
    rate = float(request.find(*_RATES, parts=AUDIO_PARTS, default=16_000))
    seconds = torch.arange(samples) / rate
    pitches = 110.0 * 2 ** (request.uniform(count, 3, 1) * 3)
    loudness = torch.tensor([1.0, 0.5, 0.25]).reshape(1, 3, 1)
    phases = request.uniform(count, 3, 1) * 2 * math.pi
    tones = (loudness * torch.sin(2 * math.pi * pitches * seconds + phases)).sum(1)
    swell = 0.6 + 0.4 * torch.sin(torch.linspace(0, 2 * math.pi, samples) + phases[:, 0])
    tones = tones * swell
    return (tones - tones.mean(-1, keepdim=True)) / tones.std(-1, keepdim=True, correction=0).clamp(min=1e-6)


def spectrogram(request: SampleRequest, count: int, frames: int, mels: int) -> torch.Tensor:
    """Features ``(count, frames, mels)`` float32 in about ±1: bands of energy whose pitch moves with time."""
    time = torch.linspace(0, 1, frames).reshape(1, 1, frames, 1)
    mel = torch.linspace(0, 1, mels).reshape(1, 1, 1, mels)
    start, drift, pace = (request.uniform(count, 3, 1, 1) for _ in range(3))
    centre = 0.1 + 0.8 * start + 0.15 * torch.sin(2 * math.pi * (1 + 2 * pace) * time + 6 * drift)
    energy = torch.exp(-(((mel - centre) / 0.08) ** 2)).sum(1)
    return 2 * energy.clamp(max=1) - 1 + 0.1 * (0.5 - mel[0])


def _wanted(request: SampleRequest, name: str) -> bool:
    """Whether to make audio: it is needed, or the model has an audio part that is no mere output stage."""
    if not request.takes(name):
        return False
    return request.needs(name) or request.part(("audio_config", "audio_encoder_config")) is not None


def _is_codec(request: SampleRequest) -> bool:
    return request.find("codebook_size", "num_quantizers") is not None and request.find("conv_stride") is None


def _convolves_mels(request: SampleRequest, mels: int) -> bool:
    """Whether the encoder begins with a convolution over time that has the mel bins as its channels."""
    if request.find("input_feat_per_channel", "feature_projection_input_dim", parts=AUDIO_PARTS) is not None:
        return False
    if request.find("max_source_positions", "n_window", parts=AUDIO_PARTS) is not None:
        return True
    return any(
        name.endswith("conv1") and isinstance(module, torch.nn.Conv1d) and module.in_channels == mels
        for name, module in request.model.named_modules()
    )


def _feature_bins(request: SampleRequest) -> int:
    """Features of a frame: the mel bins, of several frames where they are stacked."""
    channels = request.find("subsampling_conv_channels", parts=AUDIO_PARTS)
    known = channels[0] if isinstance(channels, (list, tuple)) else 80  # then two convolutions leave a quarter of them
    stacked = request.find("num_stacked_frames", parts=AUDIO_PARTS, default=1)
    return int(request.find(*_MELS, parts=AUDIO_PARTS, default=known)) * int(stacked)


def _feature_frames(request: SampleRequest) -> int:
    """Feature frames of such an encoder: two for each position it has, or whole windows."""
    positions = request.find("max_source_positions", parts=AUDIO_PARTS)
    if positions is not None:
        return 2 * int(positions)
    window = request.find("n_window", parts=AUDIO_PARTS)
    return FEATURE_FRAMES if window is None else 4 * int(window)


def sample_count(request: SampleRequest) -> int:
    """Number of samples that become :data:`FRAMES` frames after the convolutions that the config lists."""
    kernels = request.find("conv_kernel", parts=AUDIO_PARTS)
    strides = request.find("conv_stride", parts=AUDIO_PARTS)
    if not (isinstance(kernels, (list, tuple)) and isinstance(strides, (list, tuple))):
        ratios = request.find("upsampling_ratios", "downsampling_ratios", "strides", parts=AUDIO_PARTS)
        hop = math.prod(ratios) if isinstance(ratios, (list, tuple)) else request.find("hop_length", default=320)
        return int(hop) * FRAMES
    samples = FRAMES
    for kernel, stride in zip(reversed(kernels), reversed(strides)):
        samples = (samples - 1) * stride + kernel
    return int(samples)
