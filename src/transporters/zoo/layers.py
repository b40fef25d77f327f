# SPDX-License-Identifier: Apache-2.0
"""Which layers of a deep model a tiny one keeps: the first of every kind, and never fewer than two."""

from __future__ import annotations

import re
from typing import Any

from . import per_layer

LEAST = 2

_DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "depth",
    "encoder_layers",
    "num_encoder_layers",
    "num_blocks",
)
#: Numbers of layers of any part: ``decoder_layers``, ``num_fusion_layers``, ….
_DEPTH_NAME = re.compile(
    r"(?!max_window|num_nextn|first_|num_kv_shared|num_dense|num_feat_extract)"
    r".*(_layers?|n_layers?|depth|num_blocks|layers_num|self_attends_per_block|num_res_blocks|n_block)"
)
#: Lists of the layers whose outputs are wanted.
OUTPUTS = ("out_indices", "backbone_out_indices", "_out_indices")
#: Lists with a number of layers per stage.
STAGES = ("depths", "blocks_per_stage", "stage_num_blocks", "block_configs")
_INDEX_NAME = re.compile(r".*(layers|layer_ids|layer_idx|layer_id|indexes|indices|layers_idx|_ids|_blocks)")
_NOT_INDEX = re.compile(r".*(out_indices|token_ids|feature_layers?|num_.*)")
_PERIOD = re.compile(
    r".*(_interval|_period|_frequency|sparse_step|_every_n_layers|_layer_step|layers_pattern|window_pattern|_every.*|"
    r"layer_freq)"
)
_OFFSET = re.compile(r".*layer_offset")


def depth_name(node: dict[str, Any]) -> str | None:
    """The attribute that says how many layers there are."""
    if any(isinstance(node.get(name), (list, tuple)) for name in STAGES):
        return None  # a model of stages: each has a depth of its own
    return next((name for name in _DEPTHS if _is_count(node.get(name))), None)


def kept(node: dict[str, Any]) -> list[int]:
    """The layers that are kept: the first with each new combination of what the per-layer lists say of it."""
    name = depth_name(node)
    if name is None:
        return []
    depth = node[name]
    seen: set[tuple[Any, ...]] = set()
    chosen = []
    for layer in range(depth):
        kind = tuple(_kind(value, layer) for key, value in sorted(node.items()) if is_per_layer(key, value, depth))
        kind += tuple(layer in value for key, value in sorted(node.items()) if is_index_list(key, value, depth))
        kind += (tuple(sorted(per_layer.changes(node).get(layer, ()))),)
        if kind not in seen:
            seen.add(kind)
            chosen.append(layer)
    periods = [value for key, value in node.items() if _PERIOD.fullmatch(key) and _is_count(value) and value > 1]
    outputs = max(len(node.get(name) or ()) for name in OUTPUTS)
    least = max(LEAST, 4 if periods and len(chosen) == 1 else 0, outputs)
    for layer in range(depth):
        if len(chosen) < least and layer not in chosen:
            chosen.append(layer)
    return sorted(chosen)


def is_per_layer(name: str, value: Any, depth: int) -> bool:
    """Whether a value is a list with an entry for every layer."""
    if (
        not isinstance(value, (list, tuple))
        or len(value) != depth
        or depth < LEAST
        or is_index_list(name, value, depth)
    ):
        return False
    if re.search(r"indices|stage|depths|kernel|stride|conv_|channels|ratio", name):
        return False
    return isinstance(value[0], (str, bool)) or depth > 4 or "layer" in name


def is_index_list(name: str, value: Any, depth: int) -> bool:
    """Whether a value names some of the layers by their place."""
    if (
        not isinstance(value, (list, tuple))
        or not value
        or _NOT_INDEX.fullmatch(name)
        or not _INDEX_NAME.fullmatch(name)
    ):
        return False
    numbers = all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value)
    return (
        numbers
        and len(set(value)) == len(value)
        and list(value) == sorted(value)
        and value[0] >= 0
        and value[-1] < depth
    )


def is_depth(name: str, value: Any) -> bool:
    """Whether a value is a number of layers of some part."""
    return _is_count(value) and bool(_DEPTH_NAME.fullmatch(name))


def is_period(name: str, value: Any) -> bool:
    """Whether a value says that every so many layers another kind follows."""
    return _is_count(value) and bool(_PERIOD.fullmatch(name))


def is_offset(name: str, value: Any) -> bool:
    """Whether a value says at which layer a period begins."""
    return _is_count(value) and bool(_OFFSET.fullmatch(name))


def _kind(value: list[Any], layer: int) -> Any:
    entry = value[layer]
    return entry if isinstance(entry, (str, bool)) or entry in (0, 1, None) else type(entry).__name__


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
