# SPDX-License-Identifier: Apache-2.0
"""Runs a workaround's reproducer through a real exporter, and says what is wrong with the program, if anything is."""

from __future__ import annotations

import copy
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from transporters.artifacts.exported import ExportedModel
from transporters.errors import TransportersError
from transporters.exporters import auto
from transporters.exporters.registry import Repro
from transporters.inputs import axes, resizing
from transporters.trees import pytrees

#: A first axis of every size that `_other_sizes` makes.
LARGEST = 64


def export(
    repro: Repro, module: torch.nn.Module, inputs: dict[str, Any], export_format: str, *, without: str = ""
) -> ExportedModel:
    """The reproducer's program, made with one workaround switched off when ``without`` names it."""
    config: dict[str, Any] = {"skip_workarounds": [without] if without else []}
    if not repro.dynamic:
        config["dynamic"] = False
    elif export_format == "executorch":
        config["max_dims"] = {"batch": LARGEST}  # the general limit is for models: 8 rows
    return auto.AutoExporter.from_format(export_format).export(module, inputs, config)


def fault(repro: Repro, export_format: str, folder: Path, *, without: str = "") -> tuple[str, dict[str, int]]:
    """What is wrong with the program (nothing: ""), and the workarounds that fired.

    The program must be made; be equal to eager on the sample, on other values, and, when the reproducer is dynamic, at
    every other size that eager takes; leave the module's tensors alone; and do the same after saving and loading.
    With a workaround switched off one fault is enough, and the search ends with it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = repro.module()
        inputs, others = repro.arguments(module), repro.arguments(module)
    tensors = {name: tensor.clone() for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    try:
        with counting(repro.most_calls) as counted:
            exported = export(repro, module, inputs, export_format, without=without)
    except TransportersError as error:
        return f"no program: {error}", {}
    cases = {"sample": inputs, "other values": others, **(dict(_other_sizes(inputs)) if repro.dynamic else {})}
    wanted = {name: expected for name, case in cases.items() if (expected := _eager(module, case)) is not None}
    if "sample" not in wanted or (repro.dynamic and len(wanted) < 5):
        return f"eager takes only {', '.join(wanted) or 'nothing'}", exported.run.fired

    def found() -> Iterator[str]:
        yield from _differences(exported, cases, wanted)
        if repro.most_calls and len(counted) > repro.most_calls[1]:
            yield f"{len(counted)} calls of {repro.most_calls[0]}"
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if not torch.equal(tensor, tensors[name]):
                yield f"the program changed the module's {name}"
        try:
            exported.save(folder)
            again = ExportedModel.load(folder)
        except Exception as error:  # noqa: BLE001  torch.export.save raises all kinds
            yield f"not saved or loaded: {type(error).__name__}: {error}"
        else:
            yield from _differences(again, cases, wanted)

    return next(found(), "") if without else "; ".join(found()), exported.run.fired


@contextmanager
def counting(limit: tuple[str, int] | None) -> Iterator[list[None]]:
    """One element per call of what a `most_calls` names, or per look at it, where it is a property."""
    calls: list[None] = []
    if limit is None:
        yield calls
        return
    owner, _, name = limit[0].rpartition(".")
    original = getattr(pkgutil.resolve_name(owner), name)

    called = original.fget if isinstance(original, property) else original

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return called(*args, **kwargs)

    with mock.patch(limit[0], property(counted) if isinstance(original, property) else counted):
        yield calls


def _other_sizes(inputs: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """One axis at a time: 1, 2, 3, half, one and three more, twice, five times and two."""
    labels = axes.label_axes(inputs)
    for label, size in axes.sizes(inputs, labels).items():
        for other in sorted({1, 2, 3, size // 2, size + 1, size + 3, 2 * size, 5 * size + 2} - {0, size}):
            yield f"{label} {other}", resizing.resize(inputs, labels, {label: other})


def _eager(module: torch.nn.Module, inputs: dict[str, Any]) -> Any:
    """A fresh copy's outputs, or None where eager refuses the inputs."""
    try:
        with torch.no_grad():
            return copy.deepcopy(module)(**_private(inputs))
    except Exception:  # noqa: BLE001  what eager refuses is no demand on the program
        return None


def _differences(exported: ExportedModel, cases: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    for name, expected in wanted.items():
        try:
            actual = exported(**_private(cases[name]))
        except TransportersError as error:
            yield f"{name}: {error}"
            continue
        ours, theirs = pytrees.named_leaves(actual), pytrees.named_leaves(expected)
        if [n for n, _ in ours] != [n for n, _ in theirs]:
            yield f"{name}: other outputs"
        for (leaf, one), (_, other) in zip(ours, theirs):
            try:
                torch.testing.assert_close(one, other)
            except AssertionError as error:
                yield f"{name}: {leaf or 'output'}: {' '.join(str(error).split())}"


def _private(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: pytrees.map_named(lambda _, leaf: leaf.clone(), value) for name, value in inputs.items()}
