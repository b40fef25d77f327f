# SPDX-License-Identifier: Apache-2.0
"""Every registered workaround: its facts, its place, its targets, and its reproducer.

A reproducer is exported by the real exporter twice. With all workarounds on, its program is right in every respect that
`reproduce.fault` asks about; with only this one off, it is not. A reproducer that passes without its workaround is the
sign that the fault is gone and the workaround is to be deleted.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path

import pytest
import transformers
from packaging.requirements import Requirement
from reproduce import fault

from transporters import versions
from transporters.exporters import registry
from transporters.exporters.patching import targets
from transporters.exporters.registry import Workaround

WORKAROUNDS = registry.list_workarounds()
MODELS = Path(transformers.__file__).parent / "models"
FOLDER = Path(registry.__file__).parent / "workarounds"
PREFIXES = {
    "patch": ("_patch_",),
    "fx_node_fix": ("_fix_",),
    "fx_program_fix": ("_fix_",),
    "translation": ("_aten_",),
    "ir_fix": ("_fix_ir_",),
}
MOST_LINES = 60

#: The exporter that a backend's reproducers go through.
FORMATS = {"model": "torch", "dynamo": "torch", "onnx": "onnx", "executorch": "executorch"}

every = pytest.mark.parametrize("workaround", WORKAROUNDS, ids=[w.id for w in WORKAROUNDS])


def root(workaround: Workaround) -> str:
    return workaround.backend.split(".")[0]


def test_there_are_workarounds() -> None:
    """The tests below are made from the registry, and would pass unseen if it were empty."""
    assert {"model", "dynamo", "onnx"} <= {w.backend for w in WORKAROUNDS}
    assert {w.kind for w in WORKAROUNDS} >= set(PREFIXES)


@every
def test_facts(workaround: Workaround) -> None:
    assert len(workaround.why.split()) >= 5, "one sentence that says what is wrong"
    assert "  " not in workaround.why
    assert workaround.issue in ("unreported", "by-design") or re.fullmatch(
        r"https://[\w.-]+/\S*/(issues|pull)/\d+\S*", workaround.issue
    )
    assert Requirement(workaround.needed).specifier, "a package with a range of versions"
    assert versions.holds(workaround.needed), "written for another version: change the range or delete it"
    assert workaround.repro is not None


@every
def test_the_function(workaround: Workaround) -> None:
    name = workaround.function.__name__
    assert name.startswith(PREFIXES[workaround.kind])
    assert workaround.id == f"{workaround.backend}:{name}"
    assert workaround.doc.endswith(".")
    source = textwrap.dedent(inspect.getsource(workaround.function))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert function.end_lineno is not None
    assert function.end_lineno - function.lineno < MOST_LINES


@every
def test_the_place(workaround: Workaround) -> None:
    file = Path(str(inspect.getsourcefile(workaround.function)))
    assert file.relative_to(FOLDER).parts[0] == root(workaround)
    assert file.stem != "__init__"


@every
def test_what_it_targets(workaround: Workaround) -> None:
    """A patch's paths lead somewhere, with all code loaded that they can mean; a fix of nodes names its operations."""
    assert bool(workaround.paths) == (workaround.kind == "patch")
    for path in workaround.paths:
        assert import_for(workaround, path), f"{path} matches nothing in the installed packages"
    if workaround.kind in ("fx_node_fix", "translation"):
        assert all(callable(op) or (isinstance(op, str) and "::" in op) for op in workaround.ops)


def import_for(workaround: Workaround, path: str) -> bool:
    """Import the modules of models that a path may mean, one by one, until it means something."""
    for module in sorted(model_modules()):
        if path.startswith("transformers.models.") and could_mean(path, module):
            importlib.import_module(module)
            if targets(workaround, path):
                return True
    return bool(targets(workaround, path))


def model_modules() -> list[str]:
    return [
        f"transformers.models.{package.name}.{module.name}"
        for package in pkgutil.iter_modules([str(MODELS)])
        for module in pkgutil.iter_modules([str(MODELS / package.name)])
        if module.name.startswith("modeling_")
    ]


def could_mean(path: str, module: str) -> bool:
    """Whether the module's name fits and its text defines or imports the names (most need not be imported)."""
    pieces = [piece.replace("*", r"\w*") for piece in path.split(".")]
    names = module.split(".")
    text = MODELS.joinpath(*names[2:]).with_suffix(".py").read_text(encoding="utf-8")
    defined = all(re.search(rf"\b(def|class|import\b.*) {piece}\b", text) for piece in pieces[len(names) :])
    return defined and all(map(re.fullmatch, pieces, names))


@every
def test_the_reproducer_passes_with_it_on(workaround: Workaround, tmp_path: Path) -> None:
    found, fired = fault(workaround.repro, FORMATS[root(workaround)], tmp_path / "program")
    assert found == ""
    assert fired.get(workaround.id), "the reproducer does not meet the workaround"


@every
def test_the_reproducer_fails_with_only_this_one_off(workaround: Workaround, tmp_path: Path) -> None:
    found, fired = fault(workaround.repro, FORMATS[root(workaround)], tmp_path / "program", without=workaround.id)
    assert found, f"{workaround.id} cures nothing any more: time to delete it"
    assert workaround.id not in fired
