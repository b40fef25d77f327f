# SPDX-License-Identifier: Apache-2.0
"""XNNPACK: fast float kernels for CPUs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .preparation import Preparation

if TYPE_CHECKING:
    from torch.fx import Node
    from transformers import PreTrainedModel

    from ..configs import ExecutorchConfig


def prepare_for_xnnpack(model: PreTrainedModel, config: ExecutorchConfig) -> Preparation:
    """The model as it is, its program on the CPU; XNNPACK takes all that it can."""
    return _prepared(model, config, frozenset())


def _prepared(model: PreTrainedModel, config: ExecutorchConfig, withheld: frozenset[str]) -> Preparation:
    """With the operations of ``withheld`` (such as ``"view_copy.default"``) left to the portable kernels."""
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    configs = [_for_tied_weights(model) if c.target_name == "linear.default" else c for c in ALL_PARTITIONER_CONFIGS]
    claimed = [config for config in configs if config.target_name not in withheld]

    def without(node: Node) -> Preparation | None:
        operation = _operation(node)
        if operation not in {config.target_name for config in claimed}:
            return None
        return _prepared(model, config, withheld | {operation})

    partitioners = [XnnpackPartitioner(configs=claimed)] if config.partition else []
    return Preparation(model, partitioners, device="cpu", without=without)


def _for_tied_weights(model: PreTrainedModel) -> Any:
    """XNNPACK's rule for linear layers, but that a weight which others use too is handed over anew in each run.

    XNNPACK would keep a packed copy of its own in the file, beside the one for the kernel of the embedding.
    """
    from executorch.backends.xnnpack.partition.config.gemm_configs import LinearConfig

    everywhere = [(name, tensor.data_ptr()) for name, tensor in model.named_parameters(remove_duplicate=False)]
    counts = Counter(pointer for _, pointer in everywhere)
    tied = {name for name, pointer in everywhere if counts[pointer] > 1}

    class Linear(LinearConfig):  # type: ignore[misc]  # of a package without types
        """Decides for each layer anew."""

        def get_deps(self, node: Node, ep: Any) -> Any:
            """The layer's weight and bias, where they belong to it alone."""
            weight = ep.graph_signature.inputs_to_parameters.get(getattr(node.args[1], "name", ""))
            self.force_non_static_weights_for_f32_linear = weight in tied
            return super().get_deps(node, ep)

    return Linear


def _operation(node: Node) -> str:
    """The name under which XNNPACK's partitioner knows an operation."""
    from executorch.exir.backend.canonical_partitioners.config_partitioner import format_target_name

    name: str = format_target_name(getattr(node.target, "__name__", str(node.target)))
    # Its passes rewrite these before they look at them.
    rewritten = {
        "amax.default": "max.dim",
        "squeeze_copy.dim": "view_copy.default",
        "squeeze_copy.dims": "view_copy.default",
    }
    return rewritten.get(name, name)
