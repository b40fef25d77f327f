# SPDX-License-Identifier: Apache-2.0
"""Mean and deviation of every row's own frames, row by row in a Python loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


def row_statistics(states: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and sample deviation of the first frames of each row.

    Args:
        states: (batch, frames, width).
        lengths: (batch,) integers; as in a slice ``[:length]``, a negative one counts from the end.

    Returns:
        Two tensors (batch, width); the mean of no frame and the deviation of less than two are nan.
    """
    frames = states.shape[1]
    lengths = torch.where(lengths < 0, lengths + frames, lengths).clamp(0, frames)
    inside = (torch.arange(frames, device=states.device) < lengths[:, None])[:, :, None]
    count = lengths[:, None].to(states.dtype)
    mean = torch.where(inside, states, 0.0).sum(dim=1) / count
    squares = torch.where(inside, (states - mean[:, None]).square(), 0.0).sum(dim=1)
    return mean, (squares / (count - 1).clamp(min=0)).sqrt()


class _Speakers(torch.nn.Module):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.wav2vec2 import modeling_wav2vec2 as wav2vec2

        convolutions = {"conv_dim": [8], "conv_kernel": [4], "conv_stride": [2], "num_conv_pos_embedding_groups": 2}
        head = {"tdnn_dim": [8], "tdnn_kernel": [3], "tdnn_dilation": [1], "xvector_output_dim": 4}
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = wav2vec2.Wav2Vec2Config(**sizes, **convolutions, **head, num_conv_pos_embeddings=4)
        self.model = wav2vec2.Wav2Vec2ForXVector(config)

    def forward(self, audio: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Embeddings of audio (batch, samples), of which each row has a length of its own."""
        mask = (torch.arange(audio.shape[1]) < lengths[:, None]).long()
        found: torch.Tensor = self.model(audio, attention_mask=mask).embeddings
        return found


def _audio_and_lengths() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(3, 64), torch.randint(24, 65, (3,))


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*ForXVector.forward",
    why="a Python loop over the rows cuts each to its own length, which freezes the batch",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Speakers, _audio_and_lengths, dynamic=True, builds=True),
)
def _patch_statistics_pooling(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave frames past a row's length out of sums over all rows."""
    from transformers.backbone_utils import filter_output_hidden_states
    from transformers.modeling_outputs import XVectorOutput
    from transformers.utils.generic import can_return_tuple

    signature = inspect.signature(original)

    def pooled(self: Any, attention_mask: torch.Tensor, **kwargs: Any) -> Any:
        found = self.base_model(attention_mask=attention_mask, **kwargs)
        states = found.last_hidden_state
        if self.config.use_weighted_layer_sum:
            shares = self.layer_weights.softmax(dim=-1).view(-1, 1, 1)
            states = (torch.stack(found.hidden_states, dim=1) * shares).sum(dim=1)
        states = self.projector(states)
        for layer in self.tdnn:
            states = layer(states)
        lengths = self._get_feat_extract_output_lengths(attention_mask.sum(dim=1))
        lengths = self._get_tdnn_output_lengths(lengths).long()
        embeddings = self.feature_extractor(torch.cat(row_statistics(states, lengths), dim=-1))
        return XVectorOutput(
            logits=self.classifier(embeddings),
            embeddings=embeddings,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )

    inner = can_return_tuple(filter_output_hidden_states(pooled))

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        given |= given.pop("kwargs", {})
        if given.get("attention_mask") is None or given.pop("labels", None) is not None:
            return NotImplemented
        return inner(**given)

    return forward
