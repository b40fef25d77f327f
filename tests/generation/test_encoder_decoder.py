# SPDX-License-Identifier: Apache-2.0
"""An encoder with a decoder as two programs in one folder, which write what eager's ``generate`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput

from transporters import DynamoExporter, ExportedModel, clients
from transporters.errors import ArtifactError, InputError, UsageError
from transporters.generation.cache_contract import CacheContract
from transporters.generation.decoder import empty_state, nested
from transporters.generation.encoder_decoder import CrossDecoder, Encoder, cross_contract
from transporters.inputs.samples import sample_inputs
from transporters.trees import pytrees
from transporters.zoo import build

pytestmark = pytest.mark.model

STEPS = 13
GREEDY: dict[str, Any] = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
NAMES = ["t5", "bart", "marian", "whisper"]
TEXT = [name for name in NAMES if name != "whisper"]
FILES = {
    "torch": ("encoder.pt2", "decoder.pt2"),
    "onnx": ("encoder_model.onnx", "decoder_model_merged.onnx"),
}
GROUP = {"onnx": "generation", "torch": "generation in torch"}


def over(names: list[str]) -> Any:
    cases = [
        pytest.param(name, export_format, marks=pytest.mark.xdist_group(GROUP[export_format]))
        for name in names
        for export_format in FILES
    ]
    return pytest.mark.parametrize(("name", "export_format"), cases)


def eager_ids(eager: Any, **given: Any) -> Any:
    """By Transformers' own loop, which Whisper has another around."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GenerationMixin.generate(eager, **{**GREEDY, **given})


def same(eager: Any, exported: ExportedModel, **given: Any) -> torch.Tensor:
    expected = eager_ids(eager, **given)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        actual = exported.generate(**{**GREEDY, **given})
    assert actual.tolist() == expected.tolist()
    found: torch.Tensor = actual
    return found


