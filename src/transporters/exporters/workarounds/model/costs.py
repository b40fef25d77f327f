# SPDX-License-Identifier: Apache-2.0
"""Work on symbolic sizes that a trace does again and again, and of which nothing comes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from ...registry import Repro, register_patch

_SYMBOLS = "torch.fx.experimental.sym_node.SymNode"
_FAKES = "torch._subclasses.fake_tensor.FakeTensorMode"


def _sums(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducers: operations on sizes that are sums, none of them like another."""
    for step in range(20):
        x = torch.cat([x, x[:1] * step]).sin()
    return x[: x.shape[0] // 2]


@register_patch(
    "model",
    f"{_FAKES}._get_output_info_for_cache_entry",
    why="what an operation gave is remembered for its repetition, and to be sure, made a second time then: up to a "
    "third of an export, where sizes are long expressions",
    issue="https://github.com/pytorch/pytorch/issues/191500",
    needed="torch>=2.13,<2.14",
    repro=Repro(
        _sums,
        lambda: (torch.rand(5, 3),),
        dynamic=True,
        most_calls=(f"{_FAKES}._get_output_tensor_from_cache_entry", 0),
    ),
)
def _patch_cache_check(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compare a plain tensor with itself.

    Still made twice is what is conjugated, negated or no strided tensor, and what has sizes that data give: making it
    may ask for their values.
    """

    def remember(self: Any, state: Any, key: Any, func: Any, args: Any, kwargs: Any, output: Any) -> Any:
        if not isinstance(output, torch.Tensor) or not _is_plain(output):
            return NotImplemented
        self._output_from_cache_entry = lambda *_: output
        try:
            return original(self, state, key, func, args, kwargs, output)
        finally:
            del self._output_from_cache_entry

    return remember


def _is_plain(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return False
    return not has_free_unbacked_symbols(tensor)


@register_patch(
    "model",
    f"{_SYMBOLS}.expr",
    f"{_SYMBOLS}.maybe_as_int",
    why="every look at a size walks through its whole expression to see whether it is a number",
    issue="https://github.com/pytorch/pytorch/pull/192677",
    needed="torch>=2.13,<2.14",
    repro=Repro(_sums, lambda: (torch.rand(5, 3),), dynamic=True, most_calls=("sympy.core.expr.Expr.is_number", 3_000)),
)
def _patch_is_number(original: Any) -> Any:
    """Ask for the kind of the expression, which is known. Where that does not tell, nothing changes."""
    return property(_expression) if isinstance(original, property) else _as_int


def _expression(symbol: Any) -> Any:
    """`SymNode.expr`: with what is known by now of its sizes put in."""
    held = symbol._expr
    if isinstance(held, int) or held.is_Number:
        return held
    known = symbol.shape_env._replacements_version_counter
    if known == 0:
        return held
    if symbol._expr_cache is None or symbol._expr_ver != known:
        symbol._expr_cache, symbol._expr_ver = symbol.shape_env.replace(held), known
    return symbol._expr_cache


def _as_int(symbol: Any) -> Any:
    """`SymNode.maybe_as_int`: sums and products of numbers are worked out when they are made, so others hold a size."""
    expression = symbol.expr
    if isinstance(expression, sympy.Integer):
        return int(expression)
    return None if isinstance(expression, (sympy.Symbol, sympy.Add, sympy.Mul)) else NotImplemented


@register_patch(
    "model",
    "torch.fx.experimental.proxy_tensor._extract_tensor_metadata",
    why="every operation's result is asked in which of three orders it lies in memory, which costs arithmetic on sizes "
    "and is not read in an export",
    issue="https://github.com/pytorch/pytorch/pull/192677",
    needed="torch>=2.13,<2.14",
    repro=Repro(
        _sums,
        lambda: (torch.rand(5, 3),),
        dynamic=True,
        most_calls=("torch.fx.passes.shape_prop.is_contiguous_for_memory_format_or_false", 0),
    ),
)
def _patch_tensor_metadata(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave the order out of a node's `tensor_meta`."""
    return functools.partial(original, include_contiguity=False)
