# SPDX-License-Identifier: Apache-2.0
"""One case, from the class's name to its result. Runs in a process of its own."""

from __future__ import annotations

import re
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .. import zoo
from ..errors import RunError, TransportersError
from ..exporters.auto import AutoExportConfig, AutoExporter
from ..verification.report import Report, Variation
from ..zoo.outcomes import TROUBLES
from ..zoo.unbuildable import UNBUILDABLE
from .cases import Case

#: Steps of a case that are not stages of its exporter.
BUILD, VERIFY = "Build", "Verify"
#: A model file of Transformers in a traceback, or in a message that quotes one.
_MODEL_LINE = re.compile(r'(modeling_\w+\.py)"?(?::|, line )(\d+)')


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
        return {**result, "error": {**_describe(error, BUILD), **({"message": cause} if cause else {})}}
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
        return {**result, "status": status, "error": _describe(error, stage)}
    result |= {"status": report.status, **_figures(report)}
    result["frozen"] = sorted({axis.label for axis in exported.contract.axes if not axis.dynamic})
    result["workarounds"] = sorted(exported.run.fired)
    return result if report.verified else {**result, **_failure(report)}


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


def _failure(report: Report) -> dict[str, Any]:
    """Which inputs are wrong, and how."""
    if report.status == "not run":
        told = next((v.detail for v in report.variations if v.name == "sample"), "")
        return {"status": "run error", "error": _fault("NotRun", VERIFY, told, "")}
    failed: Variation = next(v for v in report.variations if v.status == report.status)
    if failed.status == "run error":
        return {"error": _fault("RunError", VERIFY, f"{failed.name}: {failed.detail}", "")}
    names = [f"{check.name} ({check.detail})" for check in failed.outputs if not check.passed]
    bisection = report.bisection
    return {
        "error": _fault(
            "Mismatch",
            bisection.first_stage if bisection and bisection.first_stage else VERIFY,
            f"{failed.name}: {'; '.join(names[:2])}",
            bisection.first_submodule if bisection else "",
        )
    }


def _describe(error: BaseException, stage: str) -> dict[str, str]:
    text = error.message if isinstance(error, TransportersError) else str(error)
    root = error
    while root.__cause__ is not None and isinstance(root, TransportersError):
        root = root.__cause__
    kind = type(error).__name__ if root is error or not isinstance(error, TransportersError) else type(root).__name__
    return _fault(kind, stage, text, _where(error))


def _fault(kind: str, stage: str, message: str, where: str) -> dict[str, str]:
    line = " ".join(message.split())
    return {"type": kind, "stage": stage, "message": line[:300], "where": where}


def _where(error: BaseException) -> str:
    """The innermost line of model code that an error came through, or that its message quotes."""
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or step.__context__
    for link in chain:
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            name = frame.filename.rpartition("/")[2]
            if name.startswith("modeling_"):
                return f"{name}:{frame.lineno}"
        quoted = _MODEL_LINE.findall(str(link))
        if quoted:
            return ":".join(quoted[-1])
    return ""
