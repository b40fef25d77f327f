# SPDX-License-Identifier: Apache-2.0
"""The two tables that stages 4 and 5 of the way to ONNX read, and the decorators that fill them.

An extender writes into the tables directly; this package's own entries come with the facts of a workaround.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from .registry import Function, Repro, active, list_workarounds, register

if TYPE_CHECKING:
    import onnx_ir

    from .run import ExportRun

#: Operation (an overload, or ``"namespace::name"`` for one that is registered only once a model is loaded) to a
#: function over onnxscript values, which is called in place of torch's own translation.
_ONNX_TRANSLATION_TABLE: dict[Any, Callable[..., Any]] = {}

#: Repairs of the finished graph: ``fix(model) -> bool``, True when it changed something; in the order of application.
_IR_FIXES: list[Callable[[onnx_ir.Model], bool]] = []


def translates(*ops: Any, why: str, issue: str, needed: str, repro: Repro) -> Callable[[Function], Function]:
    """Enter an ``_aten_*`` function into the table, with the facts of a workaround."""

    def decorate(function: Function) -> Function:
        register("onnx", "translation", function, ops=ops, why=why, issue=issue, needed=needed, repro=repro)
        _ONNX_TRANSLATION_TABLE.update(dict.fromkeys(ops, function))
        return function

    return decorate


def repairs(*, why: str, issue: str, needed: str, repro: Repro) -> Callable[[Function], Function]:
    """Enter a ``_fix_ir_*`` function into the table, with the facts of a workaround."""

    def decorate(function: Function) -> Function:
        register("onnx", "ir_fix", function, why=why, issue=issue, needed=needed, repro=repro)
        _IR_FIXES.append(function)
        return function

    return decorate


def translation_table(run: ExportRun) -> dict[Any, Callable[..., Any]]:
    """The translations that apply here and now; each counts its calls in ``run``."""
    chosen = set(_chosen(_ONNX_TRANSLATION_TABLE.values(), "translation", run))
    overloads = {_overload(op): function for op, function in _ONNX_TRANSLATION_TABLE.items() if function in chosen}
    return {op: _counted(function, run) for op, function in overloads.items() if op is not None}


def apply_ir_fixes(model: onnx_ir.Model, run: ExportRun) -> None:
    """Run the repairs that apply here and now, in order."""
    for fix in _chosen(_IR_FIXES, "ir_fix", run):
        if fix(model):
            run.fire(f"onnx:{fix.__name__}")


def _chosen(functions: Iterable[Function], kind: str, run: ExportRun) -> list[Function]:
    """Those that are needed and not switched off; an extender's own carry no facts and always act."""
    known = {workaround.function for workaround in list_workarounds("onnx", kind)}
    acting = {workaround.function for workaround in active("onnx", kind, run.skipped)}
    return [function for function in functions if function in acting or function not in known]


def _overload(op: Any) -> Any:
    """The operation itself, or None for one that no loaded model has registered."""
    if not isinstance(op, str):
        return op
    namespace, _, name = op.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return packet.default if packet is not None else None


def _counted(function: Callable[..., Any], run: ExportRun) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        run.fire(f"onnx:{function.__name__}")
        return function(*args, **kwargs)

    return counted
