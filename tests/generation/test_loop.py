# SPDX-License-Identifier: Apache-2.0
"""The cache of a program between two steps: its sizes by the contract, its memory, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from transporters import AutoExporter
from transporters.errors import UsageError
from transporters.generation.generator import generator

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("generation")]


@pytest.mark.parametrize(
    ("name", "export_format"),
    [("Gemma3ForCausalLM", "torch"), ("Gemma3ForCausalLM", "onnx"), ("FalconH1ForCausalLM", "onnx")],
)
def test_sizes_follow_the_contract(name: str, export_format: str, model: Any, program: Any, text: Any) -> None:
    """Prompts of different lengths, then single tokens, far past the window of 4."""
    loop = generator(program(name, export_format))
    for prompt in (1, 4, 9):
        cache, ids = loop.new_cache(), text(model(name), 2, prompt + 15)
        for start, end in ((0, prompt), *((at, at + 1) for at in range(prompt, prompt + 15))):
            loop(input_ids=ids[:, start:end], cache=cache)
            assert cache.get_seq_length() == end
            for slot in loop.contract.slots:
                held = loop.steps.tensor(cache.buffers[slot.name])
                least = slot.sizes(2, end)
                if slot.window is None:
                    assert tuple(held.shape) == least
                else:
                    assert least[2] <= held.shape[2] <= max(least[2], 2 * (slot.window - 1))
                assert str(held.dtype) == f"torch.{slot.dtype}"


def test_a_step_passes_the_runtimes_buffers_on(model: Any, program: Any, text: Any) -> None:
    """What a step gave is bound as it is: the same values, over the memory that ONNX Runtime gave them."""
    loop = generator(program("llama", "onnx"))
    cache, ids = loop.new_cache(), text(model("llama"), 2, 6)
    loop(input_ids=ids[:, :5], cache=cache)
    before = dict(cache.buffers)
    assert all(type(value).__name__ == "OrtValue" for value in before.values())
    seen = []
    step = loop.steps.step
    loop.steps.step = lambda inputs, state: seen.append(dict(state)) or step(inputs, state)
    loop(input_ids=ids[:, 5:], cache=cache)
    assert seen == [before]
    for value in cache.buffers.values():
        assert loop.steps.tensor(value).data_ptr() == value.data_ptr()


def test_rows_of_absolute_and_alibi_positions_equal_the_row_alone(model: Any, program: Any, text: Any) -> None:
    for name, export_format in (("gpt2", "onnx"), ("BloomForCausalLM", "torch")):
        exported, ids = program(name, export_format), text(model(name), 3, 7)
        lengths = (5, 7, 4)
        mask = torch.tensor([[0] * (7 - length) + [1] * length for length in lengths])
        arguments = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        together = exported.generate(ids.masked_fill(mask == 0, 0), attention_mask=mask, **arguments)
        for row, length in enumerate(lengths):
            alone = exported.generate(ids[row : row + 1, 7 - length :], **arguments)
            assert alone[0].tolist() == together[row, 7 - length :].tolist()


def test_a_prompt_in_chunks(model: Any, program: Any, text: Any) -> None:
    arguments = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ids = text(model("Gemma3ForCausalLM"), 2, 11)
    whole = model("Gemma3ForCausalLM").generate(ids, **arguments)
    exported = program("Gemma3ForCausalLM", "onnx")
    assert exported.generate(ids, prefill_chunk_size=3, **arguments).tolist() == whole.tolist()


def test_a_pad_that_is_also_the_end(model: Any, program: Any, text: Any) -> None:
    """The id stands inside of the text, as padding before it, and ends it."""
    eager, exported = model("llama"), program("llama", "onnx")
    ids = text(eager, 3, 7)
    ends = eager.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 10].item()
    ids[1, 3] = ends
    mask = torch.ones_like(ids)
    mask[2, :2] = 0
    ids[2, :2] = ends
    arguments = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": ends, "pad_token_id": ends}
    expected = eager.generate(ids, attention_mask=mask, **arguments)
    assert (expected[0, 7:] == ends).any()
    assert exported.generate(ids, attention_mask=mask, **arguments).tolist() == expected.tolist()


def test_traced_with_one_row_of_your_own(model: Any, text: Any) -> None:
    eager = model("llama")
    exported = AutoExporter.from_format("torch").export_for_generation(eager, {"input_ids": text(eager, 1, 5)})
    arguments = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ids = text(eager, 3, 7)
    assert exported.generate(ids, **arguments).tolist() == eager.generate(ids, **arguments).tolist()


def test_wrong_use(model: Any, program: Any, text: Any) -> None:
    exported, ids = program("llama", "onnx"), text(model("llama"), 1, 4)
    with pytest.raises(UsageError, match="no cache of this program"):
        exported.generate(ids, cache=DynamicCache())
    plain = AutoExporter.from_format("torch").export(model("llama"), {"input_ids": ids})
    with pytest.raises(UsageError, match="keeps no cache"):
        plain.generate(ids)
