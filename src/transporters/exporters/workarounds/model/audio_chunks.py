# SPDX-License-Identifier: Apache-2.0
"""Packed audio that an encoder cuts into chunks and windows, whose number only the lengths tell."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


def pieces(lengths: torch.Tensor, size: Any) -> torch.Tensor:
    """Lengths of the pieces that sequences are cut into, one sequence after the other.

    Args:
        lengths: (sequences,) integers.
        size: Of every piece but a sequence's last, which has what is left.

    Returns:
        (pieces,) int64.
    """
    owner, place = _owners((lengths + size - 1) // size)
    found: torch.Tensor = (lengths[owner] - place * size).clamp(max=size)
    return found


def _owners(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For ``counts[i]`` things of each owner ``i``: who owns it, and the how-manieth of the owner's it is."""
    ends = counts.cumsum(0)
    total: Any = counts.sum().item()
    torch._check(total >= 0)  # type: ignore[no-untyped-call]
    places = torch.arange(total, device=counts.device)
    owner = (places[:, None] >= ends).sum(-1)
    return owner, places - (ends - counts)[owner]


class _OwnFunctions(torch.nn.Module):
    """The fault, for the reproducers: what an audio encoder reads out of lengths.

    Args:
        function: Of which function the result is shown.
    """

    def __init__(self, function: str) -> None:
        super().__init__()
        self.shown = function

    def forward(self, frames: torch.Tensor, lengths: torch.Tensor) -> Any:
        """Frames (sequences, 16, 3), of which the first ``lengths`` are there, in chunks of four."""
        from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as qwen2_5
        from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as qwen3

        if self.shown == "bounds":
            return qwen3.get_audio_cu_seqlens(pieces(lengths, 4), lengths, 8, 2)
        packed = frames[torch.arange(16) < lengths[:, None]]
        return qwen2_5.chunk_and_pad_features(packed.T, lengths, 2)


def _frames_and_lengths() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(3, 16, 3), torch.randint(4, 17, (3,))


def _shows(function: str) -> Repro:
    return Repro(functools.partial(_OwnFunctions, function), _frames_and_lengths, dynamic=True, builds=True)


