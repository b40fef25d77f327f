# SPDX-License-Identifier: Apache-2.0
"""Weights are referenced on the way from the caller's model to the program, never copied."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tiny import build
from transporters import DynamoExporter
from transporters.inputs.samples import sample_inputs

pytestmark = pytest.mark.model

MEASURE = """
import re, torch
from transformers import BertConfig, BertModel
from transporters import DynamoExporter

def status(key):
    return int(re.search(rf"{key}:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

def make(vocabulary):
    config = BertConfig(vocab_size=vocabulary, hidden_size=256, num_hidden_layers=2, num_attention_heads=4)
    torch.set_default_dtype(torch.float32)
    return BertModel(config, add_pooling_layer=False).eval()

inputs = {"input_ids": torch.ones(2, 7, dtype=torch.long), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
warm = DynamoExporter().export(make(100), inputs)          # the fixed cost: imports, caches, the allocator's pools
before = status("VmRSS")
model = make(500_000)                                       # 512 MB in one embedding, and a tiny graph
weights = sum(p.nbytes for p in model.parameters())
loaded = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")               # the peak from here on
exported = DynamoExporter().export(model, inputs)
print(weights, loaded - before, status("VmHWM") - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc; the peak is measured on Linux only")
def test_peak_memory_of_an_export():
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE)], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-2000:]
    weights, loaded, peak = map(int, result.stdout.split())
    assert weights > 500e6
    assert loaded > 0.95 * weights, "the measurement is blind: the weights are not resident"
    assert peak <= 1.15 * weights + 60e6


@pytest.mark.parametrize("name", ["bert", "mixtral", "swin"])
def test_the_program_holds_the_models_own_tensors(name):
    model = build(name)
    program = DynamoExporter().export(model, sample_inputs(model)).program
    own = {n: t.data_ptr() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    held = {n: t.data_ptr() for n, t in program.state_dict.items()}
    assert set(held) <= set(own)
    assert all(own[n] == pointer for n, pointer in held.items())


def test_layer_names_survive_to_the_program():
    model = build("llama")
    program = DynamoExporter().export(model, sample_inputs(model)).program
    stacks = [n.meta.get("nn_module_stack") or {} for n in program.graph.nodes]
    named = {path for stack in stacks for path, _ in stack.values()}
    assert {f"model.layers.{i}.mlp.down_proj" for i in range(2)} <= named
