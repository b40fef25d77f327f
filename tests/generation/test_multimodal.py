# SPDX-License-Identifier: Apache-2.0
"""Models that read pictures as three programs in one folder, which write what eager's ``generate`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import prompt

from transporters import AutoExporter, ExecutorchExporter, ExportedModel
from transporters.errors import InputError, UsageError
from transporters.generation.cache_contract import CacheContract
from transporters.generation.multimodal import EmbedsDecoder, EmbedTokens, VisionEncoder
from transporters.generation.multimodal_export import embeds_step_sample
from transporters.inputs.samples import sample_inputs
from transporters.verification import compare
from transporters.zoo import build

pytestmark = pytest.mark.model

GREEDY: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
MORE = {"return_dict_in_generate": True}
LLAVA, GEMMA3, QWEN2, QWEN3, IDEFICS3 = (
    f"{name}ForConditionalGeneration" for name in ("Llava", "Gemma3", "Qwen2VL", "Qwen3VL", "Idefics3")
)
CASES = [(name, "torch") for name in (LLAVA, GEMMA3, QWEN3, IDEFICS3)]
CASES += [(name, "onnx") for name in (LLAVA, QWEN3)]
GROUP = {"onnx": "generation", "torch": "generation in torch"}
FILES = {
    "torch": ("decoder.pt2", "embed_tokens.pt2", "vision_encoder.pt2"),
    "onnx": ("decoder_model_merged.onnx", "embed_tokens.onnx", "vision_encoder.onnx"),
}


def over(cases: list[tuple[str, str]]) -> Any:
    marked = [pytest.param(*case, marks=pytest.mark.xdist_group(GROUP[case[1]])) for case in cases]
    return pytest.mark.parametrize(("name", "export_format"), marked)


def same(eager: Any, exported: ExportedModel, **given: Any) -> torch.Tensor:
    expected = eager.generate(**{**GREEDY, **given})
    actual: torch.Tensor = exported.generate(**{**GREEDY, **given})
    assert actual.tolist() == expected.tolist()
    return actual


def logits(eager: Any, given: dict[str, Any]) -> torch.Tensor:
    """Of the last token of each row."""
    with torch.no_grad():
        found: torch.Tensor = eager(**given).logits[:, -1]
    return found


def tell_apart(some: torch.Tensor, others: torch.Tensor) -> bool:
    """Whether two outputs are so far apart that no comparison could take one for the other."""
    atol, rtol = compare.tolerance(some, 0.0)
    return float((some - others).abs().max()) >= 100 * (atol + rtol * float(some.abs().max()))


@over(CASES)
def test_texts_with_pictures(name: str, export_format: str, model: Any, program: Any) -> None:
    """One row and two, padded on the left; one picture in a row, two, none, and none in any."""
    eager, exported = model(name), program(name, export_format)
    for counts in ([1], [1, 2], [0, 3], [0, 0]):
        same(eager, exported, **prompt(eager, counts))


@over(CASES)
def test_further_turns(name: str, export_format: str, model: Any, program: Any) -> None:
    """One without a picture, by the cache of the first, and one with other pictures."""
    eager, exported = model(name), program(name, export_format)
    given = prompt(eager, [1, 2])
    mask, caches, ids = given["attention_mask"], {}, given["input_ids"]
    for seed, counts in enumerate(([1, 2], [0, 0], [1, 1])):
        new = given if seed == 0 else prompt(eager, counts, seed)
        if seed:
            ids = torch.cat([ids, new["input_ids"]], dim=1)
            rest = mask.new_ones(2, ids.shape[1] - mask.shape[1] - new["attention_mask"].shape[1])
            mask = torch.cat([mask, rest, new["attention_mask"]], dim=1)
        more = {n: value for n, value in new.items() if n not in ("input_ids", "attention_mask")}
        for types in {"token_type_ids", "mm_token_type_ids"} & set(more):
            more[types] = torch.cat([mask.new_zeros(2, ids.shape[1] - more[types].shape[1]), more[types]], dim=1)
        texts = []
        for writer in (eager, exported):
            cache = {"cache": caches[id(writer)]} if caches.get(id(writer)) is not None else {}
            found = writer.generate(input_ids=ids, attention_mask=mask, **cache, **more, **GREEDY, **MORE)
            caches[id(writer)] = found.cache
            texts.append(found.sequences)
        assert texts[0].tolist() == texts[1].tolist()
        ids = texts[0]


@over([(LLAVA, "onnx"), (GEMMA3, "torch"), (QWEN3, "torch"), (IDEFICS3, "torch")])
def test_beams_and_a_prompt_in_pieces(name: str, export_format: str, model: Any, program: Any) -> None:
    eager, exported = model(name), program(name, export_format)
    given = prompt(eager, [1, 2])
    same(eager, exported, **given, num_beams=2)
    same(eager, exported, **given, prefill_chunk_size=4)  # eager's are other ids where a picture is cut in two


@pytest.mark.parametrize("name", [LLAVA, GEMMA3, QWEN2, QWEN3, IDEFICS3])
def test_what_is_dropped_shows(name: str, model: Any) -> None:
    """The tests above can fail: eager's outputs tell pictures, their shape, their layers and their mask apart."""
    eager = model(name)
    given, others = prompt(eager, [1, 2]), prompt(eager, [1, 2], seed=1)
    expected = logits(eager, given)
    assert tell_apart(expected, logits(eager, {**given, "pixel_values": others["pixel_values"]}))
    if "token_type_ids" in given:
        text = {**given, "token_type_ids": torch.zeros_like(given["token_type_ids"])}
        assert tell_apart(expected, logits(eager, text))
    if "image_grid_thw" in given:
        turned = given["image_grid_thw"][:, [0, 2, 1]]
        assert tell_apart(expected, logits(eager, {**given, "image_grid_thw": turned}))
    if name == QWEN3:
        decoder = EmbedsDecoder(eager, CacheContract.from_dict(contract_of(eager)))
        step = embeds_step_sample(decoder, sample_inputs(eager))
        empty = {at: torch.zeros_like(layer) for at, layer in step["deepstack_visual_embeds"].items()}
        with torch.no_grad():
            with_layers = decoder(**step)["logits"]
            without = decoder(**{**step, "deepstack_visual_embeds": empty})["logits"]
        assert tell_apart(with_layers, without)


