# SPDX-License-Identifier: Apache-2.0
"""Which axes are asked to be dynamic, in the form that `torch.export` takes, and sample sizes that allow it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim

from ..errors import ConfigError
from ..inputs import axes
from ..trees import pytrees
from .configs import DynamoConfig
from .prepare import Prepared
from .run import ExportRun

Dimension = Any  # a Dim, a DimHint, or None: torch names no common type


@dataclass(frozen=True)
class ShapeRequest:
    """What was asked for.

    Attributes:
        by_axis: (leaf name, axis) to a `Dim` or a hint. Counters have axis -1.
        explicit: Those of ``by_axis`` that the caller named himself.
        broadcast: Those that are of size 1 in the sample and stay so, for the model spreads them over another axis, or
            its configuration sets them.
    """

    by_axis: dict[tuple[str, int], Dimension]
    explicit: frozenset[tuple[str, int]] = frozenset()
    broadcast: frozenset[tuple[str, int]] = frozenset()

    def is_dynamic(self, name: str, axis: int) -> bool:
        """Whether the axis was asked to be dynamic."""
        return self.by_axis.get((name, axis), Dim.STATIC) is not Dim.STATIC

    def spec(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """``dynamic_shapes`` for `torch.export.export`."""

        def leaf_spec(name: str, leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return {axis: self.by_axis[name, axis] for axis in range(leaf.ndim)}
            return self.by_axis.get((name, -1))

        spec: dict[str, Any] = pytrees.spec_tree(dict(inputs), leaf_spec)
        return spec


def request(prepared: Prepared, config: DynamoConfig) -> ShapeRequest:
    """Every tensor axis and every counter ``Dim.AUTO`` (or static), with the caller's overrides.

    Static in any case are axes whose size is settled, and those of size 1 that the model broadcasts.

    Raises:
        ConfigError: When ``config.dynamic_shapes`` names an input or an axis that there is not.
    """
    default = Dim.AUTO if config.dynamic else Dim.STATIC
    by_axis: dict[tuple[str, int], Dimension] = {}
    for name, leaf in pytrees.named_leaves(prepared.inputs):
        if isinstance(leaf, torch.Tensor):
            by_axis.update({(name, axis): default for axis in range(leaf.ndim)})
            labels = enumerate(prepared.labels[name])
            by_axis.update({(name, axis): Dim.STATIC for axis, label in labels if axes.is_settled(name, label)})
        elif isinstance(leaf, int) and config.dynamic:
            by_axis[name, -1] = Dim.AUTO
    overrides = _overrides(config.dynamic_shapes or {}, by_axis)
    broadcast = (_broadcast(prepared) if config.dynamic else frozenset()) - set(overrides)
    static = dict.fromkeys(broadcast, Dim.STATIC)
    return ShapeRequest(by_axis | static | overrides, frozenset(overrides), broadcast)


def _broadcast(prepared: Prepared) -> frozenset[tuple[str, int]]:
    """Axes of size 1 that eager refuses at all sizes but one, to which it broadcasts them.

    Those that the configuration sets, such as the heads of a mask, and those with a label of their own that eager
    refuses; a batch of size 1 is an ordinary batch.
    """
    present = {size for shape in shapes(prepared.inputs).values() for size in shape}
    others = [size for size in range(3, len(present) + 6) if size not in present][:3]
    found: set[tuple[str, int]] = set()
    for name, leaf in pytrees.named_leaves(prepared.inputs):
        for axis, label in enumerate(prepared.labels.get(name, ())):
            if leaf.shape[axis] != 1 or label not in axes.FIXED | {f"{name}.{axis}"}:
                continue
            if label in axes.FIXED or sum(prepared.eager_takes(prepared.resized({label: size})) for size in others) < 2:
                found.add((name, axis))
    return frozenset(found)


def trace_sizes(prepared: Prepared, wanted: ShapeRequest) -> dict[str, int]:
    """Label to a new size, for dynamic axes whose sample size is 0 or 1.

    `torch.export` takes sizes 0 and 1 for special cases and freezes them, so the trace runs at other sizes.
    """
    small: dict[str, int] = {}
    for name, leaf in pytrees.named_leaves(prepared.inputs):
        for axis, label in enumerate(prepared.labels.get(name, ())):
            if leaf.shape[axis] < 2 and wanted.is_dynamic(name, axis) and label not in axes.FIXED:
                small[label] = 2 if label == "batch" else 3
    if "batch" in small:
        small = {label: size for label, size in small.items() if label not in axes.PER_ROW}
    return small


def enlarge(prepared: Prepared, wanted: ShapeRequest, run: ExportRun) -> dict[str, Any]:
    """Inputs for the trace: the sample, with dynamic axes of size 0 and 1 made larger where eager takes that."""
    sizes = trace_sizes(prepared, wanted)
    if not sizes:
        return prepared.inputs
    larger = prepared.resized(sizes)
    if not prepared.eager_takes(larger):
        run.note("warning", ", ".join(sizes), "the model does not take larger sizes than the sample's")
        return prepared.inputs
    changed = ", ".join(f"{label} {size}" for label, size in sizes.items())
    run.note("info", "sample", f"traced at {changed}, because sizes 0 and 1 would freeze")
    return larger


def doubled(prepared: Prepared, wanted: ShapeRequest) -> Iterator[dict[str, Any]]:
    """The inputs with every dynamic axis twice as long plus one, which is odd, then twice as long.

    Whether eager takes either is for the caller to find out.
    """
    old: dict[str, int] = {}
    for name, leaf in pytrees.named_leaves(prepared.inputs):
        for axis, label in enumerate(prepared.labels.get(name, ())):
            if wanted.is_dynamic(name, axis) and label not in axes.FIXED | axes.PER_ROW | axes.DERIVED:
                old[label] = leaf.shape[axis]
    for more in (1, 0):
        yield prepared.resized({label: 2 * size + more for label, size in old.items()})


def shapes(inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor leaf."""
    return {n: tuple(leaf.shape) for n, leaf in pytrees.named_leaves(dict(inputs)) if isinstance(leaf, torch.Tensor)}


