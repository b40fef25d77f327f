# SPDX-License-Identifier: Apache-2.0
"""`ExportedModel.generate` gives the ids of eager's ``generate``, past the window and past the traced length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transporters import ExportedModel

pytestmark = pytest.mark.model

#: The window of the zoo's models is 4: three of them and five more.
STEPS = 17
GREEDY: dict[str, Any] = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

FAST = [
    ("llama", "onnx"),
    ("gpt2", "onnx"),
    ("BloomForCausalLM", "torch"),
    ("MistralForCausalLM", "onnx"),
    ("Gemma3ForCausalLM", "torch"),
    ("Gemma3ForCausalLM", "onnx"),
    ("MambaForCausalLM", "torch"),
    ("FalconH1ForCausalLM", "onnx"),
]
SLOW = [
    (name, export_format)
    for name in (
        "OPTForCausalLM",
        "FalconForCausalLM",
        "MixtralForCausalLM",
        "DeepseekV3ForCausalLM",
        "GptOssForCausalLM",
        "Gemma3nForCausalLM",
        "Gemma4ForCausalLM",
        "MambaForCausalLM",
        "Mamba2ForCausalLM",
        "JambaForCausalLM",
        "lfm2",
        "Qwen3NextForCausalLM",
        "Llama4ForCausalLM",
    )
    for export_format in ("torch", "onnx")
]
#: A worker makes each program once: what the other files of this folder use is made where they run.
GROUP = {"onnx": "generation", "torch": "generation in torch"}

every = pytest.mark.parametrize(
    ("name", "export_format"),
    [
        pytest.param(*case, marks=[pytest.mark.xdist_group(GROUP[case[1]]), *([pytest.mark.slow] if slow else [])])
        for cases, slow in ((FAST, False), (SLOW, True))
        for case in dict.fromkeys(cases)
        if not slow or case not in FAST
    ],
)


def same(eager: Any, exported: ExportedModel, ids: torch.Tensor, **arguments: Any) -> None:
    given = {**GREEDY, **arguments}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = eager.generate(ids, **given)
        torch.manual_seed(0)
        actual = exported.generate(ids, **given)
    assert actual.tolist() == expected.tolist()


def left_padded(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two pads before the first row, three before the last."""
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    mask[-1, :3] = 0
    return {"ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


@every
def test_generate(name: str, export_format: str, model: Any, program: Any, text: Any) -> None:
    eager, exported = model(name), program(name, export_format)
    for rows in (1, 3):
        same(eager, exported, text(eager, rows, 7))
    for length in (1, 3, 4, 5, 8):  # one token, and about the window
        same(eager, exported, text(eager, 2, length), max_new_tokens=6)
    padded = left_padded(text(eager, 3, 7))
    same(eager, exported, **padded)
    same(eager, exported, **padded, num_beams=3, max_new_tokens=6)
    same(eager, exported, **padded, do_sample=True, max_new_tokens=6)


@every
def test_a_second_turn(name: str, export_format: str, model: Any, program: Any, text: Any) -> None:
    """Against the whole text at once: eager's own continuation of a Mamba's cache forgets the state."""
    eager, exported = model(name), program(name, export_format)
    padded = left_padded(text(eager, 3, 7))
    more = text(eager, 3, 3, seed=1)
    arguments = {**GREEDY, "max_new_tokens": 6}
    first = exported.generate(
        padded["ids"], attention_mask=padded["attention_mask"], return_dict_in_generate=True, **arguments
    )
    ids = torch.cat([first.sequences, more], dim=1)
    mask = torch.cat([padded["attention_mask"], torch.ones(3, ids.shape[1] - 7, dtype=torch.int64)], dim=1)
    whole = eager.generate(ids, attention_mask=mask, **arguments)
    seen = first.cache.get_seq_length()
    assert seen == 12, "the last new token was not fed yet"
    if all(first.cache.is_linear):  # as in eager, such a cache is continued with the new tokens only
        ids, mask = ids[:, seen:], mask[:, seen:]
    second = exported.generate(ids, attention_mask=mask, cache=first.cache, **arguments)
    assert second[:, -9:].tolist() == whole[:, -9:].tolist()


@every
def test_verified(name: str, export_format: str, program: Any) -> None:
    exported = program(name, export_format)
    report = exported.verify()
    assert report.verified
    ran = {v.name for v in report.variations if v.status == "verified"}
    assert {"sample", "batch 3", "batch 1", "length 6", "length 1", "length 17"} <= ran
    labels = {axis.label for axis in exported.contract.axes}
    if "past_sequence" in labels:
        assert {"past 12", "past 1", "past 0"} <= ran
    least = {"batch": 1, "sequence": 1, "past_sequence": 0, "past_window": 0}
    for axis in exported.contract.axes:
        if axis.dynamic:
            assert axis.minimum == least.get(axis.label, 1)
            assert axis.maximum is None or axis.maximum > 131000  # the scans' own limit
    assert not [finding for finding in exported.run.findings if finding.level == "warning"]
