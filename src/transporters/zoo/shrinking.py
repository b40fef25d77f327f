# SPDX-License-Identifier: Apache-2.0
"""A tiny config of the same architecture: sizes shrink, choices stay."""

from __future__ import annotations

import copy
import re
from typing import Any

from . import defaults, families, layers, per_layer, sizes
from .tokens import TokenMap, is_token

#: Standard deviation of fresh weights; with the usual 0.02 a lost mask or expert moves an output by nothing.
WIDE = 0.2

#: In a model of stages these count the stages.
_STAGE_COUNTS = ("num_layers", "num_stages", "num_encoder_blocks", "num_hidden_layers")
_WIDE_NAMES = ("initializer_range", "init_std", "init_range", "embed_init_std")
#: Attributes that hold no sizes, although some are numbers.
_LEFT = frozenset({"id2label", "label2id", "architectures", "dtype", "transformers_version", "vocabulary_map"})


def tiny_config(config: Any) -> Any:
    """A config of the same architecture with tiny sizes.

    Activations, kinds of layers, norms and attention, tied embeddings and everything else that is a choice stay as they
    are. At least two layers stay, and one of every kind that the config lists.

    Args:
        config: A config class (its defaults are shrunk) or a config object, which is left alone.

    Returns:
        A new config of the same class.
    """
    full = defaults.default_config(config) if isinstance(config, type) else config
    tokens = TokenMap(sizes.VOCABULARY, _small_ids(full))
    tiny = _shrink(full, tokens, {})
    _fit_grid(tiny, full)
    families.adjust(tiny, full)
    return tiny


def _shrink(config: Any, tokens: TokenMap, done: dict[int, Any]) -> Any:
    if id(config) in done:
        return done[id(config)]
    tiny = done[id(config)] = copy.copy(config)
    tiny.__dict__ = dict(vars(config))
    node = {name: value for name, value in vars(config).items() if name not in _LEFT}
    chosen = layers.kept(node)
    depth = layers.depth_name(node)
    for name, value in node.items():
        if _is_config(value):
            vars(tiny)[name] = _shrink(value, tokens, done)
        elif depth is not None and layers.is_per_layer(name, value, node[depth]):
            entries = [value[layer] for layer in chosen]
            vars(tiny)[name] = [_value(name, entry, node, tokens) for entry in entries]
        elif depth is not None and layers.is_index_list(name, value, node[depth]):
            vars(tiny)[name] = [place for place, layer in enumerate(chosen) if layer in value]
        elif depth is not None and name == depth:
            vars(tiny)[name] = len(chosen)
        else:
            vars(tiny)[name] = _value(name, value, node, tokens)
    if per_layer.SPEC in node:
        vars(tiny)[per_layer.SPEC] = per_layer.kept(node, chosen, vars(tiny))
    _finish(tiny, node, chosen)
    return tiny


def _value(name: str, value: Any, node: dict[str, Any], tokens: TokenMap) -> Any:
    """The small form of one attribute that is not a config."""
    if name in _WIDE_NAMES and isinstance(value, float):
        return WIDE
    if _is_config(value):
        return _shrink(value, tokens, {})
    if is_token(name, value):
        return [tokens.place(token) for token in value] if isinstance(value, (list, tuple)) else tokens.place(value)
    if isinstance(value, dict):
        if "rope" in name:
            return _rope(value, node)
        inner = name.endswith("_config")
        return {key: _value(key, entry, value, tokens) for key, entry in value.items()} if inner else value
    if re.fullmatch(r"vision_feature_layers?", name) and isinstance(value, (list, tuple)):
        return [-1 - place % 3 for place in range(len(value))]
    if isinstance(value, (list, tuple)):
        return _list(name, value, node)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if name in _STAGE_COUNTS and any(isinstance(node.get(stages), (list, tuple)) for stages in layers.STAGES):
        return value
    if name == "num_res_blocks":
        return 1
    if layers.is_period(name, value):
        return min(value, 2)
    if layers.is_offset(name, value):
        return min(value, 1)
    if layers.is_depth(name, value):
        return min(value, layers.LEAST)
    return sizes.shrunk(name, value, node)


def _list(name: str, values: Any, node: dict[str, Any]) -> list[Any]:
    """Always a list, as in a config that was loaded from its file."""
    if re.fullmatch(r".*block_configs|resnet_configs|stage_configs|resnet_head|out_point_positions2D", name):
        return [_list(name, row, node) if _is_nested(row) else sizes.shrunk_row(list(row)) for row in values]
    if all(isinstance(entry, (list, tuple)) for entry in values) and values:
        return [_list(name, entry, node) for entry in values]
    if not values or not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in values):
        return list(values)
    if re.fullmatch(
        r".*depths|.*block_repeats|.*layers_per_stage|.*stage_numb_of_layers|.*num_blocks|blocks_per_stage", name
    ):
        return [min(value, layers.LEAST) for value in values]
    if name == "channel_multiplier":
        return [min(value, 2) for value in values]
    return sizes.shrunk_list(name, list(values), node)


