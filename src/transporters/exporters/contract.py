# SPDX-License-Identifier: Apache-2.0
"""Builds the shape contract of a traced program: reads the symbols, and finds out what fixed every static axis."""

from __future__ import annotations

import difflib
import traceback
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..errors import ConfigError, FrozenAxisError
from ..inputs.axes import DERIVED, FIXED, MAY_BE_EMPTY, PER_ROW, is_settled, label_axes
from ..trees import pytrees
from . import guards
from .configs import DynamoConfig
from .dynamic_shapes import ShapeRequest, shapes
from .prepare import Prepared
from .shapes import Axis, ShapeContract

#: What ends the reason of an axis whose smallest size is the trace's doing and not the model's.
NARROWED = "the model takes it, a guard of the trace does not"


@dataclass(frozen=True)
class _Found:
    """What decides about an axis: a cause of `Axis`, the sentence that goes with it, and the line of code."""

    cause: str
    reason: str = ""
    source: str = ""


def build(program: ExportedProgram, prepared: Prepared, traced_with: Any, wanted: ShapeRequest) -> ShapeContract:
    """A row per input axis.

    For a static axis that was asked to be dynamic the eager model is run at other sizes: when it refuses them, the
    model fixes the axis, and its error and line say why; when it takes them, a guard of the trace froze the axis.

    Args:
        program: The traced program.
        prepared: The sample and how to run eager.
        traced_with: The inputs of the trace.
        wanted: What was asked for.
    """
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    sample = dict(pytrees.named_leaves(prepared.inputs))
    probes = _Probes(program, prepared, shapes(traced_with))
    rows: list[Axis] = []
    for (name, leaf), node_name in zip(pytrees.named_leaves(traced_with), program.graph_signature.user_inputs):
        if not isinstance(leaf, torch.Tensor):
            continue
        traced = placeholders[str(node_name)].meta["val"]
        for axis, (label, size) in enumerate(zip(prepared.labels.get(name, ()), traced.shape)):
            at = int(sample[name].shape[axis])
            if isinstance(size, torch.SymInt) and not str(size).isdigit():
                rows.append(probes.narrowed(_dynamic(program, name, axis, label, at, size, wanted)))
                continue
            found = _requested(wanted, name, axis, label) or probes.frozen(label, int(leaf.shape[axis]))
            if found.cause == "guard":
                found = _guard(program, node_name, axis, int(leaf.shape[axis]))
            rows.append(Axis(name, axis, label, at, False, cause=found.cause, reason=found.reason, source=found.source))
    return ShapeContract(tuple(_one_size(row, rows) for row in rows))


def _one_size(row: Axis, rows: list[Axis]) -> Axis:
    """A fixed label that one input froze is fixed in every input: the trace need not have compared them."""
    held = next((other for other in rows if other.label == row.label and not other.dynamic), None)
    if row.label not in FIXED or not row.dynamic or held is None:
        return row
    return replace(row, dynamic=False, symbol="", minimum=None, maximum=None, cause=held.cause, reason=held.reason)


def check(contract: ShapeContract, wanted: ShapeRequest, config: DynamoConfig) -> None:
    """Refuse a contract in which an axis froze that the model itself leaves free.

    Raises:
        FrozenAxisError: Naming the axis, the guard and its line, and how to allow it.
        ConfigError: When ``allow_static`` names no axis of the program.
    """
    names = {name for axis in contract.axes for name in (axis.label, axis.input, f"{axis.input}.{axis.index}")}
    for name in config.allow_static:
        if name not in names:
            near = difflib.get_close_matches(name, sorted(names), n=1)
            raise ConfigError(
                f"allow_static names {name!r}, which is no axis of the program",
                advice=f"did you mean {near[0]!r}?" if near else f"its axes are: {', '.join(sorted(names))}",
            )
    for axis in contract.axes:
        explicit = (axis.input, axis.index) in wanted.explicit and wanted.is_dynamic(axis.input, axis.index)
        allowed = {axis.label, axis.input, f"{axis.input}.{axis.index}"} & set(config.allow_static)
        if axis.dynamic or allowed or not (axis.cause == "guard" or (explicit and axis.cause != "requested")):
            continue
        at = f" at {axis.source}" if axis.source else ""
        raise FrozenAxisError(
            f"axis {axis.index} ({axis.label}) of {axis.input} was asked to be dynamic but the program fixes it to "
            f"{axis.size}{at}: {axis.reason}",
            advice=f"patch that line for the export, or allow it with allow_static=[{axis.label!r}] "
            f"(--allow-static {axis.label}) or dynamic_shapes={{{axis.input!r}: {{{axis.index}: 'static'}}}}",
        )


def _requested(wanted: ShapeRequest, name: str, axis: int, label: str) -> _Found | None:
    if (name, axis) in wanted.broadcast and label not in FIXED:
        return _Found("model", "the model spreads its one entry over another axis")
    settled = is_settled(name, label) and (name, axis) not in wanted.explicit
    if not wanted.is_dynamic(name, axis) and not settled and (name, axis) not in wanted.broadcast:
        return _Found("requested", "a static axis was asked for")
    if label in FIXED:
        return _Found("config", f"the model's configuration sets {label}")
    return None


