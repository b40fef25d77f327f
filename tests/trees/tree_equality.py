# SPDX-License-Identifier: Apache-2.0
"""Whether two objects are the same in structure and content. Written without the code that it is there to judge."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """What differs, with its place; empty when nothing does."""
    if type(one) is not type(other):
        return [f"{where}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.device == other.device and one.shape == other.shape
        return [] if same and torch.equal(_comparable(one), _comparable(other)) else [f"{where}: {one} and {other}"]
    if isinstance(one, PreTrainedConfig):
        return [] if one.to_dict() == other.to_dict() else [f"{where}: another configuration"]
    if isinstance(one, dict) and list(one) != list(other):
        return [f"{where}: keys {list(one)} and {list(other)}"]
    if isinstance(one, (list, tuple)) and len(one) != len(other):
        return [f"{where}: length {len(one)} and {len(other)}"]
    found = []
    if isinstance(one, dict):
        found += [text for key in one for text in differences(one[key], other[key], f"{where}[{key!r}]")]
    if isinstance(one, (list, tuple)):
        for place, (left, right) in enumerate(zip(one, other)):
            found += differences(left, right, f"{where}[{place}]")
    if type(one).__module__.startswith("transformers.") and hasattr(one, "__dict__"):
        found += differences(vars(one), vars(other), f"{where}.__dict__")
    elif not isinstance(one, (dict, list, tuple)) and one != other:
        found.append(f"{where}: {one!r} and {other!r}")
    return found


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1 else tensor
