# SPDX-License-Identifier: Apache-2.0
"""Modules that a forward pass casts to another dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch


class _CastsItsLayer(torch.nn.Module):
    """The fault, for the reproducer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Cast the layer, then apply it."""
        self.layer = self.layer.to(torch.float64)
        result: torch.Tensor = self.layer(x.double())
        return result


@register_patch(
    "dynamo",
    "torch.nn.Module.to",
    why="casting a module swaps its parameters in place, which the fake parameters of a trace do not allow",
    issue="https://github.com/pytorch/pytorch/issues/153056",
    needed="torch>=2.13",
    repro=Repro(_CastsItsLayer(), lambda: (torch.rand(2, 3),)),
)
def _patch_module_cast(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give back the module itself where the cast changes nothing, else a stand-in over cast tensors."""

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        tensors = [*self.parameters(), *self.buffers()]
        if all(_same(tensor, device, dtype) for tensor in tensors):
            return self  # without a copy, as torch itself does when nothing changes
        return _cast(self, device, dtype)

    return to


def _same(tensor: torch.Tensor, device: Any, dtype: torch.dtype | None) -> bool:
    keeps = dtype is None or tensor.dtype == dtype or not tensor.is_floating_point()
    return keeps and (device is None or tensor.device == torch.device(device))


def _cast(module: torch.nn.Module, device: Any, dtype: torch.dtype | None) -> torch.nn.Module:
    """A shallow copy whose tables hold cast tensors: the cast becomes part of the graph, the weights stay."""
    twin = copy.copy(module)

    def cast(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        target = dtype if tensor.is_floating_point() else None
        return tensor.to(device=device or tensor.device, dtype=target or tensor.dtype)

    twin.__dict__["_parameters"] = {name: cast(tensor) for name, tensor in module._parameters.items()}
    twin.__dict__["_buffers"] = {name: cast(tensor) for name, tensor in module._buffers.items()}
    children = {name: _cast(child, device, dtype) if child else None for name, child in module._modules.items()}
    twin.__dict__["_modules"] = children
    return twin
