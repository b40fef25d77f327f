# SPDX-License-Identifier: Apache-2.0
"""Engines give every result once, on this machine and on a Ray cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from transporters.errors import UsageError
from transporters.sweep import engines
from transporters.sweep.cases import Case
from transporters.sweep.limits import Limits

FAKE = "sweep_fakes:run"
CASES = [Case(name, "fake", "torch", "dynamic") for name in ("fine", "exit:3", "well", "segfault", "good")]
EXPECTED = {"fine": "verified", "exit:3": "crash", "well": "verified", "segfault": "crash", "good": "verified"}


def test_the_local_engine_gives_every_result_once():
    found = list(engines.run("local", CASES, Limits(60.0, 4096), jobs=2, function=FAKE))
    assert {result["class"]: result["status"] for result in found} == EXPECTED
    assert len(found) == len(CASES)


def test_a_local_ray_with_two_workers_gives_the_same(monkeypatch):
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or ray warns of a change to come
    fakes = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": fakes})
    try:
        found = list(engines.run("ray", CASES, Limits(60.0, 4096), jobs=0, function=FAKE))
    finally:
        ray.shutdown()
    assert {result["class"]: result["status"] for result in found} == EXPECTED
    assert len(found) == len(CASES)


def test_an_unknown_engine_is_named():
    with pytest.raises(UsageError, match="no engine 'dask'"):
        engines.run("dask", CASES, Limits(), 1)
