# SPDX-License-Identifier: Apache-2.0
"""Tiny decoders by name, and their programs, each made once."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM, MarianConfig, MarianMTModel

import tiny
from transporters import AutoExporter, ExportedModel
from transporters.zoo import build


def lfm2() -> Any:
    """A short convolution, attention, and a convolution: the zoo's has attention only."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    layers = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Lfm2ForCausalLM(Lfm2Config(vocab_size=99, initializer_range=0.2, **sizes, **layers)).eval()


def marian() -> Any:
    """A bias of the logits that is a buffer, and 0 in a model that was not trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        special = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": 2}
        found = MarianMTModel(MarianConfig(**tiny.SEQ2SEQ, **special, max_position_embeddings=64, init_std=tiny.WIDE))
        found.final_logits_bias.normal_()
        return found.eval()


@cache
def model(name: str) -> Any:
    """A tiny model of this file, of ``tests/tiny.py``, or of the zoo where the name is a class."""
    if name in ("lfm2", "marian"):
        return {"lfm2": lfm2, "marian": marian}[name]()
    return build(name) if name[0].isupper() else tiny.build(name)


@cache
def program(name: str, export_format: str) -> ExportedModel:
    return AutoExporter.from_format(export_format).export_for_generation(model(name))


@pytest.fixture(name="model")
def _model() -> Any:
    return model


@pytest.fixture(name="program")
def _program() -> Any:
    return program


@pytest.fixture
def text() -> Any:
    """Random ids ``(rows, length)`` for a model, none of them a special one."""

    def make(of: Any, rows: int, length: int, seed: int = 0) -> torch.Tensor:
        vocabulary = of.config.get_text_config().vocab_size
        return torch.randint(5, vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))

    return make