def _overrides(
    dynamic_shapes: Mapping[str, Any], known: Mapping[tuple[str, int], Dimension]
) -> dict[tuple[str, int], Dimension]:
    dims: dict[str, Dimension] = {}
    found: dict[tuple[str, int], Dimension] = {}
    names = sorted({name for name, _ in known})
    for name, spec in dynamic_shapes.items():
        leaves = [leaf for leaf in names if leaf == name or leaf.startswith(f"{name}.")]
        if not leaves:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            raise ConfigError(
                f"dynamic_shapes names {name!r}, which is no input",
                advice=f"did you mean {near[0]!r}?" if near else f"the inputs are: {', '.join(names)}",
            )
        for leaf in leaves:
            for axis, value in _axis_items(name, spec):
                if (leaf, axis) not in known:
                    raise ConfigError(f"dynamic_shapes names axis {axis} of {leaf}, which has no such axis")
                found[leaf, axis] = _dimension(value, dims, f"{leaf}.{axis}")
    return found


def _axis_items(name: str, spec: Any) -> list[tuple[int, Any]]:
    if spec is None:
        return []
    if isinstance(spec, Mapping):
        try:
            return [(int(axis), value) for axis, value in spec.items()]
        except ValueError as error:
            raise ConfigError(f"dynamic_shapes[{name!r}] has an axis that is not a number: {error}") from error
    if isinstance(spec, (list, tuple)):
        return list(enumerate(spec))
    raise ConfigError(f"dynamic_shapes[{name!r}] takes a dict from axis to dimension, not {spec!r}")


def _dimension(value: Any, dims: dict[str, Dimension], where: str) -> Dimension:
    """A `Dim` or hint from what a caller or a JSON file writes."""
    hints = {"auto": Dim.AUTO, "dynamic": Dim.DYNAMIC, "static": Dim.STATIC, None: Dim.STATIC}
    if isinstance(value, Mapping):
        name = str(value.get("name", where.replace(".", "_")))
        bounds = {key: value[key] for key in ("min", "max") if value.get(key) is not None}
        return dims.setdefault(name, Dim(name, **bounds))
    if value is None or isinstance(value, str):
        if value not in hints:
            raise ConfigError(f"dynamic_shapes: {value!r} at {where} is none of 'auto', 'dynamic', 'static'")
        return hints[value]
    if isinstance(value, int):
        return Dim.STATIC
    return value