def _dynamic(
    program: ExportedProgram, name: str, axis: int, label: str, at: int, size: torch.SymInt, wanted: ShapeRequest
) -> Axis:
    bounds = program.range_constraints.get(size.node.expr)
    low, high = (str(bounds.lower), str(bounds.upper)) if bounds is not None else ("0", "")
    minimum = int(low) if low.isdigit() else 1
    if minimum <= 2 and (name, axis) not in wanted.explicit:
        # The trace starts its symbols at 2; the program itself is run at 1 (a cache: at 0) when it is verified.
        minimum = 0 if label in MAY_BE_EMPTY else 1
    maximum = int(high) if high.isdigit() else None
    return Axis(name, axis, label, at, True, symbol=str(size), minimum=minimum, maximum=maximum)


class _Probes:
    """Runs eager at other sizes, once per label, to tell what the model fixes from what the trace fixed."""

    def __init__(self, program: ExportedProgram, prepared: Prepared, traced_shapes: dict[str, tuple[int, ...]]) -> None:
        self._prepared = prepared
        self._admitted = (program._guards_code, prepared.labels, traced_shapes)
        self._given = {label for labels in label_axes(prepared.given).values() for label in labels}
        self._frozen: dict[str, _Found] = {}
        self._bounds: dict[str, tuple[int, int | None, _Found]] = {}

    def frozen(self, label: str, size: int) -> _Found:
        """Why a label is static: "model" with eager's error, or "guard" when eager takes another size."""
        if label not in self._frozen:
            # Not 1, which would pass wherever sizes broadcast.
            others = [other for other in (size + 1, 2 * size, max(2, size // 2)) if other != size]
            refusals = takewhile(lambda refusal: refusal is not None, (self._refusal(label, other) for other in others))
            found = list(refusals)
            self._frozen[label] = found[0] if len(found) == len(others) and found[0] else _Found("guard")
        return self._frozen[label]

    def narrowed(self, row: Axis) -> Axis:
        """A dynamic row with the sizes that the program's guards admit, and why it begins where it does."""
        if row.label in PER_ROW | DERIVED or row.label not in self._given:
            return row  # it follows from other axes: nobody can give another size of it alone
        if row.label in FIXED:
            sizes = (row.size + 1, 2 * row.size)
            if any(guards.admits(*self._admitted, row.label, size) for size in sizes):
                return row
            reason = f"the model's configuration sets {row.label}"
            return replace(row, dynamic=False, symbol="", minimum=None, cause="config", reason=reason)
        if row.label not in self._bounds:
            least = max(row.minimum or 0, guards.smallest(*self._admitted, row.label))
            most = guards.largest(*self._admitted, row.label, max(least, row.size))
            self._bounds[row.label] = (least, most, self._below(row.label, least))
        least, most, found = self._bounds[row.label]
        if least == most == row.size and found.cause == "model":
            return row  # the model moves it with other axes only: the guard that ties them is among the findings
        maximum = min((bound for bound in (most, row.maximum) if bound is not None), default=None)
        return replace(row, minimum=least, maximum=maximum, reason=found.reason, source=found.source)

    def _below(self, label: str, least: int) -> _Found:
        if least <= 1:
            return _Found("")
        refusal = self._refusal(label, least - 1)
        if refusal is None:
            return _Found("guard", f"smaller: {NARROWED}")
        return _Found("model", f"smaller: {refusal.reason}", refusal.source)

    def _refusal(self, label: str, size: int) -> _Found | None:
        """Eager's error at another size of a label, or None when it runs."""
        try:
            self._prepared.eager(self._prepared.resized({label: size}))
        except Exception as error:  # noqa: BLE001  the error is the answer: it is what the report quotes
            return _Found("model", _one_line(error), _model_line(error))
        return None


def _guard(program: ExportedProgram, node_name: Any, axis: int, size: int) -> _Found:
    """The expression that froze an axis, and the line that asked for it, from the trace's own records.

    The axis itself may have frozen only because it was found equal to another one that froze first, so among all
    symbols that ended at this size, one that froze in a line of model code explains the most.
    """
    env = next(
        (v.fake_mode.shape_env for n in program.graph.nodes if hasattr(v := n.meta.get("val"), "fake_mode")), None
    )
    frames: list[tuple[bool, bool, str]] = []
    for symbol, value in getattr(env, "replacements", {}).items():
        where = env.replacements_slocs.get(symbol) if env is not None else None
        frame = where and (where.maybe_user_loc or where.framework_loc)
        if str(value) == str(size) and frame and not isinstance(frame, str):
            origin = str(env.var_to_sources.get(symbol, "")) if env is not None else ""
            own = f"idx={axis})" in origin and f"'{node_name}'" in origin
            frames.append(("/torch/" not in frame.filename, own, _place(frame)))
    return _Found("guard", f"a guard of the trace holds it at {size}", max(frames)[2] if frames else "")


def _place(frame: Any) -> str:
    if frame is None or isinstance(frame, str):
        return frame or ""
    return f"{_short(frame.filename)}:{frame.lineno}"


def _model_line(error: BaseException) -> str:
    """The deepest frame of model code in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).resolve().parent.parent)
    outside = [f for f in frames if "/torch/" not in f.filename and not f.filename.startswith(ours)]
    models = [f for f in outside if "/transformers/models/" in f.filename]
    return _place((models or outside or list(frames))[-1]) if frames else ""


def _short(path: str) -> str:
    """Path from the package's folder on, so that a report reads the same on every machine."""
    marker = "site-packages/"
    return path.split(marker)[-1] if marker in path else Path(path).name


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:240]}"
