# SPDX-License-Identifier: Apache-2.0
"""Sizes that Python or torch turns into plain numbers, and parts of an axis whose size is not seen to be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.functions import ToFloat

from ...registry import Repro, register_patch


@register_patch(
    "dynamo",
    "builtins.len",
    why="len() of a tensor is made an int by Python itself, so that its first axis freezes at the sample's size",
    issue="https://github.com/pytorch/pytorch/pull/185804",
    needed="torch>=2.13,<2.14",
    repro=Repro(lambda x: x.new_ones(2, 1).tile([len(x), 1])[: len(x)] * x, lambda: (torch.rand(3, 4),), dynamic=True),
)
def _patch_len(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give a tensor's size as it stands in its shape."""
    tensor, symbol = torch.Tensor, torch.SymInt

    def length(value: Any, /) -> Any:
        if isinstance(value, tensor) and value.ndim and isinstance(value.shape[0], symbol):
            return value.shape[0]
        return NotImplemented

    return length


@register_patch(
    "dynamo",
    "torch.as_tensor",
    why="a tensor made from sizes (the shapes of feature maps) freezes them, which torch.tensor does not",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(
        lambda x: x * torch.as_tensor([x.shape[1], x.shape[0]]).prod(), lambda: (torch.rand(3, 4),), dynamic=True
    ),
)
def _patch_as_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a tensor of sizes with torch.tensor."""

    def as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Any:
        if not _holds_symbols(data):
            return NotImplemented
        return torch.tensor(data, dtype=dtype, device=device)

    return as_tensor


def _holds_symbols(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_holds_symbols, data))
    return isinstance(data, torch.SymInt)


@register_patch(
    "dynamo",
    "torch._export.non_strict_utils._NonStrictTorchFunctionHandler._override",
    why="the slice [-1:] of an axis that could be empty has an unknown size, so that it does not broadcast against the "
    "axis it was cut from",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(lambda x: x[::2] / x[::2][-1:], lambda: (torch.rand(7, 3) + 1,), dynamic=True),
)
def _patch_last_slice(original: Callable[..., Any]) -> Callable[..., Any]:
    """Select the last entry, and give it an axis of size 1, where torch itself redirects what a trace indexes.

    A patch of `torch.Tensor.__getitem__` would make tensors of no axis look like sequences.
    """

    def override(self: Any, func: Any, args: Any, kwargs: Any) -> Any:
        if getattr(func, "__name__", "") != "__getitem__" or not isinstance(args[0], torch.Tensor):
            return NotImplemented
        slices = list(args[1]) if isinstance(args[1], tuple) else [args[1]]
        sizes = zip(slices, args[0].shape)
        if not any(_is_last(item) and isinstance(size, torch.SymInt) for item, size in sizes):
            return NotImplemented
        return (_last_slices, (args[0], slices), {}) if all(isinstance(s, slice) for s in slices) else NotImplemented

    return override


def _last_slices(tensor: torch.Tensor, slices: list[slice]) -> torch.Tensor:
    """``tensor[slices]``, where ``[-1:]`` leaves one entry."""
    for axis, item in enumerate(slices):
        if _is_last(item):
            tensor = tensor.select(axis, -1).unsqueeze(axis)
    return tensor[tuple(slice(None) if _is_last(item) else item for item in slices)]


def _is_last(item: Any) -> bool:
    if not isinstance(item, slice) or not isinstance(item.start, int):  # a size is not asked whether it is -1
        return False
    return (item.start, item.stop, item.step) == (-1, None, None)


def _row_centres(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: as deformable attention places its points of reference."""
    height = x.shape[0]
    rows = torch.linspace(0, height - 1, height) + torch.linspace(-1.0, 1.0, height)
    return x * torch.linspace(0.5, height - 0.5, height)[:, None] + rows[:, None]


@register_patch(
    "dynamo",
    "torch.linspace",
    why="the number of steps is no symbol for torch, so that a map's height freezes when its rows are numbered",
    issue="unreported",
    needed="torch>=2.13,<2.14",
    repro=Repro(_row_centres, lambda: (torch.rand(6, 3),), dynamic=True),
)
def _patch_linspace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Count up from the start, where the steps are of size 1; else scale the count, from both ends as torch does."""

    def linspace(
        start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, device: Any = None, **others: Any
    ) -> Any:
        kind = dtype or torch.get_default_dtype()
        symbolic = [value for value in (start, end, steps) if isinstance(value, (torch.SymInt, torch.SymFloat))]
        if others or not symbolic or not kind.is_floating_point:
            return NotImplemented
        count: Any = steps
        places = torch.arange(count, device=device).to(kind)
        if isinstance(steps, torch.SymInt) and _is_zero(end - start - steps + 1):
            return places + start
        intervals: Any = torch.sym_max(steps - 1, 1)  # type: ignore[no-untyped-call]
        step = (end - start) / intervals
        half: Any = torch.sym_max(steps // 2, 1)  # type: ignore[no-untyped-call]  # a single step is the start
        return torch.where(places < half, places * step + start, (places - (steps - 1)) * step + end)

    return linspace


def _is_zero(number: Any) -> bool:
    """Whether a symbolic number is 0 whatever the sizes are; that a size was made a float changes nothing."""
    expression = number.node.expr if isinstance(number, (torch.SymInt, torch.SymFloat)) else sympy.sympify(number)
    return bool(sympy.expand(expression.replace(ToFloat, lambda size: size)) == 0)


def _half_as_many() -> Callable[..., Any]:
    """The fault, for the reproducer."""
    from transformers.models.rt_detr import modeling_rt_detr as rt_detr

    return lambda x: x * rt_detr.torch_int(x.shape[0] // 2)


@register_patch(
    "dynamo",
    "transformers.models.*.modeling_*.torch_int",
    why="a size that passes through int() freezes: torch_int is there for traces, and knows only those of torch.jit",
    issue="https://github.com/pytorch/pytorch/issues/138853",
    needed="transformers>=5.24",
    repro=Repro(_half_as_many, lambda: {"x": torch.rand(6, 3)}, dynamic=True, builds=True),
)
def _patch_torch_int(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave a size as it is, and cut a fraction off symbolically."""

    def torch_int(x: Any) -> Any:
        if not isinstance(x, (torch.SymInt, torch.SymFloat)):
            return NotImplemented
        return torch.sym_int(x)  # type: ignore[no-untyped-call]

    return torch_int
