# SPDX-License-Identifier: Apache-2.0
"""An encoder with a decoder in ExecuTorch: the decoder has its cache inside, and what the encoder gave beside it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationMixin, T5Config, T5ForConditionalGeneration

from transporters import ExecutorchExporter, ExportedModel, clients
from transporters.errors import ArtifactError, InputError, RunError, UsageError
from transporters.generation.cache_contract import CacheContract
from transporters.generation.static_cross import CrossStates, StaticCrossDecoder, unfit_behind_encoder
from transporters.inputs.samples import sample_inputs
from transporters.zoo import build

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("generation in executorch")]

CONTEXT = 24

#: Tokens of a text for Bart's encoder.
LONGEST = 45
GREEDY: dict[str, Any] = {"max_new_tokens": 18, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
TEXT = ("untied t5", "bart", "marian")
every = pytest.mark.parametrize(
    "name",
    [
        "untied t5",
        "marian",
        "whisper",
        "bart",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "M2M100ForConditionalGeneration",
                "PegasusForConditionalGeneration",
                "UMT5ForConditionalGeneration",
                "SwitchTransformersForConditionalGeneration",
                "EncoderDecoderModel",
                "VisionEncoderDecoderModel",
            )
        ),
    ],
)


@cache
def untied_t5() -> Any:
    """Wide weights and a head of its own: with T5's own initialization every text is one id again and again."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = T5Config(**sizes, **buckets, decoder_start_token_id=0, tie_word_embeddings=False)
        found = T5ForConditionalGeneration(config).eval()
        for name, parameter in found.named_parameters():
            if "relative_attention_bias" in name:
                torch.nn.init.normal_(parameter, std=2.0)
            elif "block" in name and parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.8)
        return found


def eager_of(model: Any, name: str) -> Any:
    return untied_t5() if name == "untied t5" else model(name)


@cache
def made(model: Any, name: str) -> ExportedModel:
    more = {"max_dims": {"sequence": LONGEST}} if name == "bart" else {}
    return ExecutorchExporter().export_for_generation(eager_of(model, name), None, {"max_context": CONTEXT, **more})


@pytest.fixture(name="behind")
def _behind(model: Any) -> Any:
    return lambda name: (eager_of(model, name), made(model, name))


def loaded(exported: ExportedModel, tmp_path: Path) -> ExportedModel:
    return ExportedModel.load(exported.save(tmp_path / "out"))


