# SPDX-License-Identifier: Apache-2.0
"""Dotted paths of patches: what they name, and what happens when they name nothing."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from patch_targets import Alias, Other, counts, registered

from transporters import versions
from transporters.errors import RegistryError
from transporters.exporters.patching import patched
from transporters.exporters.run import ExportRun


def run() -> ExportRun:
    return ExportRun("dynamo")


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("torch.Tensor.no_such_method", "torch.Tensor.no_such_method"),
        ("torch.no_such_module.function", "torch.no_such_module"),
        ("transformers.cache_utils.NoSuchCache.update", "transformers.cache_utils.NoSuchCache"),
        ("transformers.models.no_such_model.modeling_no_such_model.A.forward", "transformers.models.no_such_model"),
        ("transformers.models.nllb_moe.modeling_typo.A.forward", "transformers.models.nllb_moe.modeling_typo"),
    ],
)
def test_a_path_that_does_not_resolve_is_an_error(path: str, missing: str) -> None:
    package = path.split(".")[0]
    with registered("dynamo", path) as workaround_id:
        with pytest.raises(RegistryError, match="does not exist in the installed") as caught, patched("dynamo", run()):
            pytest.fail("the block must not run")
        assert caught.value.message.startswith(f"{missing} does not exist")
        assert f"{package} {versions.installed(package)}" in caught.value.message
        assert caught.value.workaround == workaround_id
        assert workaround_id in str(caught.value.advice)


def test_an_absent_package_is_no_error() -> None:
    with registered("dynamo", "a_package_that_nobody_has.module.function") as workaround_id:
        with patched("dynamo", export := run()):
            pass
        assert workaround_id not in export.fired


def test_a_package_that_is_broken_is_an_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_broken_package.py").write_text("import a_package_that_nobody_has\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        registered("dynamo", "a_broken_package.function"),
        pytest.raises(RegistryError, match="a_package_that_nobody_has"),
        patched("dynamo", run()),
    ):
        pytest.fail("the block must not run")


def test_needed_says_no_before_the_path_is_looked_at() -> None:
    with registered("dynamo", "torch.no_such_function", needed="torch<2"), patched("dynamo", run()):
        pass


def test_a_models_module_that_nobody_imported_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "transformers.models.splinter.modeling_splinter"
    monkeypatch.delitem(sys.modules, module, raising=False)  # some other test may have imported all there are
    seen: list[Any] = []
    with registered("dynamo", f"{module}.SplinterModel.forward", factory=seen.append), patched("dynamo", run()):
        pass
    assert module not in sys.modules
    assert seen == []


def test_a_submodule_of_another_package_is_imported() -> None:
    sys.modules.pop("wsgiref.util", None)
    with registered("dynamo", "wsgiref.util.is_hop_by_hop"), patched("dynamo", run()):
        assert sys.modules["wsgiref.util"].is_hop_by_hop("TE") == ("patched", True)
    assert sys.modules["wsgiref.util"].is_hop_by_hop("TE") is True


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Two modules like those of models: each defines a class of its own, and the second has the first's too."""
    one, two = types.ModuleType("zoo.models.one"), types.ModuleType("zoo.models.two")
    for module, name in ((one, "OneAttention"), (two, "TwoAttention")):
        body = {"__module__": module.__name__, "forward": lambda self: "original"}
        setattr(module, name, type(name, (), body))
        vars(module)["helper"] = lambda: "original"
        monkeypatch.setitem(sys.modules, module.__name__, module)
    two.OneAttention = one.OneAttention
    two.LazyAttention = type("LazyAttention", (two.TwoAttention,), {"__module__": two.__name__})
    return one, two


def test_a_pattern_names_methods_where_they_are_defined(models: tuple[Any, Any]) -> None:
    one, two = models
    export = run()
    with registered("dynamo", "zoo.models.*.*Attention.forward") as workaround_id, patched("dynamo", export):
        assert one.OneAttention().forward() == two.TwoAttention().forward() == ("patched", "original")
        assert two.LazyAttention().forward() == ("patched", "original"), "inherited, so replaced once and not twice"
        assert "forward" not in vars(two.LazyAttention)
    assert export.fired[workaround_id] == 3
    assert one.OneAttention().forward() == two.TwoAttention().forward() == "original"


def test_a_pattern_names_functions_of_modules(models: tuple[Any, Any]) -> None:
    with registered("dynamo", "zoo.models.*.helper"), patched("dynamo", run()):
        assert [module.helper() for module in models] == [("patched", "original")] * 2
    assert [module.helper() for module in models] == ["original"] * 2


def test_a_pattern_that_matches_nothing_loaded_is_no_error() -> None:
    with registered("dynamo", "zoo.animals.*.*Attention.forward"), patched("dynamo", run()):
        pass


def test_what_two_patterns_or_two_names_mean_is_patched_once(models: tuple[Any, Any]) -> None:
    one, _ = models
    one.Alias = one.OneAttention
    assert Alias is Other
    patterns = ("zoo.models.one.*Attention.forward", "zoo.models.one.*.forward")
    paths, export = (*patterns, "patch_targets.Oth*.method", "patch_targets.*.method"), run()
    with registered("dynamo", *paths), patched("dynamo", export):
        assert one.OneAttention().forward() == ("patched", "original")
        assert Other().method(5) == ("patched", 6)
    assert sum(counts(export).values()) == 2
