# SPDX-License-Identifier: Apache-2.0
"""What a delegate asks of the export: the model to trace, the device, and who takes which part of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import Node
    from transformers import PreTrainedModel


@dataclass
class Preparation:
    """The answer of a `prepare_for_*` function.

    Attributes:
        model: What is traced: the caller's model, or a view of it on other tensors. The caller's own is never moved,
            cast or written to.
        partitioners: ExecuTorch partitioners, in the order in which they choose.
        device: Where the program's weights go after the trace; None leaves them where the model has them.
        edge_config: Arguments of `EdgeCompileConfig`.
        without: Makes the same preparation with one operation of the delegate withheld, when it claimed a node that it
            then refused; None when the node was not its own.
    """

    model: PreTrainedModel
    partitioners: list[Any] = field(default_factory=list)
    device: str | None = None
    edge_config: dict[str, Any] = field(default_factory=dict)
    without: Callable[[Node], Preparation | None] = field(default=lambda _: None)
