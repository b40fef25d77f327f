# SPDX-License-Identifier: Apache-2.0
"""What went wrong with an export, in four words: type, stage, message and line of the model."""

from __future__ import annotations

import re
import traceback

from ..errors import TransportersError
from ..verification.report import Report

#: The step of a case that is not a stage of its exporter.
VERIFY = "Verify"
#: The folders before a package's own files.
_INSTALLED = re.compile(r"/(?:[\w.@+-]+/)*(?:site-packages|src)/")
#: A model file of Transformers in a traceback, or in a message that quotes one.
_MODEL_LINE = re.compile(r'(modeling_\w+\.py)"?(?::|, line )(\d+)')


def describe(error: BaseException, stage: str) -> dict[str, str]:
    """An error that an export raised; its type is that of what a stage of ours wrapped.

    Args:
        error: What was raised.
        stage: Where.
    """
    text = error.message if isinstance(error, TransportersError) else str(error)
    root = error
    while root.__cause__ is not None and isinstance(root, TransportersError):
        root = root.__cause__
    kind = type(error).__name__ if root is error or not isinstance(error, TransportersError) else type(root).__name__
    return fault(kind, stage, text, where(error))


def failure(report: Report) -> dict[str, str]:
    """Which inputs of a report that is not verified are wrong, and how."""
    if report.status == "not run":
        told = next((v.detail for v in report.variations if v.name == "sample"), "")
        return fault("NotRun", VERIFY, told, "")
    failed = next(v for v in report.variations if v.status == report.status)
    if failed.status == "run error":
        return fault("RunError", VERIFY, f"{failed.name}: {failed.detail}", "")
    names = [f"{check.name} ({check.detail or check.verdict})" for check in failed.outputs if not check.passed]
    bisection = report.bisection
    return fault(
        "Mismatch",
        bisection.first_stage if bisection and bisection.first_stage else VERIFY,
        f"{failed.name}: {'; '.join(names[:2])}",
        bisection.first_submodule if bisection else "",
    )


def fault(kind: str, stage: str, message: str, where: str) -> dict[str, str]:
    """The four words; the message becomes one line of at most 300 characters, without where packages are installed."""
    line = " ".join(_INSTALLED.sub("", message).split())
    return {"type": kind, "stage": stage, "message": line[:300], "where": where}


def where(error: BaseException) -> str:
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
