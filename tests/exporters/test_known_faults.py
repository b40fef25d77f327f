# SPDX-License-Identifier: Apache-2.0
"""The rules of the lists: an entry says what it waits for, and goes when it is no longer needed.

`ONNX_DISABLE_OPTIMIZE` waits for an upstream issue, `EXPORT_SKIPS` for a change in the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import torch

from tiny import TINY, build
from tiny_more import MORE
from transporters import DynamoExporter, OnnxExporter, zoo
from transporters.errors import ExportError, TransportersError
from transporters.exporters import known_faults
from transporters.inputs.samples import sample_inputs
from transporters.zoo.unbuildable import UNBUILDABLE


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


def badly_skipped(entries: Mapping[str, str]) -> list[str]:
    """Entries that do not name a class of the zoo, or no sentence about what would lift them."""
    return [name for name, change in entries.items() if not in_zoo(name) or not re.fullmatch(r"\S.{20,}\.", change)]


def in_zoo(name: str) -> bool:
    """Whether the zoo can build a class of this name."""
    try:
        return zoo.find(name).name not in UNBUILDABLE
    except KeyError:
        return False


def exports(name: str) -> bool:
    """Whether a class exports and verifies, with dynamic axes or at least with fixed ones."""
    model, inputs = zoo.build_with_inputs(name)
    for dynamic in (True, False):
        try:
            if DynamoExporter().export(model, inputs, {"export_format": "torch", "dynamic": dynamic}).verify().verified:
                return True
        except TransportersError:
            continue
    return False


def test_every_skipped_class_exists_and_says_what_would_lift_it():
    assert badly_skipped(known_faults.EXPORT_SKIPS) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [("BertModel", ""), ("BertModel", "it is slow"), ("NoSuchModel", "Its loop over tokens would be one product.")],
)
def test_a_skip_on_a_whim_is_refused(name, change):
    assert badly_skipped({name: change}) == [name]


def test_the_skips_cannot_be_changed_at_run_time():
    with pytest.raises(TypeError):
        known_faults.EXPORT_SKIPS["BertModel"] = "Its loop over tokens would be one product."


@pytest.mark.slow
def test_every_skipped_class_still_cannot_be_exported():
    lifted = [name for name in known_faults.EXPORT_SKIPS if exports(name)]
    assert lifted == [], "these export and verify: delete their entries"


@pytest.mark.model
def test_a_skip_that_is_not_needed_is_found_out(monkeypatch):
    assert exports("LlamaModel")
    monkeypatch.setattr(DynamoExporter, "export", refuse)
    assert not exports("LlamaModel")


def refuse(*_, **__):
    raise ExportError("no way")
