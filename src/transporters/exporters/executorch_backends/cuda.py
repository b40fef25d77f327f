# SPDX-License-Identifier: Apache-2.0
"""CUDA: the graph is compiled by AOTInductor for one of NVIDIA's GPUs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import torch

from ...errors import MissingBackendError
from .preparation import Preparation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..configs import ExecutorchConfig

METHOD = "forward"


def prepare_for_cuda(model: PreTrainedModel, config: ExecutorchConfig) -> Preparation:
    """The model where it is, its program's weights on the GPU; the delegate takes the graph whole.

    Raises:
        MissingBackendError: When this machine lacks what the compilation needs; the message says what.
    """
    missing = _missing()
    if missing:
        raise MissingBackendError(
            f"the cuda delegate compiles on the machine that exports, and {' and '.join(missing)} missing here",
            backend="executorch",
            advice="export on a machine with an NVIDIA GPU and the CUDA toolkit, or take backend='xnnpack'",
        )
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    specs = [CudaBackend.generate_method_name_compile_spec(METHOD)]
    partitioners = [CudaPartitioner(specs)] if config.partition else []
    return Preparation(model, partitioners, device="cuda")


def _missing() -> list[str]:
    found = []
    if torch.version.cuda is None:
        found.append(f"a torch built for CUDA is (torch {torch.__version__} is installed)")
    elif not torch.cuda.is_available():
        found.append("an NVIDIA GPU is")
    if shutil.which("nvcc") is None:
        found.append("the compiler nvcc is")
    return found
