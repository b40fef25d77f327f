# SPDX-License-Identifier: Apache-2.0
"""Patches through the real exporter: after an error in any stage, in threads, nested, from a third party's file."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import patch_targets
import pytest
import torch
from patch_targets import marked, registered

from tiny import build
from transporters.errors import TransportersError
from transporters.exporters import exporter_dynamo, registry
from transporters.exporters.exporter_dynamo import DynamoExporter
from transporters.exporters.patching import patched, targets
from transporters.exporters.run import ExportRun
from transporters.inputs.samples import sample_inputs

PLAIN = "patch_targets.plain"

#: What each step of the exporter calls, in order.
STEPS = {
    "Prepare": "prepare",
    "Forward signature": "_flat_signature",
    "Model patches": "_patch_model",
    "Pytree registration": "_register_containers",
    "Dynamic shapes": "_trace",
    "State cleanup": "_clean_program",
}


def standing() -> dict[tuple[int, str], Any]:
    """What stands at every place that a patch in force for "dynamo" would change."""
    return {
        (id(owner), name): vars(owner).get(name, "absent")
        for workaround in registry.active("dynamo", "patch")
        for path in workaround.paths
        for owner, name in targets(workaround, path)
    }


def state(model: Any) -> dict[str, Any]:
    """Every attribute of every module and of the configuration, by identity, and the tensors by value too."""
    found: dict[str, Any] = {"config": dict(vars(model.config)), "forward": vars(model).get("forward")}
    for name, module in model.named_modules():
        values = {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules")}
        found[name] = {**values, **{k: dict(v) for k, v in vars(module).items() if k not in values}}
    return found


def tensors(model: Any) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in (*model.named_parameters(), *model.named_buffers())}


class Bystander:
    """A thread that is not exporting, and is asked while another is."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def ask(self) -> None:
        thread = threading.Thread(target=lambda: self.answers.append(patch_targets.plain(5)))
        thread.start()
        thread.join()


def test_the_steps_are_the_exporters_stages() -> None:
    assert tuple(STEPS)[1:] == DynamoExporter.stages
    assert all(callable(getattr(exporter_dynamo, function)) for function in STEPS.values())