def _is_nested(row: Any) -> bool:
    return bool(row) and isinstance(row[0], (list, tuple))


def _rope(parameters: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters: sections and factors that are listed per frequency fit the smaller head."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, dict):
            found[name] = _rope(value, node)
        elif name == "mrope_section" and value:
            found[name] = sections(value, frequencies(parameters, node))
        elif name in ("long_factor", "short_factor") and isinstance(value, (list, tuple)):
            found[name] = list(value)[: frequencies(parameters, node)]
        else:
            found[name] = value
    return found


def frequencies(parameters: dict[str, Any], node: dict[str, Any]) -> int:
    """Rotary frequencies of a small head: half of the part of it that is rotated."""
    dim = node.get("head_dim") or node.get("qk_rope_head_dim")
    count = sizes.sibling(node, "num_attention_heads", "num_heads") or 1
    dim = dim or (sizes.sibling(node, "hidden_size", "embed_dim") or 0) // count
    part = parameters.get("partial_rotary_factor", node.get("partial_rotary_factor")) or 1.0
    return int(sizes.shrunk("head_dim", int(dim), node) * part) // 2


def sections(values: list[int], total: int) -> list[int]:
    """The same proportions with another sum; nothing becomes zero while there is enough for all."""
    whole = sum(values)
    found = [max(1, value * total // whole) for value in values]
    while sum(found) > total and max(found) > 0:
        found[found.index(max(found))] -= 1
    # A height and a width that were equal stay equal.
    found[-1 if values[0] == values[1] else 0] += total - sum(found)
    return found


def _finish(tiny: Any, node: dict[str, Any], chosen: list[int]) -> None:
    """Relations between attributes of one config that no attribute knows alone."""
    attributes = vars(tiny)
    stages = attributes.get("stage_names")
    if stages and chosen and len(stages) == node[layers.depth_name(node) or ""] + 1:
        count = len(chosen)
        attributes["stage_names"] = ["stem", *(f"stage{place}" for place in range(1, count + 1))]
        picked = attributes.get("_out_indices") or [count]
        last = list(range(count + 1))[-len(picked) :]
        attributes["_out_indices"] = last
        attributes["_out_features"] = [attributes["stage_names"][place] for place in last]
    elif chosen:
        for name, first in (("out_indices", 1), ("backbone_out_indices", 0)):
            if isinstance(attributes.get(name), list):
                places = range(first, len(chosen) + first)
                attributes[name] = list(places)[-len(attributes[name]) :]
    if attributes.get("qk_head_dim") and attributes.get("qk_nope_head_dim") and attributes.get("qk_rope_head_dim"):
        attributes["qk_head_dim"] = attributes["qk_nope_head_dim"] + attributes["qk_rope_head_dim"]

    if attributes.get("encoder_hidden_size") and attributes.get("downsampling_ratios"):
        _fit_codec(attributes)
    if attributes.get("image_embedding_size") and attributes.get("image_size") and attributes.get("patch_size"):
        attributes["image_embedding_size"] = attributes["image_size"] // attributes["patch_size"]
    rope = attributes.get("rope_parameters")
    known = families.SECTIONS.get(tiny.model_type)
    if known and isinstance(rope, dict):
        for inner in [entry for entry in rope.values() if isinstance(entry, dict)] or [rope]:
            inner.setdefault("mrope_section", sections(known, frequencies(inner, node)))


def _fit_codec(attributes: dict[str, Any]) -> None:
    """A codec doubles its width with every downsampling, and halves it with every upsampling."""
    first = 4
    attributes["encoder_hidden_size"] = first
    if "decoder_hidden_size" not in attributes:
        return
    attributes["hidden_size"] = first * 2 ** len(attributes["downsampling_ratios"])
    attributes["decoder_hidden_size"] = first * 2 ** len(attributes.get("upsampling_ratios") or ())


def _fit_grid(tiny: Any, full: Any) -> None:
    """Sizes at which big images are cut into tiles follow the size of a tile."""
    grid = vars(full).get("image_grid_pinpoints")
    tile, small = (getattr(getattr(each, "vision_config", None), "image_size", None) for each in (full, tiny))
    if isinstance(grid, (list, tuple)) and isinstance(tile, int) and isinstance(small, int):
        vars(tiny)["image_grid_pinpoints"] = [[round(side / tile) * small for side in pair] for pair in grid]


def _small_ids(config: Any) -> set[int]:
    """Special ids of the whole tree that are small enough to stay."""
    found: set[int] = set()
    for name, value in vars(config).items():
        if _is_config(value):
            found |= _small_ids(value)
        elif is_token(name, value):
            found |= set(value) if isinstance(value, (list, tuple)) else {value}
    return {token for token in found if token < sizes.VOCABULARY}


def _is_config(value: Any) -> bool:
    from transformers import PreTrainedConfig

    return isinstance(value, PreTrainedConfig)
