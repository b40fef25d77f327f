# SPDX-License-Identifier: Apache-2.0
"""Sample inputs: accepted by the eager model, structured, the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BartForSequenceClassification as BartClassifier
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    GPT2Config,
    GPT2ForSequenceClassification,
    LayoutLMConfig,
    LayoutLMModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    ViTImageProcessorPil,
    XmodConfig,
    XmodModel,
)

from tiny import TINY, build
from transporters.errors import InputError
from transporters.inputs import samples
from transporters.inputs.request import SampleRequest
from transporters.inputs.samples import compose, register_sample, sample_inputs
from transporters.inputs.text import SENTENCES, ordinary_ids

_models: dict[str, PreTrainedModel] = {}


def tiny(name: str) -> PreTrainedModel:
    """A tiny model that no test changes: built once."""
    if name not in _models:
        _models[name] = build(name)
    return _models[name]


def word_tokenizer(side: str = "right", pad_token: str | None = "[PAD]") -> PreTrainedTokenizerFast:
    """A tokenizer of single words in which few words are known; 99 ids at most."""
    words = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "the", "of", "a"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=pad_token, unk_token="[UNK]", padding_side=side, model_max_length=64
    )


def floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from floats(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from floats(inner)


def run(model: PreTrainedModel, inputs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**inputs)


# ── Every tiny model ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("name", TINY)
def test_eager_takes_the_sample(name: str, batch: int) -> None:
    outputs = run(tiny(name), sample_inputs(tiny(name), batch=batch))
    found = list(floats(dict(outputs)))
    assert found
    assert all(bool(torch.isfinite(value).all()) for value in found)
    assert max(float(value.float().std()) for value in found if value.numel() > 1) > 1e-3


@pytest.mark.parametrize("name", TINY)
def test_same_seed_same_sample(name: str) -> None:
    first, second = sample_inputs(tiny(name), seed=5), sample_inputs(tiny(name), seed=5)
    other = sample_inputs(tiny(name), seed=6)
    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", TINY)
def test_a_sample_leaves_the_random_state_alone(name: str) -> None:
    before = torch.get_rng_state()
    sample_inputs(tiny(name))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", TINY)
def test_rows_differ_and_no_labels(name: str) -> None:
    sample = sample_inputs(tiny(name), batch=3)
    main = sample[tiny(name).main_input_name]
    rows = main.chunk(3)
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[1], rows[2])
    assert not any("label" in key for key in sample)


@pytest.mark.parametrize("name", ["whisper", "vit", "wav2vec2", "clip"])
def test_floats_have_the_models_dtype(name: str) -> None:
    model = build(name).to(torch.bfloat16)
    assert all(value.dtype == torch.bfloat16 for value in floats(sample_inputs(model)))


def test_order_is_that_of_forward() -> None:
    names = list(SampleRequest(tiny("qwen2_vl")).parameters)
    places = [names.index(name) for name in sample_inputs(tiny("qwen2_vl"))]
    assert places == sorted(places)


# ── Text ────────────────────────────────────────────────────────────────────────────────────────


def test_ids_are_ordinary() -> None:
    model = tiny("bart")
    special = {model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id}
    sample = sample_inputs(model, batch=64)
    assert sample["input_ids"].shape == (64, 7)
    assert not special & set(sample["input_ids"].flatten().tolist())
    assert bool((sample["attention_mask"] == 1).all())
    assert sample["decoder_input_ids"].shape == (64, 5)
    assert set(sample["decoder_input_ids"][:, 0].tolist()) == {model.config.decoder_start_token_id}


def test_length_is_kept() -> None:
    assert sample_inputs(tiny("llama"), length=13)["input_ids"].shape == (2, 13)
    padded = sample_inputs(tiny("llama"), tokenizer=word_tokenizer(), length=30)
    assert padded["input_ids"].shape == (2, 30)
    assert sample_inputs(tiny("llama"), tokenizer=word_tokenizer(), length=2)["input_ids"].shape == (2, 2)


@pytest.mark.parametrize("side", ["left", "right"])
def test_sentences_are_padded_on_the_tokenizers_side(side: str) -> None:
    sample = sample_inputs(tiny("gpt2"), tokenizer=word_tokenizer(side), batch=4)
    mask, ids = sample["attention_mask"], sample["input_ids"]
    assert len(set(mask.sum(1).tolist())) > 1
    assert bool((ids[mask == 0] == 0).all())
    edge = mask[:, 0] if side == "left" else mask[:, -1]
    assert 0 in edge.tolist()
    run(tiny("gpt2"), sample)


def test_a_tokenizer_without_padding_is_not_changed() -> None:
    tokenizer = word_tokenizer(pad_token=None)
    sample = sample_inputs(tiny("gpt2"), tokenizer=tokenizer, batch=4)
    assert tokenizer.pad_token is None
    assert bool((sample["input_ids"][sample["attention_mask"] == 0] == tiny("gpt2").config.eos_token_id).all())


def test_another_models_tokenizer_is_refused() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 4000}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    foreign = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    with pytest.raises(InputError, match="token 4000"):
        sample_inputs(tiny("bert"), tokenizer=foreign)


def test_more_rows_than_sentences() -> None:
    count = len(SENTENCES) + 2
    assert sample_inputs(tiny("bert"), tokenizer=word_tokenizer(), batch=count)["input_ids"].shape[0] == count


def test_multiple_choice_has_an_axis_of_choices() -> None:
    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, vocab_size=99)
    model = BertForMultipleChoice(config).eval()
    sample = sample_inputs(model, batch=3)
    assert sample["input_ids"].shape == (3, 2, 7)
    assert run(model, sample).logits.shape == (3, 2)


def test_a_classifier_that_reads_the_end_token_gets_one_per_row() -> None:
    torch.manual_seed(0)
    model = BartClassifier(tiny("bart").config).eval()
    sample = sample_inputs(model, batch=3)
    assert bool(((sample["input_ids"] == model.config.eos_token_id).sum(1) == 1).all())
    assert run(model, sample).logits.shape[0] == 3


def test_a_decoder_that_classifies_needs_a_padding_id() -> None:
    config = GPT2Config(vocab_size=99, n_embd=32, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2)
    model = GPT2ForSequenceClassification(config).eval()
    with pytest.raises(InputError, match="pad_token_id"):
        sample_inputs(model)
    run(model, sample_inputs(model, batch=1))
    model.config.pad_token_id = 0
    run(model, sample_inputs(model))


def test_boxes_are_boxes() -> None:
    config = LayoutLMConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, vocab_size=99
    )
    model = LayoutLMModel(config).eval()
    sample = sample_inputs(model)
    left, top, right, bottom = sample["bbox"].unbind(-1)
    assert bool(((left < right) & (top < bottom) & (right <= 1000) & (bottom <= 1000)).all())
    run(model, sample)


def test_a_family_with_its_own_recipe() -> None:
    config = XmodConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=99,
        languages=["en_XX", "de_DE"],
    )
    model = XmodModel(config).eval()
    sample = sample_inputs(model)
    assert sample["lang_ids"].tolist() == [0, 1]
    run(model, sample)


# ── Images, audio, both with text ───────────────────────────────────────────────────────────────


def test_images_are_smooth_and_not_flat() -> None:
    pixels = sample_inputs(tiny("vit"), batch=4)["pixel_values"]
    assert pixels.std() > 0.2
    steps = pixels.diff(dim=-1).abs()
    assert steps.max() < 0.5 * (pixels.max() - pixels.min())
    assert bool((pixels.abs() <= 1.0).all())


def test_the_processor_tells_the_normalisation() -> None:
    processor = ViTImageProcessorPil(image_mean=[0.5, 0.5, 0.5], image_std=[0.25, 0.25, 0.25])
    plain = sample_inputs(tiny("vit"))["pixel_values"]
    scaled = sample_inputs(tiny("vit"), processor=processor)["pixel_values"]
    torch.testing.assert_close(scaled, plain * 2)


def test_the_processor_tells_the_size_where_the_config_is_free() -> None:
    processor = ViTImageProcessorPil(size={"height": 64, "width": 128})
    assert sample_inputs(tiny("detr"), processor=processor)["pixel_values"].shape[-2:] == (64, 128)


def test_pixel_mask_hides_what_is_zero() -> None:
    sample = sample_inputs(tiny("detr"), batch=3)
    mask = sample["pixel_mask"]
    assert bool((mask[0] == 1).all())
    assert 0 in mask[1]
    assert bool((sample["pixel_values"] * (1 - mask).unsqueeze(1) == 0).all())


def test_tones_are_normalised_and_long_enough() -> None:
    values = sample_inputs(tiny("wav2vec2"))["input_values"]
    torch.testing.assert_close(values.mean(-1), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(values.std(-1, correction=0), torch.ones(2), atol=1e-3, rtol=0)


def test_whisper_features_fill_its_positions() -> None:
    assert sample_inputs(tiny("whisper"))["input_features"].shape == (2, 16, 60)


def test_qwen_patches_are_the_image_in_merged_order() -> None:
    """Each group of four patches is one square of the image, so neighbours in it are alike."""
    sample = sample_inputs(tiny("qwen2_vl"), batch=2)
    config: Qwen2VLConfig = tiny("qwen2_vl").config
    grid = sample["image_grid_thw"]
    assert sample["pixel_values"].shape == (int(grid.prod(-1).sum()), 3 * 2 * 8 * 8)
    assert grid[0].tolist() == [1, 4, 6]
    ids = sample["input_ids"]
    assert bool(((ids == config.image_token_id).sum(1) == 6).all())
    assert torch.equal(sample["mm_token_type_ids"], (ids == config.image_token_id).long())
    first = int((ids[0] == config.image_token_id).nonzero()[0])
    assert ids[0, first - 1] == config.vision_start_token_id
    frames = sample["pixel_values"].reshape(-1, 3, 2, 8, 8)
    assert torch.equal(frames[:, :, 0], frames[:, :, 1])
    seam = (frames[0, :, 0, :, -1] - frames[1, :, 0, :, 0]).abs().mean()
    assert seam < 0.2


def test_qwen_with_sentences_pads_around_the_images() -> None:
    sample = sample_inputs(tiny("qwen2_vl"), tokenizer=word_tokenizer("left"), batch=3)
    assert 0 in sample["attention_mask"]
    assert bool((sample["mm_token_type_ids"].sum(1) == 6).all())
    run(tiny("qwen2_vl"), sample)


def test_llava_has_a_token_per_image_feature() -> None:
    torch.manual_seed(0)
    body = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **body, "image_size": 32, "patch_size": 8},
        text_config={"model_type": "llama", **body, "vocab_size": 99},
        image_token_index=5,
    )
    model = LlavaForConditionalGeneration(config).eval()
    sample = sample_inputs(model)
    assert bool(((sample["input_ids"] == 5).sum(1) == 16).all())
    run(model, sample)


# ── What cannot be made, and the hook ───────────────────────────────────────────────────────────


class Odd(PreTrainedModel):
    """A model whose argument nobody can guess."""

    config_class = BertConfig

    def forward(self, input_ids: torch.Tensor, horoscope: torch.Tensor, mood: Any = None) -> torch.Tensor:
        return input_ids + horoscope


class Mute(PreTrainedModel):
    """A model that tells nothing about its arguments."""

    config_class = BertConfig

    def forward(self, **kwargs: Any) -> None:
        return None


@pytest.fixture
def odd() -> Odd:
    model = Odd(BertConfig(vocab_size=99))
    model.weight = torch.nn.Parameter(torch.zeros(1))
    return model


def test_an_argument_that_cannot_be_made_is_named(odd: Odd) -> None:
    with pytest.raises(InputError, match="'horoscope' of Odd") as caught:
        sample_inputs(odd)
    assert "by hand" in (caught.value.advice or "")
    assert '@register_sample("Odd")' in (caught.value.advice or "")


def test_a_forward_that_tells_nothing() -> None:
    with pytest.raises(InputError, match="'input_ids' of Mute"):
        sample_inputs(Mute(BertConfig(vocab_size=99)))


@pytest.mark.parametrize("name", ["Odd", "bert"])
def test_a_recipe_is_found_by_class_or_type(name: str, odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_RECIPES", dict(samples._RECIPES))

    @register_sample(name)
    def recipe(request: SampleRequest) -> dict[str, Any]:
        made = compose(request)
        return {**made, "horoscope": request.random_ints(0, 12, *made["input_ids"].shape)}

    sample = sample_inputs(odd)
    assert list(sample) == ["input_ids", "horoscope"]
    with pytest.raises(ValueError, match="already has a sample recipe"):
        register_sample(name)(recipe)


@pytest.mark.parametrize("wishes", [{"batch": 0}, {"length": 0}])
def test_impossible_wishes(wishes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="at least one row"):
        sample_inputs(tiny("bert"), **wishes)


def test_ordinary_ids_when_all_are_special() -> None:
    model = build("llama")
    model.config.suppressed_token_ids = list(range(99))
    assert len(ordinary_ids(SampleRequest(model))) == 99
