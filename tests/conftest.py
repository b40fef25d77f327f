# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: a real browser for the pages. Its folder is on the import path, so that they find ``tiny``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--window-size=1200,2300",
)


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None and os.environ.get("CI"):
        pytest.fail(f"no browser: none of {', '.join(NAMES)} is on the PATH, and CI must look at the page")
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH (make browser installs one)")
    return found


@pytest.fixture
def browser_command(chromium: str, tmp_path: Path) -> list[str]:
    """Chromium without a window, with a profile of its own; flags and an address are still to be added."""
    return [chromium, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]


@pytest.fixture
def browse(browser_command: list[str], tmp_path: Path) -> Callable[..., str]:
    """Open a page in Chromium and give its DOM after the scripts ran; a message on the console is an error."""

    def call(page: str, *flags: str) -> str:
        file = tmp_path / "page.html"
        file.write_text(page, encoding="utf-8")
        command = [*browser_command, *(flags or ("--dump-dom",)), file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "CONSOLE" not in done.stderr, done.stderr
        return done.stdout

    return call


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a verified ONNX decoder, laid out for all of ONNX's clients; tests in the xdist group "smollm2"."""
    import real_models
    from transporters import clients

    names = [name for name in clients.names() if name != "executorch"]
    wanted = [part for name in names for part in ("--for", name)]
    return real_models.export_smollm2(tmp_path_factory.mktemp("smollm2") / "onnx", *wanted)
