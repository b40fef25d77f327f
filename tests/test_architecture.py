# SPDX-License-Identifier: Apache-2.0
"""The walls of the house: imports point down, stages line up with their documentation, every file keeps the rules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from transporters.exporters import auto
from transporters.exporters.base import Exporter

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "transporters"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
PYTHON = [
    path for folder in ("src", "tests", "benchmarks", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))
]
MOST_LINES = 400

#: From the top down; a module imports from its own layer and from those below it. Runners and exporters share a storey
#: but no door: they meet in the artifact. The package itself holds the public names, for the command line to use.
LAYERS = (
    {"cli"},
    {"transporters"},
    {"sweep"},
    {"zoo"},
    {"verification"},
    {"clients", "generation"},
    {"artifacts"},
    {"runners", "exporters"},
    {"inputs"},
    {"trees"},
    {"versions", "errors"},
)

#: Who looks up what above itself, by a ``module:Name`` string that is resolved on use.
LOOKED_UP = {
    "transporters.clients": {"clients"},
    "transporters.exporters.auto": {"exporters", "runners"},
    "transporters.exporters.base": {"artifacts", "generation"},
    "transporters.artifacts.exported": {"verification", "generation"},
    "transporters.artifacts.samples": {"verification"},
    "transporters.sweep.limits": {"sweep"},
}

#: Packages that only one backend has, and the word that its files and folders carry.
BACKENDS = {
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnx_ir": "onnx",
    "onnxruntime": "onnx",
    "executorch": "executorch",
    "torchao": "executorch",
}

exporters = pytest.mark.parametrize("exporter", [auto.exporter_class(name) for name in auto.formats()])


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import that is ever carried out: also those in functions, but not those for type checkers."""
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from statements(child)


