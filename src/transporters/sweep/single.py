# SPDX-License-Identifier: Apache-2.0
"""One case, from the class's name to its result. Runs in a process of its own."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .. import zoo
from ..errors import RunError
from ..exporters.auto import AutoExportConfig, AutoExporter
from ..verification.report import Report
from ..zoo.outcomes import TROUBLES
from ..zoo.unbuildable import UNBUILDABLE
from . import faults
from .cases import Case
from .faults import VERIFY

#: The first step of a case.
BUILD = "Build"


def run_case(case: Case, tell: Callable[[str], None]) -> dict[str, Any]:
    """Build, export and verify; the result without versions and date, which are the caller's.

    Args:
        case: What to run.
        tell: Called with the name of each step when it starts, so that whoever kills this process knows where it was.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    stages: dict[str, float] = {}
    result: dict[str, Any] = {"status": "cannot build", "stages": stages}
    tell(BUILD)
    start = time.perf_counter()
    try:
        model, inputs = zoo.build_with_inputs(case.name)
        with torch.no_grad():
            model(**inputs)
    except TROUBLES as error:
        cause = UNBUILDABLE.get(case.name)
        return {**result, "error": {**faults.describe(error, BUILD), **({"message": cause} if cause else {})}}
    stages[BUILD] = round(time.perf_counter() - start, 3)
    try:
        exported = _export(case, model, inputs, stages, tell)
        tell(VERIFY)
        start = time.perf_counter()
        report = exported.verify()
        stages[VERIFY] = round(time.perf_counter() - start, 3)
    except Exception as error:  # noqa: BLE001  whatever an export raises is this case's result
        status = "run error" if isinstance(error, RunError) else "export error"
        stage = getattr(error, "stage", None) or (VERIFY if VERIFY in stages else list(stages)[-1])
        return {**result, "status": status, "error": faults.describe(error, stage)}
    result |= {"status": "run error" if report.status == "not run" else report.status, **_figures(report)}
    result["frozen"] = sorted({axis.label for axis in exported.contract.axes if not axis.dynamic})
    result["workarounds"] = sorted(exported.run.fired)
    return result if report.verified else {**result, "error": faults.failure(report)}


def _export(
    case: Case, model: Any, inputs: dict[str, Any], stages: dict[str, float], tell: Callable[[str], None]
) -> Any:
    def observe(record: Any) -> None:
        if record.status == "running":
            tell(record.name)
        else:
            stages[record.name] = round(stages.get(record.name, 0.0) + record.seconds, 3)

    config = AutoExportConfig.from_dict({"export_format": case.backend, "dynamic": case.shapes == "dynamic"})
    return AutoExporter.from_config(config).export(model, inputs, config, observer=observe)


def _figures(report: Report) -> dict[str, Any]:
    """How many sets of inputs were tried and ran, and the largest difference as a share of what is allowed."""
    ran = [variation for variation in report.variations if variation.status != "not applicable"]
    shares = [
        check.max_abs / allowed
        for variation in ran
        for check in variation.outputs
        if check.max_abs and (allowed := check.atol + check.rtol * check.max_abs / (check.max_rel or 1.0))
    ]
    return {"tried": len(report.variations), "ran": len(ran), "worst": round(max(shares, default=0.0), 4)}
