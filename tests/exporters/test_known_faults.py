# SPDX-License-Identifier: Apache-2.0
"""The rule of `ONNX_DISABLE_OPTIMIZE`: an entry names an upstream issue, and goes when the optimizer is right again."""

from __future__ import annotations

import re

import pytest
import torch

from tiny import TINY, build
from tiny_more import MORE
from transporters import OnnxExporter
from transporters.errors import TransportersError
from transporters.exporters import known_faults
from transporters.inputs.samples import sample_inputs


def refused(entries: dict[str, str]) -> list[str]:
    """Entries that do not name an issue of the optimizer's project."""
    wanted = r"https://github\.com/(microsoft/onnxscript|onnx/ir-py|pytorch/pytorch)/(issues|pull)/\d+"
    return [name for name, issue in entries.items() if not re.fullmatch(wanted, issue)]


def no_longer_needed(name: str, model: torch.nn.Module) -> bool:
    """Whether the class exports and verifies with the optimizer on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(known_faults.ONNX_DISABLE_OPTIMIZE, name, raising=False)
        try:
            return OnnxExporter().export(model, sample_inputs(model)).verify().verified
        except TransportersError:
            return False


def test_every_entry_names_an_upstream_issue():
    assert refused(known_faults.ONNX_DISABLE_OPTIMIZE) == []


@pytest.mark.parametrize("issue", ["", "it is slow", "unreported", "https://example.com/issues/1"])
def test_an_entry_on_a_whim_is_refused(issue):
    assert refused({"BertModel": issue}) == ["BertModel"]


@pytest.mark.model
def test_every_entry_is_still_needed():
    classes = {type(model).__name__: model for model in map(build, (*TINY, *MORE))}
    for name in known_faults.ONNX_DISABLE_OPTIMIZE:
        assert name in classes, f"{name} has no tiny model, so nobody would see when it is no longer needed"
        assert not no_longer_needed(name, classes[name]), f"the optimizer gets {name} right again: delete the entry"


@pytest.mark.model
def test_an_entry_switches_the_optimizer_off_and_is_found_out_when_it_is_not_needed(monkeypatch):
    issue = "https://github.com/microsoft/onnxscript/issues/1"
    model = build("gpt2")
    whole = OnnxExporter().export(model, sample_inputs(model))
    monkeypatch.setitem(known_faults.ONNX_DISABLE_OPTIMIZE, "GPT2LMHeadModel", issue)
    left = OnnxExporter().export(model, sample_inputs(model))
    assert len(left.program.graph) > len(whole.program.graph)
    assert any(issue in finding.message for finding in left.run.findings)
    assert no_longer_needed("GPT2LMHeadModel", model)
