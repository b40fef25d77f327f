# SPDX-License-Identifier: Apache-2.0
"""The generated pages are what the code says, and stages have the same names everywhere."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transporters.exporters.auto import exporter_class, formats

ROOT = Path(__file__).resolve().parent.parent


def test_the_generated_pages_are_fresh():
    """In a process of its own, whose registry no other test has touched."""
    command = [sys.executable, str(ROOT / "scripts" / "generate_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("export_format", formats())
def test_stages_are_named_alike_in_code_docstring_banners_and_reference(export_format):
    exporter = exporter_class(export_format)
    module = inspect.getmodule(exporter)
    banners = re.findall(r"^# ── Stage (\d+): (.+) ──$", inspect.getsource(module), flags=re.M)
    page = (ROOT / "docs" / "stages.md").read_text(encoding="utf-8")
    section = page.partition(f"# {exporter.__name__}\n")[2].partition("\n# ")[0]
    expected = [(str(position), name) for position, name in enumerate(exporter.stages, start=1)]
    assert banners == expected
    assert re.findall(r"^## Stage (\d+): (.+)$", section, flags=re.M) == expected
    assert [name for name, _ in exporter.stage_docs()] == list(exporter.stages)
