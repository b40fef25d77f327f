# SPDX-License-Identifier: Apache-2.0
"""What the documentation says is tried out: its Python runs, its links lead somewhere, its options exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transporters.cli.main import dispatch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
BY_NAME = [page.relative_to(ROOT).as_posix() for page in PAGES]
WITH_PYTHON = [name for name in BY_NAME if "```python" in (ROOT / name).read_text(encoding="utf-8")]


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a tiny BERT in ``path/to/model``."""
    sys.path.insert(0, str(ROOT / "tests" / "cli"))
    try:
        import small_models
    finally:
        sys.path.pop(0)
    small_models.write(tmp_path / "path" / "to" / "model", "features")
    return tmp_path


@pytest.mark.model
@pytest.mark.parametrize("name", WITH_PYTHON)
def test_the_python_runs(name, folder):
    script = folder / "example.py"
    script.write_text("\n".join(blocks(name, "python")), encoding="utf-8")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, script.name], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.model
def test_the_dynamic_shapes_file_is_read(folder, capsys):
    (text,) = blocks("docs/guide.md", "json")
    (folder / "shapes.json").write_text(text, encoding="utf-8")
    options = ["--dynamic-shapes", str(folder / "shapes.json"), "--no-verify", "--json"]
    model = str(folder / "path" / "to" / "model")
    assert dispatch(["export", model, "--to", "torch", "--out", str(folder / "out"), *options]) == 0
    axes = json.loads(capsys.readouterr().out)["shape_contract"]
    assert [(axis["dynamic"], axis["maximum"]) for axis in axes] == [(False, None), (True, 24)] * 2


@pytest.mark.parametrize("name", BY_NAME)
def test_links_lead_somewhere(name):
    page = ROOT / name
    for place in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if place.startswith("https://"):
            continue
        file, _, anchor = place.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), place
        assert not anchor or anchor in anchors(target), place


def test_every_option_that_the_docs_name_exists(capsys):
    known = set()
    commands = ("", "check", "export", "verify", "run", "stages", "sweep", "workarounds list", "workarounds show")
    for command in commands:
        dispatch([*command.split(), "--help"])
        known |= set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    for name in ("README.md", "CHANGELOG.md", "docs/guide.md", "docs/extending.md"):
        named = set(re.findall(r"(?<=[`\s(])--[a-z][a-z-]+", (ROOT / name).read_text(encoding="utf-8")))
        assert named <= known, name


def test_the_manifest_s_keys_are_described(tmp_path):
    from transporters.artifacts.manifest import _REQUIRED

    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`(\w+)`", text.partition("### The manifest")[2]))
    assert set(_REQUIRED) <= described
