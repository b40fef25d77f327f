# SPDX-License-Identifier: Apache-2.0
"""A largest size for every dynamic axis: ExecuTorch plans its memory for it before the program ever runs.

What the caller names in ``max_dims`` holds. For any other axis the model's own limits are asked, then general ones. The
sample's size is no bound, but fits: a program traced on 7 tokens takes as many as the model does. General bounds are
halved while a single tensor would be larger than `LARGEST_TENSOR`, and the run says so.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

from ..errors import ConfigError, ExportError, FrozenAxisError
from ..inputs import axes
from ..trees import pytrees
from .configs import ExecutorchConfig
from .executorch_sizes import selections, tensors, upper
from .prepare import Prepared
from .run import ExportRun
from .shapes import Axis, ShapeContract
from .traced import source_line

#: Attributes of a model's configuration that limit an axis, the first that is there wins.
_LIMITS: dict[str, tuple[str, ...]] = {
    "sequence": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "decoder_sequence": ("max_target_positions", "max_position_embeddings", "n_positions"),
    "frames": ("max_source_positions",),
}
#: For axes that no configuration limits.
_GENERAL: dict[str, int] = {
    "batch": 8,
    "sequence": 2048,
    "decoder_sequence": 1024,
    "frames": 3000,
    "height": 1024,
    "width": 1024,
    "samples": 480_000,  # half a minute
    "images": 16,
    "videos": 4,
    "patches": 16_384,
    "video_patches": 16_384,
}
_OTHERWISE = 2048
_NO_LIMIT = "a general limit"
_PARTS = ("text_config", "decoder", "encoder", "audio_config", "vision_config", "audio_encoder")

#: What bounds of our own are lowered to, one after another: (of the batch or of a length, least). Few uses can do with
#: a length under 512, and who gives rows in batches gives more than two.
_STEPS = ((False, 512), (True, 4), (False, 64), (True, 1), (False, 1))

#: No bound that we choose makes a tensor of more bytes; a caller's own may.
LARGEST_TENSOR = 1 << 27


@dataclass
class _Bound:
    """The largest value of a symbol, and where it is from; ``free`` when we chose it and may lower it to ``sample``."""

    symbol: Any
    most: int
    label: str
    source: str
    free: bool
    sample: int


def bound(
    program: ExportedProgram, prepared: Prepared, contract: ShapeContract, config: ExecutorchConfig, run: ExportRun
) -> ShapeContract:
    """Give every symbol of the program's inputs an upper bound, and write it into the contract.

    Raises:
        ConfigError: When ``max_dims`` names no dynamic axis of the program, or a size below the smallest one.
    """
    sizes = dict(_sizes(program, prepared))
    _check(config.max_dims, contract)
    bounds: dict[Any, _Bound] = {}
    for axis in contract.axes:
        size = sizes.get((axis.input, axis.index))
        if isinstance(size, torch.SymInt) and len(size.node.expr.free_symbols) == 1:
            chosen = _choose(axis, size.node.expr, prepared, config)
            known = bounds.get(chosen.symbol)
            # The smallest holds, for they are one size; what the caller wants goes before what we think.
            if known is None or (chosen.free, chosen.most) < (known.free, known.most):
                bounds[chosen.symbol] = chosen
    _shrink(program, bounds)
    for chosen in bounds.values():
        # From 1 up: with a size of nothing, what divides by it has no bound.
        _apply(program, chosen.symbol, 1, chosen.most)
    for symbol, most in (selections(program, _env(program).var_to_range) if bounds else {}).items():
        _apply(program, symbol, 0, most)
    _note(bounds.values(), run)
    return ShapeContract(tuple(_bounded(axis, sizes, bounds) for axis in contract.axes))


def check_bounded(program: ExportedProgram) -> None:
    """Refuse a program with a size that nothing bounds: ExecuTorch would plan the sample's size for it without a word.

    Raises:
        ExportError: Naming the size, the operation and the model's line.
    """
    for node in program.graph.nodes:
        for value in tensors(node.meta.get("val")):
            for size in value.shape:
                if isinstance(size, torch.SymInt) and upper(size) is None:
                    raise ExportError(
                        f"the size {size} of {node.name} ({node.target}) has no largest value to plan memory for"
                        f"{source_line(node)}",
                        advice="patch the model to compute that size from its inputs' sizes, or export with "
                        "dynamic=False",
                    )


def check_dynamic(program: ExportedProgram, prepared: Prepared, contract: ShapeContract) -> None:
    """Refuse a lowered program that fixes an axis, or holds it below its bound, for ExecuTorch does not say so.

    Raises:
        FrozenAxisError: Naming the axis.
    """
    sizes = dict(_sizes(program, prepared))
    for axis in contract.axes:
        size = sizes.get((axis.input, axis.index))
        if not axis.dynamic or size is None:
            continue
        # A symbol that was fixed is no integer, but stands for one.
        if isinstance(size, int) or not size.node.expr.free_symbols:
            raise FrozenAxisError(
                f"ExecuTorch's lowering fixes axis {axis.index} ({axis.label}) of {axis.input} to {size}",
                advice="report this case; dynamic=False exports for these sizes alone",
            )
        most = upper(size)
        if axis.maximum and most is not None and most < axis.maximum:
            raise FrozenAxisError(
                f"ExecuTorch's lowering takes axis {axis.index} ({axis.label}) of {axis.input} up to {most} only, and "
                f"not to {axis.maximum}",
                advice=f"report this case; max_dims={{{axis.label!r}: {most}}} exports for sizes up to that one",
            )


def _sizes(program: ExportedProgram, prepared: Prepared) -> Iterator[tuple[tuple[str, int], Any]]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for (name, _), node_name in zip(pytrees.named_leaves(prepared.inputs), program.graph_signature.user_inputs):
        value = values[str(node_name)]
        if isinstance(value, torch.Tensor):
            yield from (((name, axis), size) for axis, size in enumerate(value.shape))


def _check(max_dims: Mapping[str, int], contract: ShapeContract) -> None:
    rows = [axis for axis in contract.axes if axis.dynamic]
    names = {name for axis in rows for name in (axis.label, f"{axis.input}.{axis.index}")}
    for name, most in max_dims.items():
        if name not in names:
            near = difflib.get_close_matches(name, sorted(names), n=1)
            raise ConfigError(
                f"max_dims names {name!r}, which is no dynamic axis of the program",
                advice=f"did you mean {near[0]!r}?" if near else f"its dynamic axes are: {', '.join(sorted(names))}",
            )
        least = max(axis.minimum or 1 for axis in rows if name in (axis.label, f"{axis.input}.{axis.index}"))
        if most < least:
            raise ConfigError(f"max_dims bounds {name!r} by {most}, but the program takes sizes from {least} up")


def _choose(axis: Axis, expr: Any, prepared: Prepared, config: ExecutorchConfig) -> _Bound:
    (symbol,) = expr.free_symbols
    named = config.max_dims.get(f"{axis.input}.{axis.index}", config.max_dims.get(axis.label))
    free = False
    if not axis.dynamic or axis.label in axes.FIXED:
        most, source = axis.size, "the model's configuration"
    elif named is not None:
        most, source = named, "max_dims"
    elif axis.maximum is not None and axis.input in (config.dynamic_shapes or {}):
        most, source = axis.maximum, "dynamic_shapes"
    else:
        most, source = _limit(axis.label, getattr(prepared.model, "config", None))
        # A limit of the configuration may count what is left after convolutions; one of our own knows no model.
        least = axis.size if source != _NO_LIMIT else 2 * axis.size
        most, free = max(most, least, axis.minimum or 1), True
    if axis.maximum is not None and axis.maximum < most:
        most, source = axis.maximum, "a limit of the model's code"
    return _Bound(symbol, _inverse(expr, symbol, most), axis.label, source, free, _inverse(expr, symbol, axis.size))


def _limit(label: str, model_config: Any) -> tuple[int, str]:
    """A label's limit by the model's configuration, or the general one, and which it is."""
    parts = [model_config, *(getattr(model_config, part, None) for part in _PARTS)]
    for name in _LIMITS.get(label, ()):
        for part in parts:
            value = getattr(part, name, None)
            if isinstance(value, int) and value > 0:
                return value, f"the model's {name}"
    return _GENERAL.get(label, _OTHERWISE), _NO_LIMIT


def _inverse(expr: Any, symbol: Any, most: int) -> int:
    """The largest value of the symbol with which the size is at most ``most`` (sizes grow with their symbols)."""
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if int(expr.subs(symbol, middle)) <= most else (low, middle)
    return low


def _shrink(program: ExportedProgram, bounds: dict[Any, _Bound]) -> None:
    """Halve bounds that are our own, as long as some tensor is larger than `LARGEST_TENSOR`."""
    # By their text, for symbolic sizes have no hash.
    shapes = {
        f"{tuple(value.shape)} {value.dtype}": (tuple(value.shape), value.element_size())
        for node in program.graph.nodes
        for value in tensors(node.meta.get("val"))
        if any(isinstance(size, torch.SymInt) for size in value.shape)
    }
    while free := [chosen for chosen in bounds.values() if chosen.free and chosen.most > max(1, chosen.sample)]:
        ranges = dict(_env(program).var_to_range)
        ranges |= {chosen.symbol: ValueRanges(1, chosen.most) for chosen in bounds.values()}
        ranges |= {symbol: ValueRanges(0, most) for symbol, most in selections(program, ranges).items()}
        found = [[upper(size, ranges) for size in shape] + [width] for shape, width in shapes.values()]
        if max((prod(s for s in shape if s is not None) for shape in found), default=0) <= LARGEST_TENSOR:
            return
        largest = min(free, key=lambda chosen: (_step(chosen), -chosen.most))
        half = max(largest.most // 2, _STEPS[_step(largest)][1])
        for chosen in free:
            if chosen.label == largest.label and chosen.most > half:
                chosen.most = max(half, chosen.sample)
                chosen.source = f"{chosen.source.removesuffix(_LOWERED)}{_LOWERED}"


def _step(chosen: _Bound) -> int:
    """Which of `_STEPS` lowers a bound that is above one."""
    batch = chosen.label == "batch"
    return next(i for i, (of, least) in enumerate(_STEPS) if of == batch and chosen.most > least)


_LOWERED = ", lowered to keep every tensor under 128 MiB"


def _env(program: ExportedProgram) -> Any:
    """The record of all symbols of a program that has some."""
    values = (value for node in program.graph.nodes for value in tensors(node.meta.get("val")))
    sizes: Iterator[Any] = (size for value in values for size in value.shape)
    return next(size.node.shape_env for size in sizes if isinstance(size, torch.SymInt))


def _apply(program: ExportedProgram, symbol: Any, least: int, most: int) -> None:
    """Write the bound where torch and ExecuTorch look for it."""
    env = _env(program)
    range_ = ValueRanges(min(max(least, env.var_to_range[symbol].lower), most), most)
    env.var_to_range[symbol] = range_
    env._update_version_counter()  # what it has computed from the old ranges is void
    program.range_constraints[symbol] = range_


def _bounded(axis: Axis, sizes: Mapping[tuple[str, int], Any], bounds: Mapping[Any, _Bound]) -> Axis:
    size = sizes.get((axis.input, axis.index))
    if not axis.dynamic or not isinstance(size, torch.SymInt):
        return axis
    return replace(axis, maximum=upper(size)) if size.node.expr.free_symbols <= set(bounds) else axis


def _note(bounds: Iterable[_Bound], run: ExportRun) -> None:
    for chosen in bounds:
        if chosen.free:
            run.note(
                "info",
                chosen.label,
                f"memory is planned for sizes up to {chosen.most} ({chosen.source}); "
                f"another bound: max_dims={{{chosen.label!r}: N}}",
            )
