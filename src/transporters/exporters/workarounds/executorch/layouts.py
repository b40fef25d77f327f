# SPDX-License-Identifier: Apache-2.0
"""How tensors lie in memory: views that hold for one kernel and not for its decomposition, and the order of axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ...registry import Repro, register_fx_node_fix, register_patch
from ..dynamo.layouts import without_guards

_SDPA = torch.ops.aten.scaled_dot_product_attention.default


def _attend(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: heads of (batch, rows, 8), attended to, put side by side, and seen as one list.

    It shows where torch traces the program anew, which the write makes it do.
    """
    x = x * 1
    x[:1] += 1
    heads = x.view(*x.shape[:2], 2, 4).transpose(1, 2)
    states = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(*x.shape)
    return states.view(-1, 8) * 2


@register_fx_node_fix(
    "executorch",
    ops=(torch.ops.aten.view.default,),
    why="attention lies in memory in another way once it is decomposed, and a view of it that held in the trace fails "
    "when it is traced anew",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_attend, lambda: (torch.rand(2, 5, 8),), dynamic=True),
)
def _fix_view_of_attention(graph_module: GraphModule, node: Node) -> bool:
    """Reshape, which copies where a view cannot be; acts before the decomposition only."""
    graph = graph_module.graph
    reshapes = graph.find_nodes(op="call_function", target=torch.ops.aten.reshape.default, sort=False)
    if not reshapes or not graph.find_nodes(op="call_function", target=_SDPA, sort=False):
        return False
    node.target = torch.ops.aten.reshape.default
    return True


def _chosen_rows(x: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: as many columns as there are rows that are not far below the largest."""
    total = x.sum(1)
    columns = x[total > total.amax() - 1].t().contiguous()
    return torch.cat([columns, -columns]) * 2


@register_patch(
    "executorch",
    "executorch.exir.tensor.dim_order_from_stride",
    "executorch.exir.tensor_layout.dim_order_from_stride",
    "executorch.exir.emit._emitter.dim_order_from_stride",
    "executorch.exir.passes.replace_view_copy_with_view_pass.dim_order_from_stride",
    why="ExecuTorch asks which of two strides is larger, which has no answer where one of them depends on values",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_chosen_rows, lambda: (torch.randn(7, 3),), dynamic=True),
)
def _patch_order_of_axes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Say that the axes lie in their order, for so the kernels write them; `nonzero` alone says something else."""

    def dim_order_from_stride(stride: Any) -> Any:
        return tuple(range(len(stride))) if any(free_unbacked_symbols(step) for step in stride) else NotImplemented

    return dim_order_from_stride


class _Shrinking(torch.nn.Module):
    """The fault, for the reproducer: one convolution makes a pixel of the sample, and another takes that."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.second = torch.nn.Conv2d(4, 4, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A pixel of 4 channels per 4 x 4 pixels of ``x`` (batch, 3, height, width)."""
        smaller: torch.Tensor = self.second(self.first(x))
        return smaller


@register_patch(
    "executorch",
    "torch._C._conv_determine_backend_memory_format",
    "torch._C._select_conv_backend",
    "executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass.ChannelsLastTaggedReshapePass._is_nhwc_tensor",
    why="each step of the lowering asks anew how images lie in memory and which kernel convolves them, with their "
    "sizes: memory is then planned for images alone that shrink to one row as the sample does, and batches below 16",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_Shrinking(), lambda: (torch.rand(2, 3, 2, 2),), dynamic=True),
)
def _patch_layout_of_images(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take the sample's answer and hold no size to it, as in the trace."""
    return without_guards(original)


def _group_rows(x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """The fault, for the reproducer: rows in as many groups as there are; the largest of a group knows no groups."""
    return x.cumsum(0).view(groups.shape[0], -1) + groups.unsqueeze(1)


@register_patch(
    "executorch",
    "executorch.exir.passes.replace_view_copy_with_view_pass._is_view_copy",
    why="a view gets the memory of its base, also where the largest sizes that are planned for make it larger than "
    "that, or where torch knows only one of the two sizes: the program then does not load, or is not made",
    issue="unreported",
    needed="executorch>=1.4.1,<1.5",
    repro=Repro(_group_rows, lambda: (torch.arange(24).view(6, 4), torch.arange(3)), dynamic=True),
)
def _patch_views_of_other_sizes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave such a view the copy that it is."""

    def is_view_copy(node: Node) -> bool:
        if not original(node):
            return False
        base = node.args[0]
        assert isinstance(base, Node)
        (may_change, most), (view_may_change, view_most) = _planned(base), _planned(node)
        return may_change == view_may_change and view_most <= most

    return is_view_copy


def _planned(node: Node) -> tuple[bool, int]:
    """Whether a tensor's size may change, and how many elements are planned for it."""
    from executorch.exir.sym_util import eval_shape_upper_bound

    shape = node.meta["val"].shape
    return any(isinstance(size, torch.SymInt) for size in shape), prod(eval_shape_upper_bound(shape))
