# SPDX-License-Identifier: Apache-2.0
"""Passes of ExecuTorch that take their time for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...registry import Repro, register_patch

#: Pass of XNNPACK to words of which one is in the name of every operation that the pass looks for. Those that are not
#: named here always run.
_LOOKS_FOR: dict[str, tuple[str, ...]] = {
    "XNNPACKRemoveCloneOpsTransform": ("clone",),
    "DimOrderOpsRevertPass": ("dim_order",),
    "ConvertToUpsampleBilinear2d": ("index", "gather", "upsample"),
    "ConvertToLinearPass": ("mm.default",),
    "PropagateCustomMetaPass": ("quantize",),
    "ConvertToSDPAPass": ("expand_copy",),
    "FuseBatchNormPass": ("batch_norm",),
    "DecomposeBatchNorm": ("batch_norm",),
    "FuseActivationPass": ("relu", "hardtanh"),
    "DecomposeConcatenate": ("cat.default",),
    "RemoveGetItemPass": ("max_pool2d", "max.dim"),
    "InsertPadQDQPass": ("quantize",),
    "Conv1dUnsqueezePass": ("convolution",),
    "PReLUReshapePass": ("prelu",),
    "RemoveRedundantCopyPass": ("_to_copy",),
}


class _Chain(torch.nn.Module):
    """The fault, for the reproducer: a subgraph in which there is nothing for a pass to do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Some arithmetic on (rows, 4)."""
        return torch.sigmoid(x * 2 + 1)


@register_patch(
    "executorch",
    "executorch.backends.xnnpack._passes.XNNPACKPassManager.transform",
    why="seventeen passes run over every subgraph that XNNPACK takes, and most of them trace it anew even when they "
    "find nothing to do: half of the time of a lowering",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(
        _Chain(),
        lambda: (torch.rand(3, 4),),
        dynamic=True,
        most_calls=("executorch.exir.pass_base.ExportPass.call", 12),
    ),
)
def _patch_idle_passes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave out a pass when no operation is in the graph that it looks for."""

    def transform(self: Any) -> Any:
        all_of_them = self.passes
        program = self._exported_program
        try:
            for one in all_of_them:
                names = [_name(node) for node in program.graph.nodes if node.op == "call_function"]
                words = _LOOKS_FOR.get(one.__name__)
                if words is None or any(word in name for word in words for name in names):
                    self.passes, self._exported_program = [one], program
                    program = original(self)
        finally:
            self.passes = all_of_them
        return program

    return transform


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