@register_patch(
    "model",
    "transformers.models.*.modeling_*.chunk_and_pad_features",
    why="audio is split into chunks by a Python list of their lengths, which are data",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_shows("chunks"),
)
def _patch_audio_chunks(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look up for every place in a chunk which frame stands there."""

    def chunk_and_pad_features(
        input_features: torch.Tensor, feature_lens: torch.Tensor, n_window: int, kwargs: Any = None
    ) -> Any:
        if kwargs and "padded_feature" in kwargs:
            return NotImplemented
        lengths = pieces(feature_lens, 2 * n_window)
        longest: Any = lengths.max().item()
        torch._check(longest >= 1)  # type: ignore[no-untyped-call]
        columns = torch.arange(longest, device=lengths.device)
        inside = columns < lengths[:, None]
        places = (lengths.cumsum(0) - lengths)[:, None] + torch.where(inside, columns, 0)
        return torch.where(inside[:, :, None], input_features.T[places], 0.0).transpose(1, 2), lengths

    return chunk_and_pad_features


@register_patch(
    "model",
    "transformers.models.qwen3_asr.modeling_qwen3_asr.get_audio_cu_seqlens",
    "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe.get_audio_cu_seqlens",
    why="a Python list of the windows of each audio is made, whose number is data",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_shows("bounds"),
)
def _patch_audio_windows(original: Callable[..., Any]) -> Callable[..., Any]:
    """Cut all lengths into windows at once."""

    def get_audio_cu_seqlens(
        chunk_lengths: torch.Tensor, feature_lens: torch.Tensor, n_window_infer: int, n_window: int, kwargs: Any = None
    ) -> Any:
        if kwargs and "cu_seqlens" in kwargs:
            return NotImplemented
        lengths_of = sys.modules[original.__module__]._get_feat_extract_output_lengths
        window = lengths_of(chunk_lengths, n_window).max() * (n_window_infer // (n_window * 2))
        bounds = pieces(lengths_of(feature_lens, n_window), window).cumsum(0)
        return F.pad(bounds, (1, 0)).to(torch.int32)

    return get_audio_cu_seqlens


class _Undivided:
    """Stands in for chunks of audio that are convolved some at a time, and says that all are to be taken at once."""

    def __init__(self, chunks: torch.Tensor) -> None:
        self._chunks = chunks

    def unsqueeze(self, axis: int) -> _Undivided:
        """As of a tensor."""
        return _Undivided(self._chunks.unsqueeze(axis))

    def to(self, *args: Any, **kwargs: Any) -> _Undivided:
        """As of a tensor."""
        return _Undivided(self._chunks.to(*args, **kwargs))

    def split(self, *_: Any, **__: Any) -> tuple[torch.Tensor]:
        """One piece: everything."""
        return (self._chunks,)


class _ChunksOfAnEncoder(torch.nn.Module):
    """The fault, for the reproducer: an encoder that convolves three chunks at a time."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as qwen3

        sizes = {"d_model": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8, "output_dim": 4}
        more = {"num_mel_bins": 4, "downsample_hidden_size": 2, "n_window": 50, "n_window_infer": 100}
        config = qwen3.Qwen3OmniMoeAudioEncoderConfig(**sizes, **more, conv_chunksize=3)
        self.encoder = qwen3.Qwen3OmniMoeAudioEncoder(config)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """States of audio (sequences, 230, 4)."""
        lengths = torch.full_like(audio[:, 0, 0], 230).long()
        found: torch.Tensor = self.encoder(audio.flatten(0, 1).T, feature_lens=lengths).last_hidden_state
        return found


@register_patch(
    "model",
    "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe.Qwen3OmniMoeAudioEncoder.forward",
    why="chunks are convolved some at a time to spare memory, in a loop over their number, which is data",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_ChunksOfAnEncoder, lambda: (torch.rand(2, 230, 4),), dynamic=True, builds=True),
)
def _patch_convolved_chunks(original: Callable[..., Any]) -> Callable[..., Any]:
    """Convolve all chunks at once."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        given = dict(bound.arguments) | bound.arguments.get("kwargs", {})
        given.pop("kwargs", None)
        if "padded_feature" in given:
            return NotImplemented
        cut = sys.modules[original.__module__].chunk_and_pad_features
        chunks, lengths = cut(given["input_features"], given["feature_lens"], self.n_window)
        return original(**given, padded_feature=_Undivided(chunks), chunk_lengths=lengths)

    return forward


class _CountedFeatures(torch.nn.Module):
    """The fault, for the reproducer: features of audio (sequences, 20, 3) whose number is compared with the masks'."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as qwen2_5

        sizes = {"d_model": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8, "output_dim": 4}
        config = qwen2_5.Qwen2_5OmniAudioEncoderConfig(**sizes, num_mel_bins=3, n_window=4)
        self.owner = qwen2_5.Qwen2_5OmniThinkerModel
        self.audio_tower = qwen2_5.Qwen2_5OmniAudioEncoder(config)

    def forward(self, audio: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Features of the first ``lengths`` frames of each audio."""
        mask = torch.arange(20) < lengths[:, None]
        found: Any = self.owner.get_audio_features(self, audio.transpose(1, 2), mask.long(), return_dict=True)
        states: torch.Tensor = found.last_hidden_state
        return states


@register_patch(
    "model",
    "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni.Qwen2_5OmniThinkerModel.get_audio_features",
    why="Python compares the number of features with a sum over the rows' lengths, which are both data in a program",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(
        _CountedFeatures, lambda: (torch.rand(3, 20, 3), torch.randint(4, 21, (3,))), dynamic=True, builds=True
    ),
)
def _patch_counted_features(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave the comparison to the program."""
    from transformers.utils import torch_compilable_check
    from transformers.utils.generic import accepts_precomputed_kwargs, can_return_tuple

    def features(self: Any, input_features: torch.Tensor, feature_attention_mask: torch.Tensor, **kwargs: Any) -> Any:
        packed = input_features.permute(0, 2, 1)[feature_attention_mask.bool()].permute(1, 0)
        lengths = feature_attention_mask.sum(1)
        shrunk, counts = self.audio_tower._get_feat_extract_output_lengths(lengths)
        found = self.audio_tower(packed, feature_lens=lengths, aftercnn_lens=shrunk, **kwargs)
        length = found.last_hidden_state.shape[0]
        torch_compilable_check(counts.sum() == length, "length of audio_features should match audio_output_lengths")
        return found

    inner = accepts_precomputed_kwargs(modality="audio")(can_return_tuple(features))

    @functools.wraps(original)
    def get_audio_features(
        self: Any,
        input_features: torch.Tensor,
        feature_attention_mask: torch.Tensor | None = None,
        audio_feature_lengths: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if feature_attention_mask is None:
            return NotImplemented
        return inner(self, input_features, feature_attention_mask, **kwargs)

    return get_audio_features
