# SPDX-License-Identifier: Apache-2.0
"""The clients that programs are made for. Where one is not installed its tests fail, and say how to get it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def transformers_js() -> Callable[..., Any]:
    """Run ``transformers_js.mjs`` in Node on a folder."""
    node = shutil.which("node")
    if node is None or not (HERE / "node_modules" / "@huggingface" / "transformers").is_dir():
        pytest.fail("transformers.js is not installed: make node installs it, and Node where that is missing")

    return caller([str(node), str(HERE / "transformers_js.mjs")])


@pytest.fixture(scope="session")
def optimum() -> Callable[..., Any]:
    """Run ``run_optimum.py`` on a folder, in Optimum's own environment."""
    python = HERE.parent.parent / ".venv-optimum" / "bin" / "python"
    if not python.is_file():
        pytest.fail("Optimum is not installed: make optimum makes its environment")
    return caller([str(python), "-W", "ignore", str(HERE / "run_optimum.py")])


def caller(command: list[str]) -> Callable[..., Any]:
    """Runs a client's script: it takes a JSON document, and gives one on its last line."""

    def call(folder: Path, task: str, **order: Any) -> Any:
        document = json.dumps({"folder": str(folder), "task": task, **order})
        done = subprocess.run(command, input=document, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return call
