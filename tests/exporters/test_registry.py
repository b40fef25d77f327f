# SPDX-License-Identifier: Apache-2.0
"""The registry: what it takes, what it refuses, what it finds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from patch_targets import marked, registered

from transporters.errors import RegistryError, UsageError
from transporters.exporters import registry, utils
from transporters.exporters.registry import Repro, Workaround

PLAIN = "patch_targets.plain"


def ids(backend: str | None = None, kind: str | None = None) -> list[str]:
    return [workaround.id for workaround in registry.list_workarounds(backend, kind)]


def never_changes(*_: Any) -> bool:
    """Nothing to do."""
    return False


def test_a_bare_decorator_is_enough() -> None:
    factory = marked("_patch_bare")
    try:
        assert registry.register_patch("dynamo", PLAIN)(factory) is factory
        found = registry.find_workaround("dynamo:_patch_bare")
        assert found == Workaround("dynamo:_patch_bare", "dynamo", "patch", factory, paths=(PLAIN,))
        assert (found.why, found.issue, found.needed, found.repro) == ("", "", "", None)
    finally:
        registry.unregister("dynamo:_patch_bare")


def test_the_facts_are_kept() -> None:
    repro = Repro(lambda x: x, lambda: ())
    facts = {"why": "it is wrong", "issue": "unreported", "needed": "torch>=2", "repro": repro}
    with registered("dynamo", PLAIN, "patch_targets.untouched", **facts) as name:
        found = registry.find_workaround(name)
    assert found.paths == (PLAIN, "patch_targets.untouched")
    assert {fact: getattr(found, fact) for fact in facts} == facts


@pytest.mark.parametrize(
    ("register", "kind", "ops"),
    [
        (lambda f: registry.register_fx_node_fix("dynamo")(f), "fx_node_fix", ()),
        (lambda f: registry.register_fx_node_fix("dynamo", ops=(len,))(f), "fx_node_fix", (len,)),
        (lambda f: registry.register_fx_program_fix("dynamo")(f), "fx_program_fix", ()),
    ],
)
def test_fixes_are_kept(register: Any, kind: str, ops: tuple[Any, ...]) -> None:
    assert register(never_changes) is never_changes
    found = registry.unregister("dynamo:never_changes")
    assert found == Workaround("dynamo:never_changes", "dynamo", kind, never_changes, ops=ops)
    assert found.doc == "Nothing to do."


def test_a_patch_without_a_path_is_refused() -> None:
    with pytest.raises(RegistryError, match="at least one dotted path"):
        registry.register_patch("dynamo")


def test_the_same_path_twice_is_refused() -> None:
    with registered("dynamo", PLAIN, factory=marked("_patch_first")):
        with pytest.raises(RegistryError, match="patched already by dynamo:_patch_first") as caught:
            registry.register_patch("dynamo", "patch_targets.untouched", PLAIN)(marked("_patch_second"))
        assert caught.value.workaround == "dynamo:_patch_second"
        assert "unregister('dynamo:_patch_first')" in str(caught.value)
        assert "dynamo:_patch_second" not in ids()


def test_the_same_path_for_another_backend_is_allowed() -> None:
    with registered("dynamo", PLAIN) as one, registered("onnx", PLAIN) as other:
        assert {one, other} <= set(ids())


@pytest.mark.parametrize("again", [registry.register_fx_node_fix, registry.register_fx_program_fix])
def test_the_same_id_twice_is_refused(again: Any) -> None:
    with registered("dynamo", PLAIN, factory=marked("_same")) as name:
        with pytest.raises(RegistryError, match="dynamo:_same is registered already"):
            registry.register_patch("dynamo", "patch_targets.untouched")(marked("_same"))
        with pytest.raises(RegistryError, match="dynamo:_same is registered already"):
            again("dynamo")(marked("_same"))
        assert registry.find_workaround(name).paths == (PLAIN,)


def test_the_same_function_name_for_another_backend_is_allowed() -> None:
    with registered("dynamo", PLAIN, factory=marked("_same")), registered("onnx", PLAIN, factory=marked("_same")):
        assert {"dynamo:_same", "onnx:_same"} <= set(ids())


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("model", ("model",)),
        ("dynamo", ("model", "dynamo")),
        ("executorch.xnnpack", ("model", "executorch", "executorch.xnnpack")),
        ("a.b.c", ("model", "a", "a.b", "a.b.c")),
    ],
)
def test_a_backend_has_the_shared_one_and_its_parents(backend: str, expected: tuple[str, ...]) -> None:
    assert registry.lineage(backend) == expected


def test_what_is_in_force_for_a_backend() -> None:
    with (
        registered("executorch.xnnpack", PLAIN) as child,
        registered("executorch", PLAIN) as parent,
        registered("executorch.other", PLAIN) as sibling,
        registered("onnx", PLAIN) as stranger,
        registered("model", PLAIN) as shared,
    ):
        ours = {child, parent, sibling, stranger, shared}
        in_order = [name for name in ids("executorch.xnnpack") if name in ours]
        assert in_order == [shared, parent, child]
        assert [name for name in ids("executorch") if name in ours] == [shared, parent]
        for backend in ("dynamo", "onnx", "executorch", "a.third.party"):
            assert shared in ids(backend)


def test_the_list_can_be_narrowed_to_a_kind() -> None:
    registry.register_fx_program_fix("dynamo")(never_changes)
    try:
        with registered("dynamo", PLAIN) as patch:
            assert patch in ids("dynamo", "patch")
            assert patch not in ids("dynamo", "fx_program_fix")
            assert "dynamo:never_changes" in ids("dynamo", "fx_program_fix")
            assert "dynamo:never_changes" not in ids("dynamo", "fx_node_fix")
    finally:
        registry.unregister("dynamo:never_changes")


def test_an_unknown_id_gets_the_nearest_names() -> None:
    with registered("dynamo", PLAIN, factory=marked("_patch_padding_of_ships")):
        for look_up in (registry.find_workaround, registry.unregister):
            with pytest.raises(UsageError, match="no workaround is called") as caught:
                look_up("dynamo:_patch_paddin_of_ships")
            assert "dynamo:_patch_padding_of_ships" in str(caught.value)
    with pytest.raises(UsageError, match="no workaround is called") as caught:
        registry.find_workaround("ß")
    assert "transporters workarounds list" in str(caught.value)


def test_unregister_gives_the_record_and_frees_the_id_and_the_path() -> None:
    factory = marked("_patch_gone")
    registry.register_patch("dynamo", PLAIN)(factory)
    assert registry.unregister("dynamo:_patch_gone").function is factory
    assert "dynamo:_patch_gone" not in ids()
    with registered("dynamo", PLAIN, factory=factory) as name:
        assert name in ids()


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [("", True), ("torch>=2", True), ("torch<2", False), ("a-package-that-nobody-has>=1", False)],
)
def test_needed_gates(requirement: str, expected: bool) -> None:
    with registered("dynamo", PLAIN, needed=requirement) as name:
        assert (name in [w.id for w in registry.active("dynamo", "patch")]) is expected
        assert name in ids("dynamo"), "a workaround that is not applied is still listed"


def test_each_can_be_switched_off_by_its_id() -> None:
    with registered("dynamo", PLAIN) as name:
        assert name not in [w.id for w in registry.active("dynamo", "patch", (name,))]
        other = next(w.id for w in registry.active("dynamo", "patch") if w.id != name)
        assert name in [w.id for w in registry.active("dynamo", "patch", (other,))]


def doubled(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return 2 * (first + second)


class Doubled(torch.nn.Module):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return doubled(first, second)


@pytest.mark.parametrize(
    ("function", "builds"),
    [(doubled, False), (Doubled(), False), (Doubled, True), (lambda: doubled, True)],
    ids=["function", "module", "class", "builder"],
)
def test_a_reproducer_makes_what_an_exporter_takes(function: Any, builds: bool) -> None:
    one = torch.ones(1)
    repro = Repro(function, lambda: (one, 2 * one), builds=builds)
    module = repro.module()
    assert isinstance(module, torch.nn.Module)
    assert not module.training
    assert list(repro.arguments(module)) == ["first", "second"]
    assert module(**repro.arguments(module)).item() == 6
    by_name = Repro(function, lambda: {"second": one, "first": one}, builds=builds)
    assert by_name.arguments(module) == {"second": one, "first": one}


def test_the_facade_is_the_registry() -> None:
    assert set(utils.__all__) >= {"register_patch", "register_fx_node_fix", "register_fx_program_fix"}
    for name in utils.__all__:
        assert getattr(utils, name) is getattr(registry, name)