def contract_of(eager: Any) -> dict[str, Any]:
    from transporters.generation.multimodal_contract import picture_contract

    return picture_contract(eager, sample_inputs(eager)).to_dict()


@over([(LLAVA, "onnx"), (QWEN3, "torch"), (GEMMA3, "torch")])
def test_saved(name: str, export_format: str, model: Any, program: Any, tmp_path: Path) -> None:
    eager = model(name)
    folder = program(name, export_format).save(tmp_path / "saved")
    assert all((folder / file).is_file() for file in FILES[export_format])
    manifest = json.loads((folder / "export.json").read_text())
    assert list(manifest["parts"]) == ["vision_encoder", "embed_tokens"]
    loaded = ExportedModel.load(folder)
    same(eager, loaded, **prompt(eager, [2, 1]))
    report = loaded.verify(model=eager)
    assert report.verified, report.to_dict()
    names = [v.name for v in report.variations if v.status == "verified"]
    for part in ("vision_encoder", "embed_tokens"):
        assert {f"{part}: sample", f"{part}: batch 3", f"{part}: batch 1"} & set(names), names
    assert {"sample", "past 0", "length 1", "batch 3", "greedy generation"} <= set(names)


@over([(LLAVA, "torch"), (QWEN3, "torch")])
def test_the_weights_are_the_models_own(name: str, export_format: str, model: Any, program: Any) -> None:
    """Under their names, each part with its own only."""
    own = {n: tensor.data_ptr() for n, tensor in model(name).state_dict().items()}
    exported = program(name, export_format)
    parts = {"decoder": exported, **exported.parts}
    held = {part: {n for n in of.program.state_dict if n in own} for part, of in parts.items()}
    for part, of in parts.items():
        assert all(own[n] == of.program.state_dict[n].data_ptr() for n in held[part])
        assert set(of.program.state_dict) == held[part]
    assert set().union(*held.values()) == set(own)
    assert list(held["embed_tokens"]) == ["model.language_model.embed_tokens.weight"]
    assert all("language_model" in n or n == "lm_head.weight" for n in held["decoder"])
    assert not any("language_model" in n for n in held["vision_encoder"])
    assert not held["decoder"] & held["embed_tokens"]


@pytest.mark.xdist_group("generation in torch")
def test_wrong_use(model: Any, program: Any) -> None:
    eager, exported = model(LLAVA), program(LLAVA, "torch")
    given = prompt(eager, [1, 2])
    with pytest.raises(UsageError, match="48 tokens for features of pictures, and the pictures have 32"):
        exported.generate(**{**given, "pixel_values": given["pixel_values"][:2]}, **GREEDY)
    with pytest.raises(ValueError, match="pixel_value'"):
        exported.generate(given["input_ids"], pixel_value=given["pixel_values"], **GREEDY)


def test_what_cannot_be_done() -> None:
    with pytest.raises(UsageError, match="LlavaForConditionalGeneration reads pictures"):
        ExecutorchExporter().export_for_generation(build(LLAVA))
    exporter = AutoExporter.from_format("torch")
    with pytest.raises(InputError, match="in a way of its own") as refused:
        exporter.export_for_generation(build("Molmo2ForConditionalGeneration"))
    assert "--no-cache" in (refused.value.advice or "")
    with pytest.raises(InputError, match="no text with a picture"):
        exporter.export_for_generation(build(LLAVA), {"input_ids": torch.ones(1, 4, dtype=torch.int64)})


@pytest.mark.parametrize("name", [GEMMA3, QWEN2, QWEN3])
def test_the_parts_in_eager(name: str, model: Any) -> None:
    """Vision encoder, embeddings and decoder give the logits of the whole model, without a program."""
    from transporters.generation.decoder import empty_state, nested, positions
    from transporters.generation.multimodal_contract import among, picture_contract

    eager, given = model(name), prompt(model(name), [1, 1])
    contract = picture_contract(eager, sample_inputs(eager))
    pictures, places = contract.pictures, given["input_ids"] == contract.pictures.token
    with torch.no_grad():
        features = VisionEncoder(eager)(**VisionEncoder(eager).inputs(given))
        embeds = EmbedTokens(eager)(given["input_ids"])["inputs_embeds"]
        more: dict[str, Any] = {"position_ids": positions(given["attention_mask"], embeds.shape[1])}
        if "image_grid_thw" in given:
            more["position_ids"], _ = eager.model.get_rope_index(**{n: given[n] for n in given if "pixel" not in n})
        if pictures.types:
            more[pictures.types] = given["token_type_ids"]
        for at, rows in features.get("deepstack_features", {}).items():
            more.setdefault(pictures.inner, {})[at] = among(torch.zeros_like(embeds), places, rows)
        step = {"inputs_embeds": among(embeds, places, features["image_features"]), **more}
        state = nested(empty_state(contract, 2))
        found = EmbedsDecoder(eager, contract)(attention_mask=given["attention_mask"], **step, **state)["logits"]
        expected = eager(**given).logits
    torch.testing.assert_close(found[:, -1], expected[:, -1], rtol=1e-4, atol=1e-4)