def right_padded(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    mask = torch.ones_like(ids)
    mask[0, 3:] = 0
    mask[-1, ids.shape[1] - 2 :] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def sound(rows: int) -> torch.Tensor:
    return torch.randn(rows, 16, 60, generator=torch.Generator().manual_seed(0))


def sample_of(exported: ExportedModel) -> dict[str, Any]:
    """A prompt for a model, whatever it takes."""
    takes_text = "input_ids" in exported.parts["encoder"].sample_inputs
    ids = torch.randint(5, 99, (3, 9), generator=torch.Generator().manual_seed(0))
    return right_padded(ids) if takes_text else {"input_features": sound(3)}


@pytest.mark.parametrize("name", NAMES)
def test_a_text_in_pieces(name: str, model: Any, text: Any) -> None:
    """The decoder over plain tensors, against the whole model without any cache."""
    whole = model(name)
    given = sample_inputs(whole)
    encoder = Encoder(whole)
    decoder = CrossDecoder(whole, cross_contract(encoder, given))
    assert [layer.kind for layer in decoder.contract.layers] == ["full", "cross", "full", "cross"]
    assert CacheContract.from_dict(decoder.contract.to_dict()) == decoder.contract
    ids = text(whole, 2, 12)
    with torch.no_grad():
        states = encoder(**encoder.inputs(given))["last_hidden_state"]
        masks = {"attention_mask": given["attention_mask"]} if decoder.takes_mask else {}
        outputs = BaseModelOutput(last_hidden_state=states)
        expected = whole(encoder_outputs=outputs, decoder_input_ids=ids, use_cache=False, **masks).logits
    masks = {f"encoder_{name}": mask for name, mask in masks.items()}
    state, at = empty_state(decoder.contract, 2), 0
    for new in (5, 3, 1, 1, 2):
        with torch.no_grad():
            outputs = decoder(ids[:, at : at + new], **masks, encoder_hidden_states=states, **nested(state))
        found = dict(pytrees.named_leaves(outputs))
        torch.testing.assert_close(found["logits"], expected[:, at : at + new], rtol=1e-4, atol=1e-4)
        state, at = {slot.name: found[slot.present] for slot in decoder.contract.slots}, at + new
        for slot in decoder.contract.slots:
            assert tuple(state[slot.name].shape) == slot.sizes(2, at, states.shape[1])


@over(TEXT)
def test_generate(name: str, export_format: str, model: Any, program: Any, text: Any) -> None:
    eager, exported = model(name), program(name, export_format)
    assert exported.parts["encoder"].sample_inputs["input_ids"].shape[1] == 7
    for rows, length in ((1, 7), (3, 7), (1, 40), (3, 40), (2, 1)):
        same(eager, exported, input_ids=text(eager, rows, length))
    padded = right_padded(text(eager, 3, 12))
    together = same(eager, exported, **padded)
    assert len({tuple(row) for row in together.tolist()}) > 1, "the rows' texts are to tell them apart"
    for row, (ids, mask) in enumerate(zip(padded["input_ids"], padded["attention_mask"])):
        alone = exported.generate(input_ids=ids[mask.bool()][None], **GREEDY)
        assert alone[0].tolist() == together[row].tolist()
    same(eager, exported, **padded, num_beams=3)
    same(eager, exported, **padded, do_sample=True)


@over(["whisper"])
def test_generate_from_sound(name: str, export_format: str, model: Any, program: Any) -> None:
    eager, exported = model(name), program(name, export_format)
    for rows in (1, 3):
        free = same(eager, exported, input_features=sound(rows))
    same(eager, exported, input_features=sound(3), num_beams=3)
    first, later = free[0, 1].item(), free[0, 4].item()
    held = {"begin_suppress_tokens": [first], "suppress_tokens": [later]}
    kept = same(eager, exported, input_features=sound(3), **held)
    assert kept[0, 1] != first
    assert later not in kept[0].tolist()
    prompt = torch.tensor([[1, 7, 8]]).repeat(3, 1)
    assert same(eager, exported, input_features=sound(3), decoder_input_ids=prompt)[:, :3].tolist() == prompt.tolist()


@over(NAMES)
def test_verified(name: str, export_format: str, program: Any) -> None:
    exported = program(name, export_format)
    report = exported.verify()
    assert report.verified
    ran = {v.name for v in report.variations if v.status == "verified"}
    assert {"sample", "batch 3", "batch 1", "length 6", "length 1", "past 12", "past 1", "past 0"} <= ran
    assert {"encoder past 0", "encoder length 1", "encoder: sample", "encoder: batch 3", "greedy generation"} <= ran
    if name in TEXT:
        assert {"encoder length 37", "encoder: length 37", "encoder: right-padded rows alone"} <= ran
    least = {"past_sequence": 0, "past_encoder_sequence": 0}
    for axis in exported.contract.axes:
        if axis.dynamic:
            assert axis.minimum == least.get(axis.label, 1)
            assert axis.maximum is None or name != "t5"
    findings = exported.run.findings + exported.parts["encoder"].run.findings
    assert not [finding for finding in findings if finding.level == "warning"]


@over(NAMES)
def test_saved_and_loaded(name: str, export_format: str, model: Any, program: Any, tmp_path: Path) -> None:
    eager, exported = model(name), program(name, export_format)
    folder = exported.save(tmp_path / "out")
    encoder_file, decoder_file = FILES[export_format]
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    encoder = manifest["parts"]["encoder"]
    assert (encoder["file"], manifest["file"]) == FILES[export_format]
    assert {encoder_file, decoder_file, "sample_inputs.safetensors"} <= set(manifest["files"])
    kinds = [(layer["kind"], layer["tensors"][0]["shape"][2]) for layer in manifest["cache_contract"]["layers"]]
    assert kinds == [("full", "past"), ("cross", "cross")] * 2
    again = ExportedModel.load(folder)
    same(eager, again, **sample_of(again))
    assert again.verify(model=eager).verified
    (folder / encoder_file).unlink()
    with pytest.raises(ArtifactError, match=f"lacks the file {encoder_file}"):
        ExportedModel.load(folder)


@pytest.mark.xdist_group("generation")
def test_names_that_clients_know(model: Any, program: Any) -> None:
    exported = program("bart", "onnx")
    tensors = [f"{layer}.{of}.{part}" for layer in (0, 1) for of in ("decoder", "encoder") for part in ("key", "value")]
    graph, encoder = exported.program.graph, exported.parts["encoder"].program.graph
    fixed = ["input_ids", "encoder_attention_mask", "encoder_hidden_states"]
    assert [value.name for value in graph.inputs] == [*fixed, *(f"past_key_values.{name}" for name in tensors)]
    assert [value.name for value in graph.outputs] == ["logits", *(f"present.{name}" for name in tensors)]
    assert [value.name for value in encoder.inputs] == ["input_ids", "attention_mask"]
    assert [value.name for value in encoder.outputs] == ["last_hidden_state"]
    sizes = {value.name: [str(size) for size in value.shape] for value in (*graph.inputs, *graph.outputs)}
    assert sizes["past_key_values.1.encoder.key"] == ["batch", "4", "past_encoder_sequence", "8"]
    (states,) = [entry for entry in program("bart", "torch").outputs if entry["name"] == "present.1.encoder.key"]
    assert states["shape"] == ["batch", 4, "encoder_sequence", 8]
    assert not {"If", "Loop", "Scan"} & {node.op_type for node in graph.all_nodes()}
    weights = {name for name, _ in model("bart").named_parameters()}
    theirs = {name for name in weights if ".encoder." in name}
    assert not set(graph.initializers) & theirs
    assert set(graph.initializers) >= weights - theirs - {"model.shared.weight"}
    assert not set(encoder.initializers) & (weights - theirs - {"model.shared.weight"})
    assert "encoder_attention_mask" not in [value.name for value in program("whisper", "onnx").program.graph.inputs]


@pytest.mark.xdist_group("generation")
def test_a_client_of_decoders_alone(program: Any) -> None:
    (client,) = clients.find(["onnxruntime-genai"], "onnx")
    with pytest.raises(UsageError, match="runs decoders alone, and this one has its encoder beside it"):
        client.adapt(program("bart", "onnx"), None)


@over(["marian"])
def test_the_bias_of_the_logits(name: str, export_format: str, model: Any, program: Any) -> None:
    eager, exported = model(name), program(name, export_format)
    report = exported.verify()
    sample = report.variations[0]
    (check,) = [check for check in sample.outputs if check.name == "logits"]
    assert check.passed
    whole = exported.eager_model()
    given = exported.sample_inputs
    assert eager.final_logits_bias.abs().max() > 1
    kept = eager.final_logits_bias.clone()
    with torch.no_grad():
        expected = whole(**given)["logits"]
        eager.final_logits_bias.zero_()
        without = whole(**given)["logits"]
        eager.final_logits_bias.copy_(kept)
    tolerance = check.atol + check.rtol * float(expected.abs().max())
    assert float((expected - without).abs().max()) >= 100 * tolerance


@pytest.mark.xdist_group("generation in torch")
def test_a_part_that_is_wrong(model: Any, program: Any, tmp_path: Path) -> None:
    """A failed encoder fails the report, and the ids with it."""
    loaded = ExportedModel.load(program("bart", "torch").save(tmp_path / "out"))
    encoder = loaded.parts["encoder"]
    runner = encoder.runner

    class Wrong:
        def run(self, inputs: Any) -> Any:
            return [leaf.flip(-1) for leaf in runner.run(inputs)]

    encoder._runner = Wrong()
    report = loaded.verify(model=model("bart"))
    status = {variation.name: variation.status for variation in report.variations}
    assert not report.verified
    assert (status["sample"], status["encoder: sample"]) == ("verified", "mismatch")
    assert status["greedy generation"] == "mismatch"


def test_what_is_refused(model: Any) -> None:
    exporter = DynamoExporter()
    with pytest.raises(InputError, match="a tensor with a row for each text"):
        exporter.export_for_generation(model("t5"), {})
    with pytest.raises(InputError, match="keeps a window and a full cache"):
        exporter.export_for_generation(build("T5GemmaForConditionalGeneration"))
