# SPDX-License-Identifier: Apache-2.0
"""Proves an artifact: runs it in its own runtime and eager on the same inputs, and compares every output."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

from ..errors import RunError
from ..exporters.prepare import copy_inputs
from ..exporters.run import Finding
from ..exporters.tracing import preserved_state, seeded
from ..inputs import axes
from ..trees import pytrees
from . import bisect, compare, generating
from .report import Report, Variation
from .variations import Case, cases, reverse_batch, unpadded_row

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel


class Eager:
    """The reference: the eager model, left as it was by every run.

    Args:
        model: The model in evaluation mode.
        constants: Arguments that the program has baked in.
    """

    def __init__(self, model: torch.nn.Module, constants: Mapping[str, Any]) -> None:
        self.model = model
        self.constants = constants
        parameter = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
        self.dtype, self.device = parameter.dtype, parameter.device

    def __call__(self, inputs: Mapping[str, Any], *, onednn: bool = True) -> Any:
        """Outputs for private copies of ``inputs``; with ``onednn=False`` by torch's own kernels."""
        private = copy_inputs(self.dtype, self.device, inputs)
        with torch.no_grad(), preserved_state(self.model), seeded(), ExitStack() as stack:
            if not onednn:
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")  # torch warns of GPUs that are not there
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            return self.model(**private, **self.constants)

    def noise(self, inputs: Mapping[str, Any], outputs: Any, batch_axes: Mapping[str, int]) -> dict[str, float]:
        """Eager's own relative noise per output: by other kernels, and with the rows in reverse order."""
        found = compare.relative_noise(outputs, self(inputs, onednn=False))
        turned = self(reverse_batch(inputs, axes.label_axes(inputs)))
        back = pytrees.map_named(lambda name, leaf: _flip(leaf, batch_axes.get(name or "output")), turned)
        for name, value in compare.relative_noise(outputs, back).items():
            # A row that lands elsewhere (a pooled image, a routed token) is no rounding noise.
            if value < compare.NOISE_CAP:
                found[name] = max(found.get(name, 0.0), value)
        return found


