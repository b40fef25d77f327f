# SPDX-License-Identifier: Apache-2.0
"""The record that travels along an export: stage times, workarounds that fired, findings, versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .. import versions
from ..errors import ExportError, TransportersError


@dataclass
class StageRecord:
    """One stage of a run. ``status`` is "running", "done" or "failed"; ``seconds`` is wall time."""

    name: str
    seconds: float = 0.0
    status: str = "running"


@dataclass(frozen=True)
class Finding:
    """A one-line remark about the model, the inputs or the program. ``level`` is "info" or "warning"."""

    level: str
    where: str
    message: str


@dataclass
class ExportRun:
    """What was done to one model in one export.

    Attributes:
        backend: Registry name of the backend ("dynamo", "onnx", …).
        stages: Stage records in the order in which they ran.
        fired: Workaround id to how often it took effect.
        skipped: Ids that the caller switched off.
        findings: Preflight and stage remarks.
        versions: Package to version, as installed when the run began.
        observer: Called with each stage record when it starts and when it ends (a progress display).
    """

    backend: str
    stages: list[StageRecord] = field(default_factory=list)
    fired: dict[str, int] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=versions.report)
    observer: Callable[[StageRecord], None] | None = field(default=None, repr=False, compare=False)

    @contextmanager
    def stage(self, name: str) -> Iterator[StageRecord]:
        """Time a stage; an error inside it leaves as a `TransportersError` that names the stage."""
        record = StageRecord(name)
        self.stages.append(record)
        self._tell(record)
        start = time.perf_counter()
        try:
            yield record
        except TransportersError as error:
            record.status = "failed"
            error.backend = error.backend or self.backend
            error.stage = error.stage or name
            raise
        except Exception as error:
            record.status = "failed"
            raise ExportError(f"{type(error).__name__}: {error}", backend=self.backend, stage=name) from error
        else:
            record.status = "done"
        finally:
            record.seconds = time.perf_counter() - start
            self._tell(record)

    def fire(self, workaround_id: str) -> None:
        """Count one effect of a workaround."""
        self.fired[workaround_id] = self.fired.get(workaround_id, 0) + 1

    def note(self, level: str, where: str, message: str) -> None:
        """Add a finding once; repeats of the same remark are dropped."""
        finding = Finding(level, where, message)
        if finding not in self.findings:
            self.findings.append(finding)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, as the manifest keeps it."""
        return {
            "backend": self.backend,
            "stages": [{"name": s.name, "seconds": round(s.seconds, 4), "status": s.status} for s in self.stages],
            "workarounds": dict(sorted(self.fired.items())),
            "skipped_workarounds": list(self.skipped),
            "findings": [{"level": f.level, "where": f.where, "message": f.message} for f in self.findings],
            "versions": self.versions,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ExportRun:
        """Inverse of `to_dict`."""
        return cls(
            backend=data["backend"],
            stages=[StageRecord(**stage) for stage in data["stages"]],
            fired=dict(data["workarounds"]),
            skipped=tuple(data["skipped_workarounds"]),
            findings=[Finding(**finding) for finding in data["findings"]],
            versions=dict(data["versions"]),
        )

    def _tell(self, record: StageRecord) -> None:
        if self.observer is not None:
            self.observer(record)