def same(eager: Any, exported: ExportedModel, **given: Any) -> list[int]:
    """The ids of both, by Transformers' own loop, which Whisper has another around."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = GenerationMixin.generate(eager, **{**GREEDY, **given})
        torch.manual_seed(0)
        actual = exported.generate(**{**GREEDY, **given})
    assert actual.tolist() == expected.tolist()
    found: list[int] = actual[0].tolist()
    return found


def given(eager: Any, exported: ExportedModel, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """What to write from: texts as long as the traced one, longer and shorter, some of them padded; or other things."""
    sample = exported.parts["encoder"].sample_inputs
    noise = torch.Generator().manual_seed(seed)
    if "input_ids" not in sample:
        (name, value), *_ = sample.items()
        return [{name: loudness * torch.randn(value.shape, generator=noise)} for loudness in (1, 4, 9)]
    assert sample["input_ids"].shape == (1, 7)
    texts = []
    for length, real in ((7, 7), (40, 40), (40, 29), (3, 3), (5, 2), (1, 1)):
        ids = torch.randint(5, 99, (1, length), generator=noise)
        mask = (torch.arange(length) < real).long()[None]
        texts.append({"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask})
    return texts


@every
def test_the_ids_of_eager(name: str, behind: Any, tmp_path: Path) -> None:
    eager, exported = behind(name)
    again = loaded(exported, tmp_path)
    start = {} if name in (*TEXT, "whisper") else {"decoder_start_token_id": 0}
    greedy = [same(eager, again, **inputs, **start) for inputs in given(eager, again)]
    assert len({tuple(ids) for ids in greedy}) > 1, "the inputs are to tell the texts apart"
    assert all(len(ids) == 19 for ids in greedy)
    for inputs in given(eager, again, seed=1):
        sampled = same(eager, again, **inputs, **start, do_sample=True, top_k=0, temperature=4.0)
        assert len(set(sampled)) > 5
    assert again.verify(model=eager).verified


@every
def test_verified(name: str, behind: Any) -> None:
    _, exported = behind(name)
    report = exported.verify()
    assert report.verified
    ran = {variation.name for variation in report.variations if variation.status == "verified"}
    assert {"sample", "length 6", "length 1", "encoder length 1", "encoder: sample", "greedy generation"} <= ran
    if name in TEXT:
        assert {"length 17", "encoder length 10", "encoder length 37", "encoder: length 37", "encoder: length 1"} <= ran
        detail = "12 new ids for a text of 5 tokens, padded on the right to 7: eager has the same"
        assert report.variations[-1].detail == detail
    for axis in exported.contract.axes:
        assert axis.dynamic == (axis.label in ("sequence", "encoder_sequence"))
        assert axis.label != "sequence" or axis.maximum == CONTEXT
    findings = exported.run.findings + exported.parts["encoder"].run.findings
    assert not [finding for finding in findings if finding.level == "warning"]


def test_the_folder(behind: Any, tmp_path: Path) -> None:
    _, exported = behind("marian")
    folder = exported.save(tmp_path / "out")
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    assert (manifest["file"], manifest["parts"]["encoder"]["file"]) == ("decoder.pte", "encoder.pte")
    assert {"decoder.pte", "decoder.pte.json", "encoder.pte", "encoder.pte.json"} <= set(manifest["files"])
    contract = manifest["cache_contract"]
    assert contract["context"] == CONTEXT
    kinds = [(layer["kind"], layer["tensors"][0]["shape"][2]) for layer in contract["layers"]]
    assert kinds == [("full", "past"), ("cross", "cross")] * 2
    cross = [tensor for layer in contract["layers"] if layer["kind"] == "cross" for tensor in layer["tensors"]]
    inputs = [entry["name"] for entry in manifest["inputs"]]
    assert inputs == ["tokens", "input_pos", "encoder_attention_mask", *(tensor["input"] for tensor in cross)]
    outputs = [entry["name"] for entry in manifest["parts"]["encoder"]["outputs"]]
    assert outputs == [tensor["output"] for tensor in cross]
    (folder / "encoder.pte").unlink()
    with pytest.raises(ArtifactError, match=r"lacks the file encoder\.pte"):
        ExportedModel.load(folder)


def test_the_decoder_has_room_for_what_the_encoder_gives(behind: Any) -> None:
    """What bounds the encoder's text bounds its states; other bounds are the model's own."""
    for name, longest in (("bart", LONGEST), ("marian", 64), ("whisper", 30)):
        _, exported = behind(name)
        bounds = exported.runner.describe()["bounds"]
        assert bounds["past_key_values.1.encoder.value"] == [1, 4, longest, 8]
        assert bounds["tokens"] == [1, CONTEXT]
        assert exported.parts["encoder"].runner.output_bounds()["present.1.encoder.value"] == [1, 4, longest, 8]


def test_weights_are_in_one_file(behind: Any) -> None:
    eager, exported = behind("untied t5")
    decoder, encoder = exported.program["pte"], exported.parts["encoder"].program["pte"]
    for name, parameter in eager.named_parameters():
        if parameter.ndim != 2 or "relative" in name:
            continue  # a vector or a table of biases may be folded into something else
        value = parameter.detach().numpy().tobytes()
        projects = "EncDecAttention.k" in name or "EncDecAttention.v" in name
        of_encoder = name.startswith("encoder.") or projects
        both = name.startswith("shared.")
        assert (value in encoder, value in decoder) == (of_encoder or both, not of_encoder or both), name


def test_one_text_at_a_time(behind: Any) -> None:
    eager, exported = behind("marian")
    first, second = given(eager, exported)[:2]
    alone = same(eager, exported, **first)
    same(eager, exported, **second)
    assert same(eager, exported, **first) == alone, "a text begins anew"
    rows = {name: value.repeat(2, 1) for name, value in first.items()}
    for more in (rows, {**first, "num_beams": 2}):
        with pytest.raises(UsageError, match="no batch of several, and no beams"):
            exported.generate(**more, **GREEDY)
    with pytest.raises(RunError, match=f"has {CONTEXT + 1} tokens, the program's cache holds {CONTEXT}"):
        exported.generate(**first, **{**GREEDY, "max_new_tokens": CONTEXT + 1})


def test_a_text_to_go_on_from(behind: Any) -> None:
    """Several tokens of the decoder at once, and no more than memory is planned for."""
    eager, exported = behind("whisper")
    prompt = torch.tensor([[1, 7, 8, 9]])
    inputs = given(eager, exported)[0]
    assert same(eager, exported, **inputs, decoder_input_ids=prompt)[:4] == prompt[0].tolist()
    padded = {"decoder_input_ids": prompt, "decoder_attention_mask": torch.tensor([[0, 1, 1, 1]])}
    with pytest.raises(UsageError, match="the program takes no padding"):
        exported.generate(**inputs, **padded, **GREEDY)


def test_the_bias_of_the_logits(behind: Any) -> None:
    eager, exported = behind("marian")
    (check,) = exported.verify().variations[0].outputs
    whole, sample = exported.eager_model(), exported.sample_inputs
    kept = eager.final_logits_bias.clone()
    assert kept.abs().max() > 1
    with torch.no_grad():
        expected = whole(**sample)["logits"]
        eager.final_logits_bias.zero_()
        without = whole(**sample)["logits"]
        eager.final_logits_bias.copy_(kept)
    assert check.name == "logits"
    assert check.passed
    tolerance = check.atol + check.rtol * float(expected.abs().max())
    assert float((expected - without).abs().max()) >= 100 * tolerance


def test_verification_sees_other_keys(behind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder's program whose keys are wrong, and a decoder's that is right."""
    _, exported = behind("untied t5")
    encoder = exported.parts["encoder"]
    real = encoder.runner.run
    monkeypatch.setattr(encoder.runner, "run", lambda given: [leaf.flip(1) for leaf in real(given)])
    report = exported.verify()
    status = {variation.name: variation.status for variation in report.variations}
    assert (status["sample"], status["encoder: sample"]) == ("verified", "mismatch")
    assert status["greedy generation"] == "mismatch"


