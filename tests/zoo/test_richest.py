# SPDX-License-Identifier: Apache-2.0
"""One class per architecture, by a rule that does not depend on what was loaded before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from transporters import zoo
from transporters.zoo import parts
from transporters.zoo.richest import richest, richest_classes
from transporters.zoo.unbuildable import UNBUILDABLE

RICHEST = {
    "llama": "LlamaForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForMaskedLM",
    "bart": "BartForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "seamless_m4t_v2": "SeamlessM4Tv2ForSpeechToText",
    "detr": "DetrForObjectDetection",
    "mask2former": "Mask2FormerForUniversalSegmentation",
    "wav2vec2": "Wav2Vec2ForCTC",
    "vit": "ViTForImageClassification",
    "clip": "CLIPModel",
    "clip_text_model": "CLIPTextModelWithProjection",
    "mimi": "MimiModel",
    "swin": "SwinForImageClassification",
    "exaone": "LlamaForCausalLM",  # has no class of its own
}


@pytest.mark.parametrize(("model_type", "name"), RICHEST.items())
def test_the_class_with_the_most_in_it_is_chosen(model_type: str, name: str) -> None:
    assert richest(model_type) == name


def test_an_architecture_without_a_class_that_can_be_built_says_why() -> None:
    with pytest.raises(KeyError, match="no model class has the architecture 'lama'"):
        richest("lama")
    with pytest.raises(KeyError, match="'dinat' cannot be built: It needs the package natten"):
        richest("dinat")
    with pytest.raises(KeyError, match="no model class"):
        richest("")


def test_there_is_one_for_every_architecture_that_can_be_built() -> None:
    found = richest_classes()
    assert found == sorted(set(found))
    assert not set(found) & set(UNBUILDABLE)
    types = [zoo.find(name).model_type for name in found]
    assert len(set(types)) == len(types)
    wanted = {entry.model_type for entry in zoo.classes() if entry.name not in UNBUILDABLE}
    assert set(types) == wanted - {""}
    assert len(found) > 700


def test_parts_stand_for_an_architecture_only_when_it_has_nothing_else() -> None:
    whole = {entry.model_type for entry in zoo.classes() if entry.name not in (UNBUILDABLE | parts.WHOLES)}
    for name in set(richest_classes()) & set(parts.WHOLES):
        assert zoo.find(name).model_type not in whole


def test_one_architecture_is_answered_without_loading_the_others() -> None:
    code = (
        "import sys; from transporters.zoo.richest import richest; print(richest('llama')); "
        "print(*(name for name in sys.modules if 'modeling_bert' in name or 'modeling_clip' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["LlamaForCausalLM"]
