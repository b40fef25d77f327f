# SPDX-License-Identifier: Apache-2.0
"""Decoders with their cache inside of an ExecuTorch program: one text at a time, with the ids of eager."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.runtime import Runtime
from transformers import GPT2Config, GPT2LMHeadModel

from transporters import ExecutorchExporter, ExportedModel
from transporters.errors import ConfigError, InputError, RunError, UsageError
from transporters.generation.decoder import cache_contract
from transporters.generation.static_decoder import StaticDecoder, static_contract, unfit
from transporters.runners.executorch_runner import ExecutorchRunner
from transporters.zoo import build

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("generation in executorch")]

CONTEXT = 40
GREEDY: dict[str, Any] = {"max_new_tokens": 17, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

every = pytest.mark.parametrize(
    "name",
    ["llama", "gpt2", "Qwen3ForCausalLM", "MistralForCausalLM", "BloomForCausalLM"]
    + [
        pytest.param(f"{name}ForCausalLM", marks=pytest.mark.slow)
        for name in (
            "OPT",
            "Phi",
            "Olmo",
            "Gemma3",
            "Falcon",
            "DeepseekV3",
            "GptOss",
            "Mamba",
            "Jamba",
            "Lfm2",
            "FalconH1",
        )
    ],
)


@pytest.fixture(name="inside")
def _inside(model: Any) -> Any:
    return lambda name: program(model, name)


@cache
def program(model: Any, name: str) -> ExportedModel:
    return ExecutorchExporter().export_for_generation(model(name), None, {"max_context": CONTEXT})


@every
def test_the_ids_of_eager(name: str, model: Any, inside: Any, text: Any) -> None:
    eager, exported = model(name), inside(name)
    for length in (7, 1, 12, 23):  # the last to the last place
        ids = text(eager, 1, length)
        assert exported.generate(ids, **GREEDY).tolist() == eager.generate(ids, **GREEDY).tolist()
    given = {**GREEDY, "do_sample": True, "top_k": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = eager.generate(ids, **given)
        torch.manual_seed(0)
        assert exported.generate(ids, **given).tolist() == expected.tolist()


@every
def test_a_second_turn(name: str, model: Any, inside: Any, text: Any) -> None:
    eager, exported = model(name), inside(name)
    arguments = {**GREEDY, "max_new_tokens": 6}
    first = exported.generate(text(eager, 1, 7), return_dict_in_generate=True, **arguments)
    ids = torch.cat([first.sequences, text(eager, 1, 3, seed=1)], dim=1)
    assert first.cache.get_seq_length() == 12, "the last new token was not fed yet"
    second = exported.generate(ids, cache=first.cache, **arguments)
    assert second.tolist() == eager.generate(ids, **arguments).tolist()


@every
def test_verified(name: str, inside: Any) -> None:
    report = inside(name).verify()
    assert report.verified
    status = {variation.name: variation.status for variation in report.variations}
    ran = ("sample", "length 6", "length 1", "length 17", "sample, after length 1", "greedy generation")
    assert status == dict.fromkeys(ran, "verified")


def test_verification_sees_a_wrong_place(model: Any, inside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that writes each step over the text's beginning is right for a single step only."""
    exported = inside("llama")
    real = ExecutorchRunner.run
    first = {"input_pos": torch.zeros(1).long()}
    monkeypatch.setattr(ExecutorchRunner, "run", lambda self, given: real(self, {**given, **first}))
    report = exported.verify()
    assert not report.verified
    assert [v.name for v in report.variations if v.status != "verified"] == ["greedy generation"]


def test_no_room_to_verify_a_loop(model: Any) -> None:
    exported = ExecutorchExporter().export_for_generation(model("llama"), None, {"max_context": 18})
    report = exported.verify()
    assert report.verified
    assert report.variations[-1].detail == "the program's cache holds 18 of 19 tokens"


