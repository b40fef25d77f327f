# SPDX-License-Identifier: Apache-2.0
"""Who runs the cases: processes of this machine, or the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Any

from ..errors import MissingBackendError, UsageError
from . import limits as limited
from .cases import Case
from .limits import Limits
from .results import Result

ENGINES = ("local", "ray")


def check(engine: str) -> None:
    """Check the name of an engine.

    Raises:
        UsageError: When there is no such engine.
    """
    if engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r}", advice=f"known engines: {', '.join(ENGINES)}")


def run(
    engine: str, cases: Iterable[Case], limits: Limits, jobs: int, function: str = limited.RUN_CASE
) -> Iterator[Result]:
    """Run cases and give each result as soon as it is there, in no order.

    Args:
        engine: Member of `ENGINES`.
        cases: What to run.
        limits: What each may use.
        jobs: How many run at once; with Ray at most that many, 0 for as many as the cluster has CPUs.
        function: As `limits.run_limited`.

    Raises:
        UsageError: When there is no such engine.
        MissingBackendError: When the engine's package is absent.
    """
    check(engine)
    return (_local if engine == "local" else _ray)(list(cases), limits, jobs, function)


def _local(cases: list[Case], limits: Limits, jobs: int, function: str) -> Iterator[Result]:
    _preload(cases, function)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max(1, jobs)))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # an interrupt starts no further case
        futures = [pool.submit(limited.run_limited, case, limits, function) for case in cases]
        for future in as_completed(futures):
            yield future.result()


def _ray(cases: list[Case], limits: Limits, jobs: int, function: str) -> Iterator[Result]:
    """Each task holds one CPU and watches one process on its worker's machine."""
    try:
        import ray
    except ImportError as error:
        raise MissingBackendError("ray is not installed", advice="pip install 'transporters[ray]'") from error
    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False)

    def task(case: Case) -> Result:
        _preload(cases, function)
        return limited.run_limited(case, limits, function)

    remote: Any = ray.remote(num_cpus=1, max_retries=0)(task)
    most = jobs or int(ray.cluster_resources().get("CPU", 1))
    waiting = cases[::-1]
    running: list[Any] = []
    while waiting or running:
        while waiting and len(running) < most:
            running.append(remote.remote(waiting.pop()))
        done, running = ray.wait(running, num_returns=1)
        yield from ray.get(done)


def _preload(cases: list[Case], function: str) -> None:
    if function == limited.RUN_CASE:  # another one loads what it needs
        limited.preload(cases)
