# SPDX-License-Identifier: Apache-2.0
"""A decoder that takes its cache: one program for any past, an empty one too, and any number of new tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tiny import build
from transporters import AutoExporter, ExportedModel

pytestmark = pytest.mark.model


def step(name: str, past: int, new: int, batch: int = 2) -> tuple[Any, dict[str, Any]]:
    """The model, and inputs of a step: a cache of ``past`` tokens from eager itself, and ``new`` tokens after them."""
    model = build(name)
    ids = torch.randint(0, 99, (batch, past + new), generator=torch.Generator().manual_seed(past + new))
    with torch.no_grad():
        cache = model(input_ids=ids[:, :past], use_cache=True).cache
    mask = torch.ones(batch, past + new, dtype=torch.int64)
    return model, {"input_ids": ids[:, past:], "attention_mask": mask, "cache": cache}


def exported(name: str, export_format: str) -> ExportedModel:
    model, inputs = step(name, past=7, new=3)
    return AutoExporter.from_format(export_format).export(model, inputs)


@pytest.mark.parametrize("export_format", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_any_past_and_any_number_of_new_tokens(name: str, export_format: str) -> None:
    program = exported(name, export_format)
    report = program.verify()
    assert report.verified, [(v.name, v.status, v.detail) for v in report.variations if v.status != "verified"]
    ran = {v.name for v in report.variations if v.status == "verified"}
    assert {"length 6", "length 1", "length 17", "past 12", "past 1", "past 0", "batch 1"} <= ran
    bounds = {axis.label: (axis.minimum, axis.maximum) for axis in program.contract.axes if axis.dynamic}
    assert bounds["sequence"] == (1, None)
    assert bounds["past_sequence"] == (0, None)

    for past, new in ((1, 1), (1, 3), (6, 4), (40, 1)):
        model, inputs = step(name, past, new, batch=3)
        actual = program(**inputs).logits
        with torch.no_grad():
            torch.testing.assert_close(actual, model(**inputs).logits, rtol=1e-4, atol=1e-4)


def test_a_cache_that_goes_in_and_comes_out_has_two_names() -> None:
    graph = exported("llama", "onnx").program.graph
    names = [value.name for value in graph.inputs]
    assert [name for name in names if name.startswith("cache")] == [
        "cache.layers.0.keys",
        "cache.layers.0.values",
        "cache.layers.1.keys",
        "cache.layers.1.values",
    ]
    assert [value.name for value in graph.outputs] == ["logits", *(n.replace("cache", "present") for n in names[2:])]
    shapes = {value.name: [str(size) for size in value.shape] for value in graph.inputs}
    assert shapes["attention_mask"] == ["batch", "total_sequence"]
    assert shapes["cache.layers.1.keys"] == ["batch", "2", "past_sequence", "8"]
