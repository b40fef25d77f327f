# SPDX-License-Identifier: Apache-2.0
"""Sequences in which every element is repeated by a duration of its own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


def repeated(states: torch.Tensor, durations: torch.Tensor) -> torch.Tensor:
    """Each state as often as its duration says, row by row; shorter rows end in zeros.

    Args:
        states: (batch, length, width).
        durations: (batch, length) int64.

    Returns:
        (batch, longest, width), where the longest row decides.
    """
    ends = durations.cumsum(dim=1)
    longest: Any = ends[:, -1].max().item()
    torch._check(longest >= 0)  # type: ignore[no-untyped-call]
    frames = torch.arange(longest, device=states.device)
    source = (frames[None, :, None] >= ends[:, None, :]).sum(dim=-1)  # how many states have ended before a frame
    inside = frames < ends[:, -1:]
    source = source.clamp(max=states.shape[1] - 1)[:, :, None].expand(-1, -1, states.shape[2])
    return states.gather(1, source) * inside[:, :, None].to(states.dtype)


class _Regulator(torch.nn.Module):
    """The fault, for the reproducer."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Repeat states (batch, length, 3) by what their first number says."""
        from transformers.models.fastspeech2_conformer import modeling_fastspeech2_conformer as fastspeech2

        durations = (states[:, :, 0] * 4).long() + 1
        result: torch.Tensor = fastspeech2.length_regulator(states, durations)
        return result


@register_patch(
    "model",
    "transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer.length_regulator",
    why="a Python loop over the rows repeats and writes each, by durations that only the data tells",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Regulator(), lambda: (torch.rand(2, 6, 3),), dynamic=True),
)
def _patch_length_regulator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look up for every frame which state it belongs to."""

    def length_regulator(
        encoded_embeddings: torch.Tensor, duration_labels: torch.Tensor, speaking_speed: float = 1.0
    ) -> Any:
        if speaking_speed <= 0:
            return NotImplemented  # an error of the model's own
        durations = duration_labels
        if speaking_speed != 1.0:
            durations = torch.round(durations.float() * speaking_speed).long()
        silent = durations.sum() == 0  # then everything lasts one frame, also in the model's own output of durations
        durations.copy_(torch.where(silent, torch.ones_like(durations), durations))
        return repeated(encoded_embeddings.float(), durations)

    return length_regulator


class _RelativePositions(torch.nn.Module):
    """The fault, for the reproducer: positions of a sequence whose length the data tells."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.fastspeech2_conformer import modeling_fastspeech2_conformer as fastspeech2

        config = fastspeech2.FastSpeech2ConformerConfig(hidden_size=8)
        options = {"positional_dropout_rate": 0.0}
        self.positions = fastspeech2.FastSpeech2ConformerRelPositionalEncoding(config, options)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions for every state (batch, length, 8) twice."""
        durations = torch.full(states.shape[:2], 2)
        scaled, positions = self.positions(repeated(states, durations))
        return scaled, positions


@register_patch(
    "model",
    "transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer."
    "FastSpeech2ConformerRelPositionalEncoding.forward",
    why="a table of positions is made longer under an `if`, which cannot be asked of a length that the data tells, "
    "and holds a program of other lengths to the table's size",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_RelativePositions, lambda: (torch.rand(2, 6, 8),), dynamic=True, builds=True),
)
def _patch_position_table(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compute the part of the table that is looked at."""

    def forward(self: Any, feature_representation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length, width = feature_representation.shape[1], self.embed_dim
        device, dtype = feature_representation.device, feature_representation.dtype
        distances = length - 1 - torch.arange(2 * length - 1, device=device).float()
        steps = torch.arange(0, width, 2, device=device).float()
        angles = distances[:, None] * torch.exp(steps * -(math.log(10000.0) / width))
        table = torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).flatten(1)[None]
        return self.dropout(feature_representation * self.input_scale), self.dropout(table.to(dtype))

    return forward


class _Voice(torch.nn.Module):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.seamless_m4t import modeling_seamless_m4t as seamless

        vocoder = {"unit_hifi_gan_vocab_size": 9, "vocoder_num_spkrs": 2, "vocoder_num_langs": 2, "unit_embed_dim": 8}
        widths = {"lang_embed_dim": 4, "spkr_embed_dim": 4, "upsample_initial_channel": 8, "upsample_rates": [2]}
        blocks = {"upsample_kernel_sizes": [4], "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1]]}
        more = {"model_in_dim": 16, "variance_predictor_kernel_size": 3}
        self.voice = seamless.SeamlessM4TCodeHifiGan(seamless.SeamlessM4TConfig(**vocoder, **widths, **blocks, **more))
        torch.nn.init.constant_(self.voice.dur_predictor.proj.bias, 1.0)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """A waveform for units (batch, length)."""
        one = torch.ones_like(input_ids[:, :1])
        result: torch.Tensor = self.voice(input_ids, one, one)[0]
        return result


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*CodeHifiGan.forward",
    why="a Python loop over the rows repeats units by predicted durations, which freezes the batch",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Voice, lambda: (torch.randint(2, 9, (2, 6)),), dynamic=True, builds=True),
)
def _patch_repeated_units(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look up for every frame which unit it belongs to."""

    signature = inspect.signature(original)

    def forward(self: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        _, input_ids, speaker, lang_id, *_ = signature.bind(self, *args, **kwargs).arguments.values()
        units = self.unit_embedding(input_ids)
        durations = torch.expm1(self.dur_predictor(units)).round().long().clamp(min=1)
        states = repeated(units, durations).transpose(1, 2)
        voice, language = (
            table(ids).transpose(1, 2).repeat(1, 1, states.shape[2])
            for table, ids in ((self.speaker_embedding, speaker), (self.language_embedding, lang_id))
        )
        waveform = self.hifi_gan(torch.cat([language, states, voice], dim=1))
        lengths = self._get_dur_output_lengths(input_ids, durations)
        return waveform, self._get_output_hifigan_lengths(lengths)

    return forward
