# SPDX-License-Identifier: Apache-2.0
"""Patches: in force for the length of a block, and gone without a trace."""

from __future__ import annotations

import inspect
import json
from typing import Any

import patch_reexports
import patch_targets
import pytest
import torch
from patch_targets import Base, Child, counts, marked, registered, standing

from transporters.errors import RegistryError
from transporters.exporters.patching import patched
from transporters.exporters.run import ExportRun

PLAIN = "patch_targets.plain"


def run() -> ExportRun:
    return ExportRun("dynamo")


# ── Exact restore ──


@pytest.mark.parametrize(
    ("path", "owner", "call"),
    [
        (PLAIN, patch_targets, lambda: patch_targets.plain(5)),
        ("patch_targets.Base.method", Base, lambda: Base().method(5)),
        ("patch_targets.Child.method", Child, lambda: Child().method(5)),
        ("patch_targets.Base.fixed", Base, lambda: Base.fixed(5)),
        ("patch_targets.Child.fixed", Child, lambda: Child().fixed(5)),
        ("torch.Tensor.double", torch.Tensor, lambda: torch.tensor(5).double().item()),
        ("torch.where", torch, lambda: torch.where(torch.tensor(True), 5, 6).item()),
        ("torch.nn.functional.silu", torch.nn.functional, lambda: torch.nn.functional.silu(torch.zeros(())).item()),
        ("json.decoder.scanstring", json.decoder, lambda: json.decoder.scanstring('"five"', 1)[0]),
    ],
)
def test_exact_restore(path: str, owner: Any, call: Any) -> None:
    name = path.rpartition(".")[2]
    before, result = standing(owner, name), call()
    calls = 0

    def factory(original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(*args, **kwargs)

        return replacement

    export = run()
    with registered("dynamo", path, factory=factory) as workaround_id, patched("dynamo", export):
        assert standing(owner, name) is not before
        assert call() == result
    assert standing(owner, name) is before
    assert call() == result
    assert calls == 1
    assert export.fired[workaround_id] == 1


def test_an_inherited_method_is_deleted_again() -> None:
    with registered("dynamo", "patch_targets.Child.method"), patched("dynamo", run()):
        assert Child().method(5) == ("patched", 5)
        assert Base().method(5) == 5
    assert "method" not in vars(Child)
    assert Child.method is Base.method


@pytest.mark.parametrize("owner", [Base, Child])
def test_a_classmethod_stays_one(owner: type) -> None:
    before = standing(owner, "of_class")
    with registered("dynamo", f"patch_targets.{owner.__name__}.of_class"), patched("dynamo", run()):
        assert isinstance(vars(owner)["of_class"], classmethod)
        assert owner.of_class(5) == ("patched", (owner, 5))
        assert owner().of_class(5) == ("patched", (owner, 5))
    assert standing(owner, "of_class") is before


def test_a_staticmethod_stays_one() -> None:
    before = standing(Base, "fixed")
    with registered("dynamo", "patch_targets.Base.fixed"), patched("dynamo", run()):
        assert isinstance(vars(Base)["fixed"], staticmethod)
        assert Base().fixed(5) == Child.fixed(5) == ("patched", 5)
    assert standing(Base, "fixed") is before


def test_a_c_level_method_of_tensor_is_deleted_again() -> None:
    assert "unfold" not in vars(torch.Tensor), "it is inherited from C"
    with registered("dynamo", "torch.Tensor.unfold"), patched("dynamo", run()):
        assert torch.arange(4).unfold(0, 2, 2)[0] == "patched"
    assert "unfold" not in vars(torch.Tensor)
    assert torch.arange(4).unfold(0, 2, 2).tolist() == [[0, 1], [2, 3]]


def test_only_the_named_place_changes() -> None:
    with registered("dynamo", "patch_reexports.plain"), patched("dynamo", run()):
        assert patch_reexports.plain(5) == ("patched", 5)
        assert patch_targets.plain(5) == 5
    with registered("dynamo", PLAIN), patched("dynamo", run()):
        assert patch_reexports.plain(5) == 5
        assert patch_targets.plain(5) == ("patched", 5)
    assert patch_reexports.plain is patch_targets.plain


@pytest.mark.parametrize(
    ("path", "replacement"),
    [("patch_targets.Base.limit", 4), ("patch_targets.Child.limit", 4), ("patch_targets.Base.size", property(len))],
)
def test_an_attribute_that_is_no_function(path: str, replacement: Any) -> None:
    _, owner_name, name = path.split(".")
    owner, export = getattr(patch_targets, owner_name), run()
    before, seen = standing(owner, name), []

    def factory(original: Any) -> Any:
        seen.append(original)
        return replacement

    with registered("dynamo", path, factory=factory) as workaround_id, patched("dynamo", export):
        assert vars(owner)[name] is replacement
    assert standing(owner, name) is before
    assert seen == [vars(Base)[name]]
    assert export.fired[workaround_id] == 1, "a value fires by being put in place"


def test_several_paths_share_a_factory() -> None:
    with registered("dynamo", PLAIN, "patch_targets.Base.method"), patched("dynamo", run()):
        assert patch_targets.plain(5) == Base().method(5) == ("patched", 5)
    assert patch_targets.plain(5) == Base().method(5) == 5


def test_a_factory_that_gives_the_original_changes_nothing() -> None:
    export = run()
    before = standing(Base, "fixed")
    with registered("dynamo", "patch_targets.Base.fixed", factory=lambda original: original), patched("dynamo", export):
        assert Base.fixed(5) == 5
    assert standing(Base, "fixed") is before
    assert counts(export) == {}


def test_an_escaped_replacement_is_harmless_afterwards() -> None:
    with registered("dynamo", PLAIN), patched("dynamo", run()):
        kept = patch_targets.plain
    assert kept(5) == 5


# ── After an exception ──


def fail_unless(condition: bool) -> None:
    assert condition
    raise ZeroDivisionError


def test_the_originals_are_back_after_an_exception() -> None:
    before = standing(patch_targets, "plain")
    with registered("dynamo", PLAIN), pytest.raises(ZeroDivisionError), patched("dynamo", run()):
        fail_unless(standing(patch_targets, "plain") is not before)
    assert standing(patch_targets, "plain") is before


def test_a_failing_factory_leaves_nothing_behind() -> None:
    def _patch_broken(original: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    before = standing(patch_targets, "plain"), standing(Base, "method")
    with (
        registered("dynamo", PLAIN, factory=marked("_patch_sound")),
        registered("dynamo", "patch_targets.Base.method", factory=_patch_broken),
    ):
        with pytest.raises(RegistryError, match="ZeroDivisionError: on purpose") as caught, patched("dynamo", run()):
            pytest.fail("the block must not run with half of the patches")
        assert caught.value.workaround == "dynamo:_patch_broken"
        assert (standing(patch_targets, "plain"), standing(Base, "method")) == before
        with patched("dynamo", run(), skip=("dynamo:_patch_broken",)):
            assert patch_targets.plain(5) == ("patched", 5), "the failed attempt must not count as in force"


def test_what_cannot_be_replaced_is_an_error() -> None:
    with (
        registered("dynamo", "torch._C.TensorBase.unfold") as workaround_id,
        pytest.raises(RegistryError, match=r"torch\._C\.TensorBase\.unfold cannot be replaced") as caught,
        patched("dynamo", run()),
    ):
        pytest.fail("the block must not run")
    assert caught.value.workaround == workaround_id


# ── What is in force, and what is counted ──


def test_needed_and_skip_and_other_backends_keep_a_patch_out() -> None:
    with registered("dynamo", PLAIN, needed="torch<2"), patched("dynamo", run()):
        assert patch_targets.plain(5) == 5
    with registered("dynamo", PLAIN) as workaround_id, patched("dynamo", run(), skip=(workaround_id,)):
        assert patch_targets.plain(5) == 5
    with registered("onnx", PLAIN), patched("dynamo", run()):
        assert patch_targets.plain(5) == 5
    with registered("executorch.xnnpack", PLAIN), patched("executorch", run()):
        assert patch_targets.plain(5) == 5


def test_the_shared_and_the_parents_patches_are_in_force_under_the_childs() -> None:
    with (
        registered("executorch.xnnpack", PLAIN, factory=marked(mark="child")),
        registered("executorch", PLAIN, factory=marked(mark="parent")),
        registered("model", PLAIN, factory=marked(mark="shared")),
    ):
        with patched("executorch.xnnpack", run()):
            assert patch_targets.plain(5) == ("child", ("parent", ("shared", 5)))
        with patched("executorch", run()):
            assert patch_targets.plain(5) == ("parent", ("shared", 5))
        with patched("another.backend", run()):
            assert patch_targets.plain(5) == ("shared", 5)
    assert patch_targets.plain(5) == 5


def test_firing_is_counted_and_standing_by_is_not() -> None:
    export = run()
    with (
        registered("dynamo", PLAIN) as name,
        registered("dynamo", "patch_targets.untouched", factory=marked("_idle")),
        patched("dynamo", export),
    ):
        assert counts(export) == {}
        patch_targets.plain(1)
        patch_targets.plain(2)
    assert counts(export) == {name: 2}


def test_not_implemented_leaves_the_call_to_the_original() -> None:
    def _patch_odd_numbers(original: Any) -> Any:
        return lambda value: NotImplemented if value % 2 == 0 else ("odd", original(value))

    export = run()
    with registered("dynamo", PLAIN, factory=_patch_odd_numbers) as workaround_id, patched("dynamo", export):
        assert [patch_targets.plain(n) for n in (2, 3, 4)] == [2, ("odd", 3), 4]
    assert counts(export) == {workaround_id: 1}


def test_what_stands_in_for_a_replacement_reads_like_it() -> None:
    """Models look at signatures, and tracebacks at names."""

    def _patch_named(original: Any) -> Any:
        def another(number: int, *, scale: int = 1) -> int:
            return original(number) * scale

        return another

    with registered("dynamo", PLAIN, factory=_patch_named), patched("dynamo", run()):
        assert patch_targets.plain.__name__ == "another"
        assert list(inspect.signature(patch_targets.plain).parameters) == ["number", "scale"]
        assert patch_targets.plain(5, scale=2) == 10


def test_a_factory_that_gives_nothing_is_an_error() -> None:
    with (
        registered("dynamo", PLAIN, factory=lambda original: None),
        pytest.raises(RegistryError, match=r"gave None in place of patch_targets\.plain"),
        patched("dynamo", run()),
    ):
        pytest.fail("the block must not run")


# ── Nesting ──


def test_an_inner_block_does_not_patch_a_second_time_and_counts_for_itself() -> None:
    outer, inner = run(), run()
    with registered("dynamo", PLAIN) as workaround_id, patched("dynamo", outer):
        patch_targets.plain(1)
        with patched("dynamo", inner):
            assert patch_targets.plain(5) == ("patched", 5)
            patch_targets.plain(1)
        assert patch_targets.plain(5) == ("patched", 5), "the inner block must leave what the outer one installed"
    assert (counts(outer), counts(inner)) == ({workaround_id: 2}, {workaround_id: 2})
    assert patch_targets.plain(5) == 5


def test_an_inner_block_of_another_backend_adds_its_own() -> None:
    with (
        registered("dynamo", PLAIN, factory=marked(mark="outer")),
        registered("onnx", PLAIN, factory=marked(mark="inner")),
    ):
        with patched("dynamo", run()):
            with patched("onnx", run()):
                assert patch_targets.plain(5) == ("inner", ("outer", 5))
            assert patch_targets.plain(5) == ("outer", 5)
        assert patch_targets.plain(5) == 5


def test_an_inner_block_can_switch_off_what_the_outer_one_installed() -> None:
    with registered("dynamo", PLAIN) as workaround_id, patched("dynamo", run()):
        with patched("dynamo", run_without := ExportRun("dynamo", skipped=(workaround_id,)), (workaround_id,)):
            assert patch_targets.plain(5) == 5
        assert patch_targets.plain(5) == ("patched", 5)
    assert counts(run_without) == {}


def test_an_inner_block_that_raises_leaves_the_outer_one_in_force() -> None:
    with registered("dynamo", PLAIN), patched("dynamo", run()):
        with pytest.raises(ZeroDivisionError), patched("dynamo", run()):
            raise ZeroDivisionError
        assert patch_targets.plain(5) == ("patched", 5)
    assert patch_targets.plain(5) == 5
