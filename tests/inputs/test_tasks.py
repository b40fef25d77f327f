# SPDX-License-Identifier: Apache-2.0
"""Task names, and the way back from a class to its task."""

from __future__ import annotations

import pytest
import torch

from tiny import build
from transporters.inputs.tasks import TASKS, resolve_task, task_of


def test_every_auto_class_of_the_tasks_exists() -> None:
    import transformers

    assert all(hasattr(transformers, auto) for autos in TASKS.values() for auto in autos)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("llama", "text-generation"),
        ("gemma3", "text-generation"),
        ("nllb_moe", "text2text-generation"),
        ("bart", "text2text-generation"),
        ("whisper", "automatic-speech-recognition"),
        ("detr", "object-detection"),
        ("clip", "zero-shot-image-classification"),
        ("qwen2_vl", "image-text-to-text"),
        ("swin", "feature-extraction"),
    ],
)
def test_task_of_a_class(name: str, task: str) -> None:
    assert task_of(type(build(name))) == task


def test_a_class_without_a_task_is_other() -> None:
    assert task_of(torch.nn.Linear) == "other"


def test_aliases_and_spelling() -> None:
    assert resolve_task("masked-lm") == "fill-mask"
    assert resolve_task(" Text_Generation ") == "text-generation"
