# SPDX-License-Identifier: Apache-2.0
"""No delegate: every operation runs on ExecuTorch's portable kernels, on any CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .preparation import Preparation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..configs import ExecutorchConfig


def prepare_for_portable(model: PreTrainedModel, config: ExecutorchConfig) -> Preparation:
    """The model as it is, its program on the CPU."""
    return Preparation(model, device="cpu")