def test_one_text_at_a_time(model: Any, inside: Any, text: Any) -> None:
    eager, exported = model("llama"), inside("llama")
    given = {**GREEDY, "max_new_tokens": 4}
    ids = text(eager, 1, 7)
    first = exported.generate(ids, return_dict_in_generate=True, **given)
    exported.generate(text(eager, 1, 5, seed=1), **given)
    with pytest.raises(UsageError, match="another one was begun"):
        exported.generate(first.sequences, cache=first.cache, **given)
    for more in ({"inputs": ids.repeat(2, 1)}, {"inputs": ids, "num_beams": 2}):
        with pytest.raises(UsageError, match="no batch of several, and no beams"):
            exported.generate(**more, **given)
    with pytest.raises(UsageError, match="no padding"):
        exported.generate(ids, attention_mask=(torch.arange(7) > 1).long()[None], **given)
    with pytest.raises(RunError, match=f"has {CONTEXT + 1} tokens, the program's cache holds {CONTEXT}"):
        exported.generate(text(eager, 1, CONTEXT - 3), **{**given, "max_new_tokens": 5})


def test_a_long_text_in_pieces(model: Any, text: Any) -> None:
    """More tokens than memory is planned for in one step."""
    eager = model("llama")
    config = {"max_context": CONTEXT, "max_dims": {"sequence": 5}}
    exported = ExecutorchExporter().export_for_generation(eager, None, config)
    ids = text(eager, 1, 13)
    assert exported.generate(ids, **GREEDY).tolist() == eager.generate(ids, **GREEDY).tolist()
    assert constants(exported)["get_max_seq_len"] == [5]


def constants(exported: ExportedModel) -> dict[str, list[Any]]:
    """What the program's other methods give."""
    program = Runtime.get().load_program(exported.program["pte"])
    methods = {name: program.load_method(name) for name in program.method_names if name != "forward"}
    return {name: list(method.execute([])) for name, method in methods.items() if method is not None}


def test_what_a_runner_asks_for() -> None:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=77, bos_token_id=3, eos_token_id=[4, 5])
    exported = ExecutorchExporter().export_for_generation(GPT2LMHeadModel(config).eval(), None, {"max_context": 24})
    assert constants(exported) == {
        "get_max_seq_len": [24],
        "get_max_context_len": [24],
        "get_n_layers": [1],
        "get_vocab_size": [77],
        "get_bos_id": [3],
        "get_eos_ids": [4, 5],
        "use_kv_cache": [True],
        "use_sdpa_with_kv_cache": [False],
        "enable_dynamic_shape": [True],
    }


def test_saved_and_loaded(model: Any, inside: Any, text: Any, tmp_path: Path) -> None:
    eager = model("llama")
    loaded = ExportedModel.load(inside("llama").save(tmp_path / "out"))
    ids = text(eager, 1, 7)
    assert loaded.generate(ids, **GREEDY).tolist() == eager.generate(ids, **GREEDY).tolist()
    assert loaded.verify(model=eager).verified


def test_the_model_stays_as_it_is(model: Any) -> None:
    eager = model("llama")
    before = {name: tensor.data_ptr() for name, tensor in (*eager.named_parameters(), *eager.named_buffers())}
    decoder = StaticDecoder(eager, static_contract(eager, 8))
    assert any(name.startswith("cache_") for name, _ in decoder.named_buffers())
    after = {name: tensor.data_ptr() for name, tensor in (*eager.named_parameters(), *eager.named_buffers())}
    assert after == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("GPTNeoForCausalLM", "gives other scores with it"),
        ("Kosmos2TextForCausalLM", "refuses it: RuntimeError"),
        ("LlavaForConditionalGeneration", "reads pictures"),
    ],
)
def test_what_cannot_yet(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"cannot be exported to executorch yet: .*{words}"):
        ExecutorchExporter().export_for_generation(build(name))


def test_a_model_that_counts_for_itself_is_found_out(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that heeds no ``position_ids`` has other scores in its second step."""
    eager = model("llama")
    real = type(eager.model.rotary_emb).forward
    contract = cache_contract(eager)
    assert unfit(eager, contract) is None
    monkeypatch.setattr(
        type(eager.model.rotary_emb),
        "forward",
        lambda self, x, position_ids, *more: real(self, x, position_ids - position_ids[:, :1], *more),
    )
    assert "gives other scores" in str(unfit(eager, contract))


def test_what_is_wrong_in_a_configuration(model: Any) -> None:
    export = ExecutorchExporter().export_for_generation
    with pytest.raises(ConfigError, match="max_context takes a number of tokens"):
        export(model("llama"), None, {"max_context": 0})
    with pytest.raises(InputError, match="max_context=1000000 is too much"):
        export(model("llama"), None, {"max_context": 10**6})
    with pytest.raises(UsageError, match="dynamic=False fixes it"):
        export(model("llama"), None, {"dynamic": False})
