# SPDX-License-Identifier: Apache-2.0
"""Running the command line in this process and in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import small_models

from transporters.cli.main import dispatch


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line in this process."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = dispatch([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        return Outcome(code, streams.out, streams.err)

    return call


@pytest.fixture
def process() -> Callable[..., Outcome]:
    """Run a command line in a process of its own, as a shell does."""

    def call(*arguments: object, **environment: str) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "transporters.cli.main", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
            timeout=300,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return call


@dataclass(frozen=True)
class Pair:
    """A model folder, and the artifact made from it."""

    kind: str
    model: Path
    artifact: Path

    def eager(self) -> Any:
        return small_models.load(self.model, self.kind)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """A tiny model of a kind, exported once per session."""
    root = tmp_path_factory.mktemp("small")

    @cache
    def make(kind: str, *options: str) -> Pair:
        name = "-".join((kind, *(option.strip("-") for option in options)))
        model = small_models.write(root / name, kind)
        artifact = root / f"{name}.artifact"
        code = dispatch(["export", str(model), "--to", "torch", "--out", str(artifact), "--no-verify", *options])
        assert code == 0
        return Pair(kind, model, artifact)

    return make
