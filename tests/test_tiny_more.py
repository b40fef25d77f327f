# SPDX-License-Identifier: Apache-2.0
"""The further tiny models: small, the same every time, and what makes each of them special shows in the outputs."""

from __future__ import annotations

import pytest
import torch

from test_tiny import VISIBLE, moved
from tiny import TINY, build
from tiny_more import MORE
from transporters.inputs.samples import sample_inputs


def hidden(name: str, **changed: torch.Tensor) -> torch.Tensor:
    model = build(name)
    with torch.no_grad():
        found = model(**{**sample_inputs(model), **changed})[0]
    assert isinstance(found, torch.Tensor)
    return found


def test_no_name_twice() -> None:
    assert not set(TINY) & set(MORE)


@pytest.mark.parametrize("name", MORE)
def test_small_and_the_same_every_time(name: str) -> None:
    first, second = build(name), build(name)
    assert sum(parameter.numel() for parameter in first.parameters()) < 2_000_000
    assert not first.training
    state = second.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in first.state_dict().items())


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("tapas", "token_type_ids"),
        ("layoutlmv3", "bbox"),
        ("layoutlmv3", "pixel_values"),
        ("longformer", "attention_mask"),
        ("deberta_v2", "attention_mask"),
        ("grounding_dino", "input_ids"),
        ("seamless_m4t_speech", "attention_mask"),
    ],
)
def test_an_input_shows(name: str, argument: str) -> None:
    value = sample_inputs(build(name))[argument].clone()
    value[:, value.shape[1] // 2 :] = 0
    assert moved(hidden(name)[:, :1].nan_to_num(), hidden(name, **{argument: value})[:, :1].nan_to_num()) > VISIBLE


def test_relative_positions_show() -> None:
    model = build("deberta_v2")
    sample = sample_inputs(model, length=24)
    with torch.no_grad():
        before = model(**sample)[0]
        model.encoder.rel_embeddings.weight.zero_()
        assert moved(before, model(**sample)[0]) > VISIBLE