def verify(
    exported: ExportedModel, *, model: Any = None, observer: Callable[[Variation], None] | None = None
) -> Report:
    """Run all variations and compare, those of its parts as well; bisect the first mismatch.

    Args:
        exported: The artifact, freshly exported or loaded.
        model: The eager model; by default the one in ``exported``.
        observer: Called with each variation when it is done.

    Raises:
        UsageError: When there is no eager model, or it is of another class.
    """
    eager = Eager(exported.eager_model(model), exported.constants)
    report = Report(
        model=exported.model_class.partition(":")[2],
        export_format=exported.export_format,
        run=exported.run.to_dict(),
        shape_contract=exported.contract.to_dict(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )

    def add(variation: Variation) -> None:
        report.variations.append(variation)
        if observer is not None:
            observer(variation)

    noise: dict[str, float] | None = None  # measured on the sample, and anew only where an output would fail by it
    taken: list[Case] = []
    for case in cases(exported.sample_inputs):
        variation, expected, measured = _run_case(exported, eager, case, noise)
        noise = measured if noise is None and expected is not None else noise
        add(variation)
        if variation.status == "verified":
            taken.append(case)
        if variation.status == "mismatch" and report.bisection is None:
            report.bisection = bisect.bisect(exported, eager, case, expected, measured)
        if case.row_lengths and variation.status == "verified":
            add(_rows_alone(exported, eager, case, expected, measured))
    smallest = min(taken, key=_elements, default=None)
    if smallest is not None and smallest is not taken[0] and getattr(exported.runner, "remembers_sizes", False):
        add(_after(exported, eager, smallest, taken[0], noise))
    for name, part in exported.parts.items():
        of_part = verify(part, model=eager.model.of_model)
        report.bisection = report.bisection or of_part.bisection
        for variation in of_part.variations:
            add(replace(variation, name=f"{name}: {variation.name}"))
    if exported.cache_contract is not None:
        add(_generation(exported, eager, noise or {}, report))
    return report


def _generation(exported: ExportedModel, eager: Eager, noise: dict[str, float], report: Report) -> Variation:
    """A loop with the cache, and a remark on it among the findings."""
    prompts = generating.prompts(exported, eager.model.of_model)
    shapes = {name: tuple(tensor.shape) for name, tensor in prompts.items()}
    step: dict[str, tuple[int, ...]] = {"inputs_embeds" if generating.reads_pictures(exported) else "input_ids": (2, 1)}
    if generating.is_of_one_text(exported):
        step = {"tokens": (1, 1) if exported.parts else shapes["input_ids"]}
    takes_them = exported.parts.values() or [exported]
    outside = next(filter(None, (_outside_contract(part, shapes) for part in takes_them)), "")
    outside = outside or _outside_contract(exported, step)
    if outside := outside or generating.no_room(exported):
        return Variation(generating.NAME, "not applicable", shapes, detail=outside)
    with seeded():
        found = generating.generation(exported, eager.model.of_model, prompts, noise)
    if found.status == "verified":
        remark = asdict(Finding("info", generating.NAME, found.detail))
        report.run = {**report.run, "findings": [*report.run.get("findings", []), remark]}
    return found


def _run_case(
    exported: ExportedModel, eager: Eager, case: Case, known_noise: dict[str, float] | None
) -> tuple[Variation, Any, dict[str, float]]:
    shapes = {n: tuple(leaf.shape) for n, leaf in pytrees.named_leaves(case.inputs) if isinstance(leaf, torch.Tensor)}
    try:
        expected = eager(case.inputs)
        batch = _axis_of(exported, "batch")
        noise = known_noise if known_noise is not None else eager.noise(case.inputs, expected, batch)
    except Exception as error:  # noqa: BLE001  whatever eager refuses is no demand on the program
        text = f"eager refuses these inputs: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Variation(case.name, "not applicable", shapes, detail=text), None, {}
    outside = _outside_contract(exported, shapes)
    if outside:
        return Variation(case.name, "not applicable", shapes, detail=outside), None, {}
    start = time.perf_counter()
    try:
        with seeded():
            actual = exported(**copy_inputs(eager.dtype, eager.device, case.inputs))
    except RunError as error:
        return Variation(case.name, "run error", shapes, detail=str(error)), expected, noise
    seconds = time.perf_counter() - start
    checks = compare.compare(actual, expected, noise)
    if known_noise is not None and any(check.verdict == "mismatch" for check in checks):
        here = eager.noise(case.inputs, expected, batch)
        noise = {name: max(here.get(name, 0.0), noise.get(name, 0.0)) for name in {*here, *noise}}
        checks = compare.compare(actual, expected, noise)
    status = "verified" if checks and all(check.passed for check in checks) else "mismatch"
    return Variation(case.name, status, shapes, checks, seconds=seconds), expected, noise


def _after(exported: ExportedModel, eager: Eager, first: Case, then: Case, noise: dict[str, float] | None) -> Variation:
    """Compare a case that comes second, in a program that is loaded anew and has run a smaller one only.

    A delegate that lays out its memory in the first run may write over what a larger run needs.
    """
    exported.reload()
    name = f"{then.name}, after {first.name}"
    try:
        with seeded():
            exported(**copy_inputs(eager.dtype, eager.device, first.inputs))
    except RunError as error:
        return Variation(name, "run error", {}, detail=str(error))
    variation, _, _ = _run_case(exported, eager, then, noise)
    return replace(variation, name=name)


def _elements(case: Case) -> int:
    leaves = (leaf for _, leaf in pytrees.named_leaves(case.inputs))
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _rows_alone(exported: ExportedModel, eager: Eager, case: Case, expected: Any, noise: dict[str, float]) -> Variation:
    """Compare every padded row with eager's run of that row alone, unpadded, where eager itself passes that test.

    Models with absolute positions and no ``position_ids`` are not invariant to left padding; such outputs are named in
    the variation's detail and not compared.
    """
    with seeded():
        actual = exported(**copy_inputs(eager.dtype, eager.device, case.inputs))
    batch, sequence = _axis_of(exported, "batch"), _axis_of(exported, "sequence")
    checks, dependent, refused = [], set(), []
    for row, length in enumerate(case.row_lengths):
        try:
            alone = eager(unpadded_row(case, row))
        except Exception as error:  # noqa: BLE001  whatever eager refuses is no demand on the program
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            refused.append(f"eager refuses row {row} alone: {text}")
            continue
        cut = _RowCut(row, length, case.side, batch, sequence)
        of_eager = {c.name: c for c in compare.compare(cut(expected), cut.comparable(alone), noise)}
        for check in compare.compare(cut(actual), cut.comparable(alone), noise):
            if of_eager[check.name].passed:
                checks.append(replace(check, name=f"{check.name} [row {row}]"))
            else:
                dependent.add(check.name)
    depends = [f"eager itself depends on the padding in: {', '.join(sorted(dependent))}"] if dependent else []
    detail = "; ".join([*refused, *depends])
    status = "not applicable" if not checks else "verified" if all(c.passed for c in checks) else "mismatch"
    return Variation(f"{case.side}-padded rows alone", status, {}, tuple(checks), detail)


class _RowCut:
    """Cuts one row's real positions out of the outputs that have a batch axis."""

    def __init__(self, row: int, length: int, side: str, batch: Mapping[str, int], sequence: Mapping[str, int]) -> None:
        self.row, self.length, self.side = row, length, side
        self.batch, self.sequence = batch, sequence

    def __call__(self, outputs: Any) -> dict[str, Any]:
        cut = {}
        for name, leaf in self.comparable(outputs).items():
            leaf = leaf.narrow(self.batch[name], self.row, 1)
            axis = self.sequence.get(name)
            if axis is not None:
                start = leaf.shape[axis] - self.length if self.side == "left" else 0
                leaf = leaf.narrow(axis, start, self.length)
            cut[name] = leaf
        return cut

    def comparable(self, outputs: Any) -> dict[str, Any]:
        """Outputs that have one row per row of the batch, by name."""
        named = ((name or "output", leaf) for name, leaf in pytrees.named_leaves(outputs))
        return {name: leaf for name, leaf in named if isinstance(leaf, torch.Tensor) and name in self.batch}


def _axis_of(exported: ExportedModel, label: str) -> dict[str, int]:
    """Output name to the axis with a label, for outputs that have it exactly once."""
    found = {}
    for entry in exported.outputs:
        shape = entry["shape"] or []
        if shape.count(label) == 1:
            found[entry["name"]] = shape.index(label)
    return found


def _flip(leaf: Any, axis: int | None) -> Any:
    return leaf.flip(axis) if axis is not None and isinstance(leaf, torch.Tensor) else leaf


def _outside_contract(exported: ExportedModel, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Why the program does not promise to take these shapes; empty when it does."""
    for axis in exported.contract.axes:
        size = shapes.get(axis.input, ())[axis.index : axis.index + 1]
        if not size:
            continue
        where = f"axis {axis.index} ({axis.label}) of {axis.input}"
        if not axis.dynamic and size[0] != axis.size:
            return f"the program fixes {where} to {axis.size} ({axis.cause}: {axis.reason})"
        if axis.dynamic and size[0] < (axis.minimum or 0):
            return f"the program takes {where} from {axis.minimum} up"
        if axis.dynamic and axis.maximum is not None and size[0] > axis.maximum:
            return f"the program takes {where} up to {axis.maximum}"
    return ""
