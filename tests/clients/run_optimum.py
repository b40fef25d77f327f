# SPDX-License-Identifier: Apache-2.0
"""Runs an exported folder with Optimum, in the environment that has it.

Takes one JSON document on standard input, {folder, task, texts}, {folder, task, ids, mask, steps} or {folder, task,
features, steps}; gives {vectors}, {ids} or {prompts, ids} on the last line of standard output.
"""

import json
import sys
from typing import Any

import torch
from optimum.onnxruntime import (
    ORTModelForCausalLM,
    ORTModelForFeatureExtraction,
    ORTModelForSeq2SeqLM,
    ORTModelForSpeechSeq2Seq,
)
from transformers import AutoTokenizer


def embed(folder: str, texts: list[str], **_: Any) -> dict[str, Any]:
    """Mean of the states of each text, normalized."""
    model, tokenizer = ORTModelForFeatureExtraction.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    mask = encoded["attention_mask"][..., None]
    means = (model(**encoded).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
    return {"vectors": torch.nn.functional.normalize(means).tolist()}


def decode(folder: str, ids: list[list[int]], mask: list[list[int]], steps: int, **_: Any) -> dict[str, Any]:
    """Greedy continuations of rows."""
    model = ORTModelForCausalLM.from_pretrained(folder)
    settings = {"max_new_tokens": steps, "do_sample": False, "pad_token_id": 0}
    found = model.generate(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), **settings)
    return {"ids": found[:, len(ids[0]) :].tolist()}


def rewrite(folder: str, ids: list[list[int]], mask: list[list[int]], steps: int, **_: Any) -> dict[str, Any]:
    """What the decoder writes, greedily and with two beams, of rows that the encoder reads."""
    model = ORTModelForSeq2SeqLM.from_pretrained(folder)
    given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "max_new_tokens": steps}
    return {"ids": [model.generate(**given, do_sample=False, num_beams=beams).tolist() for beams in (1, 2)]}


def transcribe(folder: str, features: list[list[list[float]]], steps: int, **_: Any) -> dict[str, Any]:
    """What the decoder writes of a recording's features."""
    model = ORTModelForSpeechSeq2Seq.from_pretrained(folder)
    found = model.generate(input_features=torch.tensor(features), max_new_tokens=steps, do_sample=False)
    return {"ids": found.tolist()}


def chat(folder: str, texts: list[str], steps: int, **_: Any) -> dict[str, Any]:
    """Answers to texts that are in the chat template already, in one batch that is padded on the left."""
    model, tokenizer = ORTModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    found = model.generate(**encoded, max_new_tokens=steps, do_sample=False)
    length = encoded["input_ids"].shape[1]
    return {"prompts": encoded["input_ids"].tolist(), "ids": found[:, length:].tolist()}


order = json.load(sys.stdin)
tasks = {"embed": embed, "decode": decode, "rewrite": rewrite, "transcribe": transcribe, "chat": chat}
print(json.dumps(tasks[order["task"]](**order)))
