# SPDX-License-Identifier: Apache-2.0
"""Passes of ExecuTorch that run every operation of a program anew, to learn what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.experimental.sym_node import SymNode

from ...registry import Repro, register_patch

#: Entry of a node's `meta`: an operation, what it was called with, and what came out.
_KNOWN = "transporters_known"


class _Chain(torch.nn.Module):
    """The fault, for the reproducer: arithmetic that every pass runs again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Eight operations on (rows, 4)."""
        for _ in range(4):
            x = torch.sigmoid(x) * x
        return x


@register_patch(
    "executorch",
    "executorch.exir.pass_base._ExportPassBase.ExportInterpreter.run_node",
    "torch._export.pass_base._ExportPassBaseDeprecatedDoNotUse.ExportInterpreter.run_node",
    why="a dozen passes follow each other on the way to a program, and each of them works out the shapes of all "
    "operations anew: half of the time of a lowering",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(
        _Chain(),
        lambda: (torch.rand(3, 4),),
        dynamic=True,
        most_calls=("torch.fx.interpreter.Interpreter.call_function", 45),
    ),
)
def _patch_known_values(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give the value that came out when the same operation was last called with the same arguments."""

    def run_node(self: Any, node: Node) -> Any:
        inner = self.callback.interpreter
        records: list[tuple[Any, list[Any], Any]] = []

        def call_function(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            operation = _operation(target)
            given = list(_leaves((args, kwargs)))
            known = node.meta.get(_KNOWN)
            if known is not None and known[0] is operation and _are(known[1], given):
                result = known[2]
            else:
                result = type(inner).call_function(inner, target, args, kwargs)
                result = _as_before(result, node.meta.get("val"))
            if not _writes(operation):
                records.append((operation, given, result))
            return result

        inner.call_function = call_function
        traced = original(self, node)
        if records and hasattr(traced, "node"):
            traced.node.meta[_KNOWN] = records[-1]
        return traced

    return run_node


def _operation(target: Any) -> Any:
    """An operation of the edge dialect is one of torch's, under another name."""
    return target if isinstance(target, torch._ops.OpOverload) else getattr(target, "_op", target)


def _leaves(value: Any) -> Iterator[Any]:
    """What the arguments hold, with marks between for how they are nested: as a list or a tuple makes no difference."""
    if isinstance(value, (list, tuple)):
        yield f"[{len(value)}"
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield f"{{{','.join(map(str, value))}"
        yield from _leaves(tuple(value.values()))
    else:
        yield value


def _writes(operation: Any) -> bool:
    schema = getattr(operation, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _are(ones: list[Any], others: list[Any]) -> bool:
    """Whether two lists hold the same objects, or equal plain values."""
    return len(ones) == len(others) and all(map(_is, ones, others))


def _is(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other)


_PLAIN = (bool, int, float, str, torch.device, torch.dtype, torch.memory_format, torch.layout)


def _as_before(new: Any, old: Any) -> Any:
    """The old value where the new one says the same, so that what follows is called with what it was called with."""
    if type(new) in (tuple, list):
        if type(new) is not type(old) or len(new) != len(old):
            return new
        return type(new)(_as_before(*pair) for pair in zip(new, old))
    return old if _says_the_same(new, old) else new


def _says_the_same(new: Any, old: Any) -> bool:
    if type(new) is not type(old):
        return False
    if isinstance(new, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _same_number(new, old)
    if not isinstance(new, FakeTensor) or new.layout != torch.strided or old.layout != torch.strided:
        return False
    if new.fake_mode is not old.fake_mode or new.constant is not None or old.constant is not None:
        return False
    if (new.is_conj(), new.is_neg()) != (old.is_conj(), old.is_neg()):
        return False
    if (new.dtype, new.device, new.requires_grad, new.dim()) != (old.dtype, old.device, old.requires_grad, old.dim()):
        return False
    ours = (*new.shape, *new.stride(), new.storage_offset())
    return all(map(_same_number, ours, (*old.shape, *old.stride(), old.storage_offset())))


def _same_number(new: Any, old: Any) -> bool:
    """Without a guard, as `==` of two symbolic numbers would make one."""
    if isinstance(new, (int, float)):
        return type(new) is type(old) and new == old
    if type(new) is not type(old) or not isinstance(new.node, SymNode) or not isinstance(old.node, SymNode):
        return False
    return new.node.shape_env is old.node.shape_env and bool(new.node.expr == old.node.expr)
