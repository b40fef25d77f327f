# SPDX-License-Identifier: Apache-2.0
"""The largest value that a symbolic size can have, given the ranges of the symbols in it.

Torch works ranges out operation by operation and gives up at a division by what may be 0. A divisor of a size is never
0 when a program runs, and a size with few symbols can be looked at for all of their values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.value_ranges import bound_sympy

_aten = torch.ops.aten

#: From here on a limit is torch's word for none: a size that depends on values has the largest integer for one.
_UNBOUNDED = 1 << 48
#: How many combinations of symbols' values are looked at.
_MOST_CASES = 1 << 21

_DIVISIONS = (FloorDiv, CleanDiv)


def upper(size: int | torch.SymInt, ranges: Mapping[Any, Any] | None = None) -> int | None:
    """The largest value of a size, or None where nothing bounds it."""
    if isinstance(size, int):
        return size
    expr = size.node.expr
    known = ranges or size.node.shape_env.var_to_range
    return _largest(expr, tuple((symbol, known[symbol]) for symbol in sorted(expr.free_symbols, key=str)))


def elements(value: torch.Tensor, ranges: Mapping[Any, Any] | None = None) -> int | None:
    """How many elements a tensor has at most, or None where nothing bounds it."""
    sizes = [upper(size, ranges) for size in value.shape]
    return None if None in sizes else prod(size for size in sizes if size is not None)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a node's value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def selections(program: ExportedProgram, ranges: Mapping[Any, Any]) -> dict[Any, int]:
    """Largest values of the sizes that depend on values, where an operation takes no more than it is given.

    Args:
        program: The traced program.
        ranges: Ranges of all symbols.

    Returns:
        The largest value of each such size's symbol.
    """
    found: dict[Any, int] = {}
    known = dict(ranges)
    for node in program.graph.nodes:
        limit = _SELECTING.get(node.target) if node.op == "call_function" else None
        if limit is None or not isinstance(node.meta["val"], torch.Tensor):
            continue
        for size in node.meta["val"].shape:
            if not isinstance(size, torch.SymInt) or size.node.expr not in free_unbacked_symbols(size):
                continue
            symbol = size.node.expr
            most = limit(node, known) if upper(size, known) is None else None
            if most is not None:
                found[symbol] = most
                known[symbol] = type(known[symbol])(min(known[symbol].lower, most), most)
    return found


def _as_many_as_given(node: Node, ranges: Mapping[Any, Any]) -> int | None:
    given: Any = node.args[0]
    return elements(given.meta["val"], ranges)


def _as_many_as_masks(node: Node, ranges: Mapping[Any, Any]) -> int | None:
    """Masks beside each other select equally many."""
    indices: Any = node.args[1]
    values = [index.meta["val"] for index in indices if index is not None]
    limits = [elements(value, ranges) for value in values if value.dtype in (torch.bool, torch.uint8)]
    return min((limit for limit in limits if limit is not None), default=None)


def _as_many_as_both(node: Node, ranges: Mapping[Any, Any]) -> int | None:
    """Of a tensor and a mask that are broadcast against each other."""
    shapes = [list(argument.meta["val"].shape)[::-1] for argument in node.all_input_nodes]
    limits = [[upper(size, ranges) for size in axes] for axes in zip_longest(*shapes, fillvalue=1)]
    if any(None in sizes for sizes in limits):
        return None
    return prod(max(size for size in sizes if size is not None) for sizes in limits)


def _as_long_as_given(node: Node, ranges: Mapping[Any, Any]) -> int | None:
    given: Any = node.args[0]
    axis: Any = node.args[1] if len(node.args) > 1 else 0
    return upper(given.meta["val"].shape[axis], ranges)


_SELECTING: dict[Any, Callable[[Node, Mapping[Any, Any]], int | None]] = {
    _aten.nonzero.default: _as_many_as_given,
    _aten.masked_select.default: _as_many_as_both,
    _aten.index.Tensor: _as_many_as_masks,
    _aten.slice.Tensor: _as_long_as_given,
}


@functools.lru_cache(maxsize=4096)
def _largest(expr: Any, ranges: tuple[tuple[Any, Any], ...]) -> int | None:
    known = dict(ranges)
    most = _finite(bound_sympy(expr, known).upper)
    if most is not None or any(_finite(values.upper) is None for values in known.values()):
        return most
    grown = {symbol: values.upper for symbol, values in ranges if _grows(expr, symbol, known)}
    exact = _largest_of_all(expr.xreplace(grown), {s: v for s, v in known.items() if s not in grown})
    return _finite(bound_sympy(_with_safe_divisors(expr), known).upper) if exact is None else exact


def _finite(most: Any) -> int | None:
    return int(most) if most.is_Integer and most < _UNBOUNDED else None


def _grows(expr: Any, symbol: Any, ranges: dict[Any, Any]) -> bool:
    """Whether the value never becomes smaller when the symbol becomes larger."""
    if expr == symbol or symbol not in expr.free_symbols:
        return True
    if isinstance(expr, _DIVISIONS):
        base, divisor = expr.args
        if symbol in divisor.free_symbols or bound_sympy(divisor, ranges).lower < 0:
            return False
        return _grows(base, symbol, ranges)
    if not isinstance(expr, (sympy.Mul, sympy.Add, Min, Max)):
        return False
    if isinstance(expr, sympy.Mul) and any(bound_sympy(part, ranges).lower < 0 for part in expr.args):
        return False
    return all(_grows(part, symbol, ranges) for part in expr.args)


def _with_safe_divisors(expr: Any) -> Any:
    """With divisors of 1 at least: sizes are whole, and none divides by 0."""
    return expr.replace(
        lambda part: isinstance(part, _DIVISIONS),
        lambda part: FloorDiv(part.args[0], Max(1, part.args[1])),  # type: ignore[no-untyped-call]
    )


def _largest_of_all(expr: Any, ranges: Mapping[Any, Any]) -> int | None:
    """The largest value over all values of the symbols, or None where those are too many or an operation is unknown."""
    if prod(int(values.upper - values.lower) + 1 for values in ranges.values()) > _MOST_CASES:
        return None
    axes = np.ix_(*(np.arange(int(values.lower), int(values.upper) + 1) for values in ranges.values()))
    cases: dict[Any, Any] = dict(zip(ranges, axes))
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.asarray(_evaluate(expr, cases))
    except KeyError:
        return None
    real = values[np.isfinite(values)]
    return int(real.max()) if real.size else None


def _evaluate(expr: Any, cases: Mapping[Any, Any]) -> Any:
    """As floating-point numbers, in which what divides by 0 is not finite; whole numbers up to 2**53 are exact."""
    if expr.is_Integer:
        return float(expr)
    if expr.is_Symbol:
        return cases[expr].astype(np.float64)
    return functools.reduce(_NUMERIC[expr.func], (_evaluate(part, cases) for part in expr.args))


def _modulo(value: Any, divisor: Any) -> Any:
    return value - np.floor(np.divide(value, divisor)) * divisor


def _quotient(value: Any, divisor: Any) -> Any:
    return np.floor(np.divide(value, divisor))


_NUMERIC: dict[Any, Callable[[Any, Any], Any]] = {
    sympy.Add: np.add,
    sympy.Mul: np.multiply,
    sympy.Pow: np.power,
    Min: np.minimum,
    Max: np.maximum,
    FloorDiv: _quotient,
    CleanDiv: _quotient,
    Mod: _modulo,
    PythonMod: _modulo,
}
