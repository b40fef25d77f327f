# SPDX-License-Identifier: Apache-2.0
"""The list of classes, and that those in a fixed sample of it build and run."""

from __future__ import annotations

import importlib
import zlib

import pytest
from transformers.models.auto import modeling_auto

from transporters import zoo
from transporters.zoo import outcomes, parts
from transporters.zoo.unbuildable import UNBUILDABLE, UNIMPORTABLE

NAMES = [entry.name for entry in zoo.classes()]

#: Every class has the same chance to be in the sample, whatever its family; nobody chose them.
SAMPLE = [name for name in NAMES if zlib.crc32(name.encode()) % 32 == 7]

#: What only modules define that cannot be imported.
_IN_UNIMPORTABLE = {"HiggsAudioV2TokenizerModel"}


def auto_classes() -> set[str]:
    found: set[str] = set()
    for mapping, names in vars(modeling_auto).items():
        if mapping.startswith("MODEL_") and mapping.endswith("_MAPPING_NAMES"):
            for value in names.values():
                found |= {value} if isinstance(value, str) else set(value)
    return found


def test_every_class_of_the_auto_classes_is_listed() -> None:
    assert len(auto_classes()) > 1000
    assert auto_classes() - set(NAMES) <= _IN_UNIMPORTABLE


def test_the_list_is_sorted_and_its_entries_are_whole() -> None:
    assert sorted(set(NAMES)) == NAMES
    entry = zoo.find("LlamaForCausalLM")
    assert entry.load().__name__ == "LlamaForCausalLM"
    assert (entry.model_type, entry.config_class.__name__) == ("llama", "LlamaConfig")
    assert "BertPreTrainedModel" not in NAMES, "abstract bases are no models"
    assert "Qwen2VisionTransformerPretrainedModel" in NAMES, "which is a model by that name"
    with pytest.raises(KeyError):
        zoo.find("NoSuchModel")


def test_tables_name_existing_classes() -> None:
    assert set(UNBUILDABLE) <= set(NAMES)
    assert set(parts.WHOLES) | set(parts.WHOLES.values()) <= set(NAMES)
    assert not set(parts.WHOLES) & set(UNBUILDABLE)
    assert all(text.endswith(".") and len(text) > 20 for text in UNBUILDABLE.values())


def test_few_classes_are_given_up() -> None:
    assert len(UNBUILDABLE) <= 0.03 * len(NAMES)


@pytest.mark.parametrize("module", sorted(UNIMPORTABLE))
def test_what_cannot_be_imported_still_cannot(module: str) -> None:
    with pytest.raises(ImportError):
        importlib.import_module(module)


@pytest.mark.parametrize("name", sorted(UNBUILDABLE))
def test_what_is_given_up_still_fails(name: str) -> None:
    assert outcomes.outcome(name) != "", f"{name} builds and runs: delete its entry"


def test_the_sample_is_big_enough() -> None:
    assert 50 <= len(SAMPLE) <= 75


@pytest.mark.parametrize("name", [name for name in SAMPLE if name not in UNBUILDABLE])
def test_the_sampled_classes_build_and_run(name: str) -> None:
    assert outcomes.outcome(name) == ""
