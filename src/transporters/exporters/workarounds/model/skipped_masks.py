# SPDX-License-Identifier: Apache-2.0
"""Attention masks that eager leaves out where nothing is padded, and that a program always has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


class _TextTower(torch.nn.Module):
    """The fault, for the reproducer: a causal mask for attention that calls itself not causal."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.aimv2 import modeling_aimv2 as aimv2

        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
        config = aimv2.Aimv2TextConfig(**sizes, vocab_size=8, eos_token_id=7, attn_implementation="sdpa")
        self.model = aimv2.Aimv2TextModel(config)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """States (batch, length, 16) of token ids (batch, length)."""
        found: torch.Tensor = self.model(input_ids, attention_mask=attention_mask).last_hidden_state
        return found


@register_patch(
    "model",
    "transformers.models.aimv2.modeling_aimv2.create_causal_mask",
    "transformers.models.phi4_multimodal.modeling_phi4_multimodal.create_bidirectional_mask",
    why="without padding eager passes no mask, and the attention goes by its own flag `is_causal`, which in these "
    "models says the contrary of the mask that a program always has",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(
        _TextTower,
        lambda: {"input_ids": torch.tensor([[1, 2, 3, 7], [4, 5, 6, 7]]), "attention_mask": torch.ones(2, 4).long()},
        dynamic=True,
        builds=True,
    ),
)
def _patch_contradicted_masks(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where nothing is padded, the mask that the attention's flag stands for."""
    flag_is_causal = "bidirectional" in original.__name__

    def create(*args: Any, **named: Any) -> Any:
        mask = original(*args, **named)
        padding = named.get("attention_mask")
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            return NotImplemented  # eager attention adds its mask and has no flag
        flagged = torch.ones_like(mask).tril() if flag_is_causal else torch.ones_like(mask)
        if padding is None:
            return flagged
        return torch.where(padding.bool().all(), flagged, mask)

    return create


class _SeesAll(torch.nn.Module):
    """The fault, for the reproducer: a text without prefix, which eager passes on without a mask."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.paligemma import modeling_paligemma as paligemma

        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        text = {"model_type": "gemma", **sizes, "vocab_size": 9, "num_key_value_heads": 2, "head_dim": 4}
        vision = {"model_type": "siglip_vision_model", **sizes, "image_size": 4, "patch_size": 2}
        config = paligemma.PaliGemmaConfig(vision_config=vision, text_config=text, image_token_index=8)
        self.model = paligemma.PaliGemmaModel(config)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """States (batch, length, 8) of token ids (batch, length)."""
        found: torch.Tensor = self.model(input_ids, attention_mask=attention_mask).last_hidden_state
        return found


@register_patch(
    "model",
    "transformers.models.paligemma.modeling_paligemma.create_causal_mask",
    "transformers.models.paligemma.modeling_paligemma.create_sliding_window_causal_mask",
    why="for a text of which nothing is cached or padded eager passes no mask, and layers that call themselves not "
    "causal then see all of it; a program always has the causal mask",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(
        _SeesAll,
        lambda: {"input_ids": torch.randint(0, 8, (2, 5)), "attention_mask": torch.ones(2, 5).long()},
        dynamic=True,
        builds=True,
    ),
)
def _patch_unmasked_texts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hide nothing where eager passes no mask."""
    is_sliding = "sliding" in original.__name__

    def create(*args: Any, **named: Any) -> Any:
        config, padding = named["config"], named.get("attention_mask")
        if not getattr(config, "use_bidirectional_attention", False) or named.get("block_sequence_ids") is not None:
            return NotImplemented
        mask = original(*args, **named)
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            return NotImplemented  # eager attention adds its mask, and always has it
        queries, keys = (torch.scalar_tensor(size, dtype=torch.int64) for size in mask.shape[-2:])
        is_open = (queries == keys).to(mask.device)
        if is_sliding:
            is_open = is_open & (keys < config.sliding_window).to(mask.device)
        return mask | (is_open if padding is None else is_open & padding.bool().all())

    return create


class _Series(torch.nn.Module):
    """The fault, for the reproducer: an encoder that halves its sequence, not its mask."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.informer import modeling_informer as informer

        sizes = {"d_model": 8, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 8}
        config = informer.InformerConfig(**sizes, prediction_length=64, attention_type="full", input_size=1)
        self.model = informer.InformerEncoder(config)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """States (batch, length / 2, 8) of values (batch, length, 9)."""
        found: torch.Tensor = self.model(inputs_embeds=values).last_hidden_state
        return found


@register_patch(
    "model",
    "transformers.models.informer.modeling_informer.create_bidirectional_mask",
    "transformers.models.autoformer.modeling_autoformer.create_bidirectional_mask",
    why="without padding eager passes no mask, and the layers, which halve the sequence or join it with itself, have "
    "no use for the one that a program has: it is of another length",
    issue="unreported",
    needed="transformers>=5.24",
    repro=Repro(_Series, lambda: (torch.rand(2, 12, 9),), dynamic=True, builds=True),
)
def _patch_unpadded_series(original: Callable[..., Any]) -> Callable[..., Any]:
    """No mask where nothing can be padded, as in eager."""

    def create(*args: Any, **named: Any) -> Any:
        return NotImplemented if args or named.get("attention_mask") is not None else None

    return create