def imported(module: str, path: Path) -> set[str]:
    """Dotted names that a module imports; for one of our own, the module that it lives in."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    found = set()
    for statement in statements(tree(path)):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
            continue
        base = statement.module or ""
        if statement.level:
            parents = package.split(".")
            base = ".".join([*parents[: len(parents) - statement.level + 1], *filter(None, [statement.module])])
        for alias in statement.names:
            whole = f"{base}.{alias.name}"
            found.add(whole if whole in MODULES or not base.startswith("transporters") else base)
    return found


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def depth(name: str) -> int:
    return next(place for place, names in enumerate(LAYERS) if name in names)


# ── Imports ──


def test_imports_are_seen() -> None:
    """The tests below would pass if nothing were found."""
    base = imported("transporters.exporters.base", MODULES["transporters.exporters.base"])
    assert base >= {"transporters.versions", "transporters.errors", "transporters.exporters.auto", "inspect"}
    assert "transporters.artifacts.exported" not in base, "it is there for type checkers only"
    patches = "transporters.exporters.workarounds.dynamo"
    assert f"{patches}.dtypes" in imported(patches, MODULES[patches])
    assert "transporters.exporters.registry" in imported(f"{patches}.dtypes", MODULES[f"{patches}.dtypes"])
    loading = imported("transporters.cli.export", MODULES["transporters.cli.export"])
    assert "transporters.inputs.loading" in loading, "imports in functions count"


def test_every_module_has_a_layer() -> None:
    known = {name for names in LAYERS for name in names}
    assert {layer(module) for module in MODULES} <= known


def test_imports_point_down() -> None:
    wrong = []
    for module, path in MODULES.items():
        for target in imported(module, path) & set(MODULES):
            ours, theirs = layer(module), layer(target)
            neighbours = depth(theirs) == depth(ours) and theirs != ours and ours not in LAYERS[-1]
            if depth(theirs) < depth(ours) or neighbours:
                wrong.append(f"{module} imports {target}")
    assert wrong == []


def test_the_command_line_alone_uses_the_public_names() -> None:
    users = {module for module, path in MODULES.items() if "transporters" in imported(module, path)}
    assert all(module.startswith("transporters.cli.") for module in users)


def test_there_are_no_cycles() -> None:
    graph = {module: imported(module, path) & set(MODULES) - {module} for module, path in MODULES.items()}
    finished: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail[trail.index(module) :], module))
        if module not in finished:
            for target in sorted(graph[module]):
                walk(target, (*trail, module))
            finished.add(module)

    for module in graph:
        walk(module, ())


def test_look_ups_by_name_are_written_down_and_lead_somewhere() -> None:
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and re.fullmatch(r"transporters(\.\w+)+:\w+", str(node.value)):
                found.setdefault(module, set()).add(layer(node.value.partition(":")[0]))
                assert auto.load_object(node.value) is not None
    assert found == LOOKED_UP


def test_a_backends_packages_are_imported_in_its_files_only() -> None:
    wrong = []
    for module, path in MODULES.items():
        for target in imported(module, path):
            word = BACKENDS.get(target.split(".")[0])
            if word and word not in module:
                wrong.append(f"{module} imports {target}")
    assert wrong == []


def test_the_exporters_of_transformers_are_not_used() -> None:
    """This project is an independent work: nothing imports, patches or quotes them."""
    name = ".".join(("transformers", "exporters"))
    assert [str(path) for path in PYTHON if name in path.read_text(encoding="utf-8")] == []
    for path in PYTHON:
        for statement in statements(tree(path)):
            if isinstance(statement, ast.ImportFrom) and statement.module == "transformers" and not statement.level:
                assert "exporters" not in {alias.name for alias in statement.names}, path


def test_only_trees_walks_trees() -> None:
    """Elsewhere a structure is passed on by its type, `TreeSpec`, and nothing more of torch's pytrees is used."""
    users = {
        (module, target)
        for module, path in MODULES.items()
        for target in imported(module, path)
        if target.startswith("torch.utils._pytree") and layer(module) != "trees"
    }
    assert {target for _, target in users} <= {"torch.utils._pytree.TreeSpec"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("transporters", ("torch", "transformers", "numpy", "rich", "typer")),
        ("transporters.exporters.configs", ("torch", "transformers", "numpy", "rich", "typer")),
        ("transporters.exporters.auto", ("torch", "transformers", "numpy")),
        ("transporters.exporters.utils", ("torch", "transformers", "numpy")),
        ("transporters.cli.main", ("torch", "transformers", "numpy")),
    ],
)
def test_nothing_heavy_is_imported_early(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ── Files ──


def test_every_file_says_its_licence() -> None:
    line = "# SPDX-License-Identifier: Apache-2.0\n"
    assert [str(path) for path in PYTHON if not path.read_text(encoding="utf-8").startswith(line)] == []


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in PYTHON}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_the_names_of_test_files_are_unique() -> None:
    """pytest imports them by their bare names."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.stem not in ("conftest", "__init__")]
    assert sorted(names) == sorted(set(names))


def test_every_folder_of_workarounds_lists_all_of_its_files() -> None:
    folders = [path.parent for path in (PACKAGE / "exporters" / "workarounds").glob("*/**/__init__.py")]
    assert {folder.name for folder in folders} >= {"model", "dynamo"}
    for folder in folders:
        inside = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        inside |= {path.parent.name for path in folder.glob("*/__init__.py")}
        listed = [
            alias.name
            for statement in statements(tree(folder / "__init__.py"))
            if isinstance(statement, ast.ImportFrom) and statement.level == 1 and statement.module is None
            for alias in statement.names
        ]
        assert sorted(listed) == sorted(inside), f"{folder.name}/__init__.py does not import what is in its folder"


# ── Stages ──


def source(exporter: type[Exporter]) -> str:
    return MODULES[exporter.__module__].read_text(encoding="utf-8")


@exporters
def test_the_banners_are_the_stages(exporter: type[Exporter]) -> None:
    banners = re.findall(r"^# ── Stage (\d+): (.+) ──$", source(exporter), flags=re.M)
    assert banners == [(str(place), name) for place, name in enumerate(exporter.stages, start=1)]
    assert len(re.findall(r"── Stage", source(exporter))) == len(banners), "a banner is indented or malformed"


@exporters
def test_the_docstring_lists_the_stages(exporter: type[Exporter]) -> None:
    listed = exporter.stage_docs()
    assert tuple(name for name, _ in listed) == exporter.stages
    assert all(text.endswith(".") for _, text in listed)
    docstring = ast.get_docstring(tree(MODULES[exporter.__module__])) or ""
    numbers = re.findall(r"^(\d+)\. \*\*", docstring, flags=re.M)
    assert numbers == [str(place) for place in range(1, len(exporter.stages) + 1)]


@exporters
def test_the_stage_reference_lists_the_stages(exporter: type[Exporter]) -> None:
    text = (ROOT / "docs" / "stages.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^# (\w+)\n(.*?)(?=^# |\Z)", text, flags=re.M | re.S))
    headings = re.findall(r"^## Stage (\d+): (.+)$", sections[exporter.__name__], flags=re.M)
    assert headings == [(str(place), name) for place, name in enumerate(exporter.stages, start=1)]


@exporters
def test_the_exporter_runs_its_stages_in_order(exporter: type[Exporter]) -> None:
    """It opens its stages in the order in which they are written; under its own name, where a subclass has others."""
    own = ("self.stages", f"{exporter.__name__}.stages")
    classes = [node for node in tree(MODULES[exporter.__module__]).body if isinstance(node, ast.ClassDef)]
    body = next(node for node in classes if node.name == exporter.__name__)
    opened = [
        node.slice.value
        for node in ast.walk(body)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in own and isinstance(node.slice, ast.Constant)
    ]
    assert sorted(opened) == list(range(len(exporter.stages)))
    lines = re.findall(rf"run\.stage\((?:{'|'.join(map(re.escape, own))})\[(\d+)\]\)", source(exporter))
    assert [int(place) for place in lines] == list(range(len(exporter.stages)))
