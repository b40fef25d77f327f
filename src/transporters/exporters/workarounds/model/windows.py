# SPDX-License-Identifier: Apache-2.0
"""Attention in shifted windows, whose padding and shift are chosen by comparing sizes in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...registry import Repro, register_patch


class _SymbolicShift:
    """A shift that may turn out to be 0 when the program runs.

    The models ask whether there is a shift at all; a shift by 0 computes the same as none, so the answer is always yes.
    """

    def __init__(self, size: Any) -> None:
        self._size = size

    def __gt__(self, _: int) -> bool:
        return True

    def __le__(self, _: int) -> bool:
        return False

    def __neg__(self) -> Any:
        return -self._size

    def __index__(self) -> Any:
        return self._size

    def __rsub__(self, other: Any) -> Any:
        return other - self._size

    def __mul__(self, other: int) -> Any:
        return self._size * other

    __rmul__ = __mul__


class _ShiftedLayer(torch.nn.Module):
    """The fault, for the reproducer: images of whole windows need no padding, those of one window no shift."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.swin import modeling_swin as swin

        config = swin.SwinConfig(window_size=4, attn_implementation="eager")
        self.layer = swin.SwinLayer(config, dim=8, input_resolution=(8, 8), num_heads=2, shift_size=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Attend within shifted windows of an image (batch, height, width, 8)."""
        result: torch.Tensor = self.layer(image.flatten(1, 2), (image.shape[1], image.shape[2]))[0]
        return result


_SHIFTED = Repro(_ShiftedLayer, lambda: (torch.rand(2, 8, 12, 8),), dynamic=True, builds=True)


def _missing(size: Any, multiple: int) -> Any:
    """What a size lacks to a whole multiple: as a difference, so that the padded size has no remainder in it."""
    return (size + multiple - 1) // multiple * multiple - size


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*.maybe_pad",
    why="images are padded to a multiple of the patch or window only under an `if`, so that a program takes either "
    "sizes "
    "that need padding or sizes that need none",
    issue="https://github.com/pytorch/pytorch/issues/136216",
    needed="transformers>=5.24",
    repro=_SHIFTED,
)
def _patch_padding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pad always, by an amount that may be 0."""

    def maybe_pad(self: Any, states: torch.Tensor, height: Any, width: Any) -> Any:
        if hasattr(self, "window_size"):
            below, right = _missing(height, self.window_size), _missing(width, self.window_size)
            # Said to be padded in any case, so that the caller always cuts the result to its own size.
            return F.pad(states, (0, 0, 0, right, 0, below)), (0, 0, 0, 1, 0, 1)
        if hasattr(self, "patch_size"):
            below, right = _missing(height, self.patch_size[0]), _missing(width, self.patch_size[1])
            return F.pad(states, (0, right, 0, below))
        return F.pad(states, (0, 0, 0, _missing(width, 2), 0, _missing(height, 2)))

    return maybe_pad


@register_patch(
    "model",
    "transformers.models.*.modeling_*.*.set_shift_and_window_size",
    why="the shift is switched off, and stays off on the module, once an image is no larger than a window; the program "
    "would keep whichever side the sample took",
    issue="unreported",
    needed="transformers>=5.24",
    repro=_SHIFTED,
)
def _patch_window_shift(original: Callable[..., Any]) -> Callable[..., Any]:
    """Shift by an amount that is 0 for small images. Images smaller than a window fail in eager as well."""

    def set_shift_and_window_size(self: Any, input_resolution: tuple[Any, Any]) -> Any:
        if isinstance(self.shift_size, _SymbolicShift) or self.shift_size == 0:
            return None
        small = torch.sym_min(*input_resolution) <= self.window_size  # type: ignore[no-untyped-call]
        shift = torch.sym_ite(small, 0, self.shift_size)  # type: ignore[no-untyped-call]
        self.shift_size = _SymbolicShift(shift)
        return None

    return set_shift_and_window_size


class _ShiftedBack(torch.nn.Module):
    """The fault, for the reproducer: the same layer in a model that shifts back by the number itself."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.donut import modeling_donut_swin as donut_swin

        config = donut_swin.DonutSwinConfig(window_size=4)
        self.layer = donut_swin.DonutSwinLayer(config, dim=8, input_resolution=(8, 8), num_heads=2, shift_size=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Attend within shifted windows of an image (batch, height, width, 8)."""
        result: torch.Tensor = self.layer(image.flatten(1, 2), (image.shape[1], image.shape[2]))[0]
        return result


@register_patch(
    "model",
    "torch.roll",
    why="a shift that is a symbol reaches it inside of the object that stands in for the layer's number",
    issue="by-design",
    needed="torch>=2.13,<2.14",
    repro=Repro(_ShiftedBack, lambda: (torch.rand(2, 8, 12, 8),), dynamic=True, builds=True),
)
def _patch_roll(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take the symbol out."""

    def roll(states: torch.Tensor, shifts: Any, dims: Any = ()) -> Any:
        if not isinstance(shifts, tuple) or not any(isinstance(shift, _SymbolicShift) for shift in shifts):
            return NotImplemented
        return original(states, tuple(s._size if isinstance(s, _SymbolicShift) else s for s in shifts), dims)

    return roll
