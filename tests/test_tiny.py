# SPDX-License-Identifier: Apache-2.0
"""The tiny models are worth testing with: small, the same every time, and a feature that is dropped shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tiny import TINY, build
from transporters.inputs.samples import sample_inputs

#: Far above any tolerance that a comparison of programs uses (about 1e-5 of the outputs' size, which is near 1).
VISIBLE = 1e-2


def logits(model: Any, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        outputs = model(**inputs)
    found = outputs.logits if "logits" in outputs else outputs.last_hidden_state
    assert isinstance(found, torch.Tensor)
    return found


def moved(before: torch.Tensor, after: torch.Tensor) -> float:
    return float((before - after).abs().max())


@pytest.mark.parametrize("name", TINY)
def test_small_and_the_same_every_time(name: str) -> None:
    first, second = build(name), build(name)
    assert sum(parameter.numel() for parameter in first.parameters()) < 2_000_000
    assert not first.training
    state = second.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in first.state_dict().items())


@pytest.mark.parametrize("name", ["bert", "llama", "qwen3", "gemma3", "mixtral", "mamba", "gpt2", "t5", "bart"])
def test_the_mask_shows(name: str) -> None:
    model = build(name)
    sample = sample_inputs(model, length=9)
    mask = sample["attention_mask"].clone()
    mask[0, :3] = 0
    assert moved(logits(model, **sample)[0, -1], logits(model, **{**sample, "attention_mask": mask})[0, -1]) > VISIBLE


def test_absolute_positions_show() -> None:
    model = build("gpt2")
    sample = sample_inputs(model, length=9)
    later = torch.arange(3, 12).expand(2, -1)
    assert moved(logits(model, **sample), logits(model, **sample, position_ids=later)) > VISIBLE


def test_the_sliding_window_shows() -> None:
    model = build("gemma3")
    sample = sample_inputs(model, length=12)
    before = logits(model, **sample)
    wide = build("gemma3")
    wide.config.sliding_window = 64
    for layer in wide.model.layers:
        layer.self_attn.sliding_window = 64 if layer.self_attn.sliding_window else None
    assert moved(before, logits(wide, **sample)) > VISIBLE


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_one_expert_shows(name: str) -> None:
    model = build(name)
    sample = sample_inputs(model, batch=4, length=25)
    before = logits(model, **sample)
    with torch.no_grad():
        model.model.layers[0].mlp.experts.down_proj[0].zero_()
    assert moved(before, logits(model, **sample)) > VISIBLE


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_short_sample_leaves_an_expert_idle(name: str) -> None:
    """What a trace on few tokens must not bake in: experts that only a later input reaches."""
    model = build(name)
    sample = sample_inputs(model, batch=1, length=1)
    with torch.no_grad():
        chosen = model(**sample, output_router_logits=True).router_logits
    top = model.config.num_experts_per_tok
    assert all(layer.topk(top).indices.unique().numel() < layer.shape[-1] for layer in chosen)


def test_relative_positions_show() -> None:
    model = build("t5")
    sample = sample_inputs(model, length=9)
    before = logits(model, **sample)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.zero_()
    assert moved(before, logits(model, **sample)) > VISIBLE


def test_the_pixel_mask_shows() -> None:
    model = build("detr")
    sample = sample_inputs(model)
    whole = {**sample, "pixel_mask": torch.ones_like(sample["pixel_mask"])}
    assert moved(logits(model, **sample), logits(model, **whole)) > VISIBLE


def test_the_place_of_the_image_shows() -> None:
    model = build("qwen2_vl")
    sample = sample_inputs(model)
    plain = {**sample, "mm_token_type_ids": torch.zeros_like(sample["mm_token_type_ids"])}
    assert moved(logits(model, **sample), logits(model, **plain)) > VISIBLE
