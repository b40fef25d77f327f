# SPDX-License-Identifier: Apache-2.0
"""Exported folders in ExecuTorch's own runner of language models."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import real_models
import tiny
from transporters import AutoExporter, clients
from transporters.cli.main import dispatch
from transporters.errors import UsageError

STEPS = 64

#: In a process of its own: what the runner writes to the terminal and its end are no part of the test.
RUNNER = """
import json, sys
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
folder, steps, *prompts = json.loads(sys.stdin.read())
runner = TextLLMRunner(folder + "/model.pte", folder + "/tokenizer.json")
texts = []
for prompt in prompts:
    pieces = []
    config = GenerationConfig(echo=False, max_new_tokens=steps, temperature=0.0)
    runner.generate(prompt, config, pieces.append)
    runner.reset()
    texts.append("".join(pieces))
open(sys.argv[1], "w", encoding="utf-8").write(json.dumps(texts))
"""


def run(folder: Path, prompts: list[str], answers: Path) -> list[str]:
    """What the runner writes after each prompt, greedily."""
    order = json.dumps([str(folder), STEPS, *prompts])
    command = [sys.executable, "-c", RUNNER, str(answers)]
    done = subprocess.run(command, input=order, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[str] = json.loads(answers.read_text(encoding="utf-8"))
    return found


@pytest.mark.real
@pytest.mark.slow
def test_chats_of_a_real_decoder(tmp_path: Path) -> None:
    """From the text to the text, by the client alone; the first chat again after the others, from a new beginning."""
    source, file = real_models.gguf()
    out = tmp_path / "smollm2"
    options = ["--to", "executorch", "--for", "executorch", "--max-context", "256"]
    assert dispatch(["export", source, "--gguf-file", file, "--out", str(out), *options]) == 0
    tokenizer = real_models.smollm2().tokenizer
    prompts = real_models.prompts(8)
    expected = [tokenizer.decode(ids, skip_special_tokens=False) for ids in real_models.expected_ids(8, STEPS)]
    found = run(out, [*prompts, prompts[0]], tmp_path / "answers.json")
    assert found == [*expected, expected[0]]


@cache
def plain() -> Any:
    model = tiny.build("llama")
    return AutoExporter.from_format("executorch").export(model, {"input_ids": torch.arange(6)[None]})


def refused(exported: Any, tokenizer: Any) -> str:
    (client,) = clients.find(["executorch"], "executorch")
    with pytest.raises(UsageError) as caught:
        client.adapt(exported, tokenizer)
    return str(caught.value)


@pytest.mark.model
def test_what_the_runner_cannot_run() -> None:
    assert "this is none" in refused(plain(), None)
    decoder = AutoExporter.from_format("executorch").export_for_generation(
        tiny.build("llama"), None, {"max_context": 16}
    )
    assert "a model without a tokenizer does not give" in refused(decoder, None)
    with pytest.raises(UsageError, match="executorch runs executorch, not onnx"):
        clients.find(["executorch"], "onnx")