def test_the_model_stays_as_it_is(model: Any) -> None:
    eager = model("bart")
    sample = sample_inputs(eager)
    before = {name: tensor.data_ptr() for name, tensor in (*eager.named_parameters(), *eager.named_buffers())}
    contract = CacheContract.from_dict(made(model, "marian").cache_contract or {})
    decoder = StaticCrossDecoder(eager, contract)
    own = {name for name, _ in decoder.named_parameters()}
    assert any(name.startswith("cache_") for name, _ in decoder.named_buffers())
    assert not [name for name in own if name.startswith("model.encoder.layers")]
    CrossStates(eager)(**CrossStates(eager).inputs(sample))
    after = {name: tensor.data_ptr() for name, tensor in (*eager.named_parameters(), *eager.named_buffers())}
    assert after == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FSMTForConditionalGeneration", "gives other scores with it"),
        ("ProphetNetForConditionalGeneration", "refuses it: RuntimeError"),
    ],
)
def test_what_cannot_yet(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"cannot be exported to executorch yet: .*{words}"):
        ExecutorchExporter().export_for_generation(build(name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("T5GemmaForConditionalGeneration", "keeps a window and a full cache"),
        ("Speech2TextForConditionalGeneration", "its mask is none for the decoder"),
        ("DiaForConditionalGeneration", "writes no rows of ids"),
    ],
)
def test_what_no_format_can(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ExecutorchExporter().export_for_generation(build(name))


def test_a_model_that_projects_anew_is_found_out(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not ask whether the keys and values of the encoder's states are there."""
    eager = model("bart")
    sample = sample_inputs(eager)
    contract = CacheContract.from_dict(made(model, "marian").cache_contract or {})
    assert unfit_behind_encoder(eager, sample, contract) is None
    real = StaticCrossDecoder._cache

    def forgetful(self: Any, *given: Any) -> Any:
        found = real(self, *given)
        found.is_updated = {}
        return found

    monkeypatch.setattr(StaticCrossDecoder, "_cache", forgetful)
    assert "BartForConditionalGeneration gives other scores with it" in str(
        unfit_behind_encoder(eager, sample, contract)
    )


def test_a_client_of_decoders_alone(model: Any) -> None:
    (client,) = clients.find(["executorch"], "executorch")
    with pytest.raises(UsageError, match="runs decoders alone, and this one has its encoder beside it"):
        client.adapt(made(model, "marian"), None)


def test_what_is_wrong_in_a_configuration(model: Any) -> None:
    export = ExecutorchExporter().export_for_generation
    with pytest.raises(InputError, match=r"takes up to 40 tokens, so max_context=41 is too much"):
        export(model("whisper"), None, {"max_context": 41})
    with pytest.raises(UsageError, match="dynamic=False fixes it"):
        export(model("bart"), None, {"dynamic": False})