@pytest.mark.parametrize("stage", STEPS)
def test_an_error_in_any_stage_leaves_everything_as_it_was(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    sample = sample_inputs(model, batch=1, length=4)
    before, attributes, weights = standing(), state(model), tensors(model)
    changed: list[bool] = []
    guarded = stage not in ("Prepare", "State cleanup")  # in between, what the model does to itself is taken back

    def fails(*args: Any, **kwargs: Any) -> Any:
        changed.append(standing() != before)
        if guarded:
            model.forward_was = model.forward
            model.model.rotary_emb.inv_freq = torch.zeros(1)
        raise ZeroDivisionError(f"in {stage}")

    monkeypatch.setattr(exporter_dynamo, STEPS[stage], fails)
    with pytest.raises(TransportersError, match=f"ZeroDivisionError: in {stage}") as caught:
        DynamoExporter().export(model, sample)
    assert caught.value.stage == stage
    in_force = list(STEPS).index("Model patches") < list(STEPS).index(stage) < list(STEPS).index("State cleanup")
    assert changed == [in_force], "patches are in force from the second stage to the trace, and only then"
    assert (standing(), state(model)) == (before, attributes)
    assert all(torch.equal(weights[name], tensor) for name, tensor in tensors(model).items())


@pytest.mark.filterwarnings("ignore:The tensor attribute self.model.layers.0.left_over")
def test_an_error_in_the_models_own_code_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    sample = sample_inputs(model, batch=1, length=4)
    before, attributes, weights = standing(), state(model), tensors(model)
    calls: list[bool] = []
    layer = type(model.model.layers[1])
    original = layer.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if standing() != before:  # only under the patches
            self.left_over = torch.ones(1)
            calls.append(torch.compiler.is_exporting())
            raise ZeroDivisionError("in a layer")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(layer, "forward", forward)
    with pytest.raises(TransportersError, match="ZeroDivisionError: in a layer") as caught:
        DynamoExporter().export(model, sample)
    assert (calls[-1], caught.value.stage) == (True, "Dynamic shapes")
    assert (standing(), state(model)) == (before, attributes)
    assert all(torch.equal(weights[name], tensor) for name, tensor in tensors(model).items())


# ── Threads ──


@pytest.mark.model
def test_two_threads_export_at_once() -> None:
    models = {name: build(name) for name in ("bert", "mamba")}
    before = standing()
    exported: dict[str, Any] = {}
    failed: list[BaseException] = []
    together = threading.Barrier(2, timeout=120)

    def export(name: str) -> None:
        try:
            sample = sample_inputs(models[name], batch=2, length=5)
            together.wait()
            exported[name] = DynamoExporter().export(models[name], sample)
        except BaseException as error:  # noqa: BLE001  a thread's errors are lost otherwise
            failed.append(error)

    threads = [threading.Thread(target=export, args=(name,)) for name in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert standing() == before
    assert {name: found.verify().verified for name, found in exported.items()} == {"bert": True, "mamba": True}
    assert "model:_patch_selective_scan" in exported["mamba"].run.fired
    assert "model:_patch_selective_scan" not in exported["bert"].run.fired


@pytest.mark.model
def test_a_thread_that_is_not_exporting_meets_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    model, bystander = build("bert"), Bystander()
    answers: list[Any] = []
    trace = exporter_dynamo._trace

    def asks(*args: Any, **kwargs: Any) -> Any:
        answers.append(patch_targets.plain(5))
        bystander.ask()
        return trace(*args, **kwargs)

    monkeypatch.setattr(exporter_dynamo, "_trace", asks)
    with registered("dynamo", PLAIN) as workaround_id:
        exported = DynamoExporter().export(model, sample_inputs(model, batch=2, length=5))
    assert (answers, bystander.answers) == ([("patched", 5)], [5])
    assert exported.run.fired[workaround_id] == 1, "the bystander's call does not count"


def test_a_second_thread_waits_until_the_first_ones_patches_are_gone() -> None:
    inside, leave, order = threading.Event(), threading.Event(), []

    def first() -> None:
        with patched("dynamo", ExportRun("dynamo")):
            inside.set()
            leave.wait(timeout=60)
            order.append(patch_targets.plain("first"))

    def second() -> None:
        inside.wait(timeout=60)
        leave.set()
        with patched("dynamo", ExportRun("dynamo")):
            order.append(patch_targets.plain("second"))

    def one_level(original: Any) -> Any:
        return lambda value: (value, original(value))

    one_level.__name__ = "_patch_one_level"
    with registered("dynamo", PLAIN, factory=one_level):
        threads = [threading.Thread(target=run) for run in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
    assert order == [("first", "first"), ("second", "second")]


# ── Reach ──


@pytest.mark.model
def test_a_patch_of_the_exported_models_own_forward_is_in_force() -> None:
    """The flat signature stands on the model before the patches do, and must not hide them."""
    model = build("gpt2")
    sample = sample_inputs(model, batch=2, length=5)
    plain = DynamoExporter().export(model, sample)

    def _patch_forward(original: Any) -> Any:
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = original(self, *args, **kwargs)
            outputs.logits = outputs.logits * 2
            return outputs

        return forward

    path = f"{type(model).__module__}.{type(model).__name__}.forward"
    with registered("dynamo", path, factory=_patch_forward) as workaround_id:
        exported = DynamoExporter().export(model, sample)
    assert exported.run.fired[workaround_id] >= 1
    torch.testing.assert_close(exported(**sample).logits, 2 * plain(**sample).logits)


# ── Nesting ──


@pytest.mark.model
def test_an_export_inside_another_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner one runs while all patches of the outer one are in force."""
    model, small, inner = build("mamba"), build("gpt2"), []
    before, trace = standing(), exporter_dynamo._trace

    def exports_another_first(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(exporter_dynamo, "_trace", trace)
        during = standing()
        patch_targets.plain(1)
        inner.append(DynamoExporter().export(small, sample_inputs(small, batch=2, length=5)))
        assert standing() == during, "what the outer export installed must survive the inner one"
        return trace(*args, **kwargs)

    monkeypatch.setattr(exporter_dynamo, "_trace", exports_another_first)
    with registered("dynamo", PLAIN) as workaround_id:
        outer = DynamoExporter().export(model, sample_inputs(model, batch=2, length=5))
    assert standing() == before
    assert outer.run.fired[workaround_id] == 1
    assert workaround_id not in inner[0].run.fired
    assert "model:_patch_selective_scan" in outer.run.fired
    assert "model:_patch_selective_scan" not in inner[0].run.fired
    assert outer.verify().verified
    assert inner[0].verify().verified


@pytest.mark.model
def test_an_export_inside_a_factory_of_another_export() -> None:
    """The inner one runs while the outer one's patches are half installed."""
    small = build("gpt2")
    before = standing()
    inner: list[Any] = []

    def _patch_that_exports(original: Any) -> Any:
        if not inner:
            inner.append(None)  # the inner export asks this factory as well
            inner[0] = DynamoExporter().export(small, sample_inputs(small, batch=2, length=5))
        return marked()(original)

    with registered("dynamo", PLAIN, factory=_patch_that_exports), patched("dynamo", ExportRun("dynamo")):
        assert patch_targets.plain(5) == ("patched", 5)
    assert patch_targets.plain(5) == 5
    assert standing() == before
    assert inner[0].verify().verified


# ── A third party ──

THIRD_PARTY = """
from transporters.exporters.utils import register_patch

@register_patch("dynamo", "transformers.models.nllb_moe.modeling_nllb_moe.NllbMoeTop2Router._cast_classifier")
def _patch_classifier_cast(original):
    return lambda self: None
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "a_third_partys_file.py").write_text(THIRD_PARTY, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("a_third_partys_file")
    yield "dynamo:_patch_classifier_cast"
    registry.unregister("dynamo:_patch_classifier_cast")
    del sys.modules["a_third_partys_file"]


@pytest.mark.model
def test_a_third_partys_bare_patch_is_in_force_without_a_change_here(third_party: str) -> None:
    model = build("nllb_moe")
    router = type(model.model.encoder.layers[1].ffn.router)
    before = vars(router)["_cast_classifier"]
    exported = DynamoExporter().export(model, sample_inputs(model, batch=2, length=5))
    routers = sum(isinstance(module, router) for module in model.modules())
    assert exported.run.fired[third_party] >= routers
    assert vars(router)["_cast_classifier"] is before
    assert exported.verify().verified
