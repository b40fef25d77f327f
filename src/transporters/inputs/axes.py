# SPDX-License-Identifier: Apache-2.0
"""What each axis of an input means.

Transformers' forward arguments are a shared vocabulary, so an axis can be named by the argument it belongs to. Names
the table does not know get a batch axis where the size fits, and a label of their own for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..trees import pytrees

#: Labels that may be of size 0: an empty cache is how a text begins.
MAY_BE_EMPTY = frozenset({"past_sequence", "past_window", "past_encoder_sequence"})

#: Labels whose size follows from the model's configuration: other sizes are another model.
FIXED = frozenset(
    {
        "channels",
        "hidden",
        "heads",
        "capacity",
        "head_dim",
        "packed",
        "patch_features",
        "coordinates",
        "thw",
        "levels",
        "tiles",
        "state",
        "kinds",
        "row",
        "place",
    }
)

#: Labels whose size follows from others (`resizing.with_total`).
DERIVED = frozenset({"total_sequence"})

#: Labels that come in whole multiples per row of the batch.
PER_ROW = frozenset({"rows", "images", "patches", "videos", "video_patches", "packed_frames"})

#: Axes by number of dimensions, for argument names that mean the same in every model.
_BY_NAME: dict[str, tuple[tuple[str, ...], ...]] = {
    "input_ids": (("batch", "sequence"),),
    "tokens": (("row", "sequence"),),
    "input_pos": (("place",),),
    "attention_mask": (("batch", "sequence"), ("batch", "heads", "query", "sequence")),
    "global_attention_mask": (("batch", "sequence"),),
    "token_type_ids": (("batch", "sequence"), ("batch", "sequence", "kinds")),
    "mm_token_type_ids": (("batch", "sequence"),),
    "position_ids": (("batch", "sequence"), ("coordinates", "batch", "sequence")),
    "inputs_embeds": (("batch", "sequence", "hidden"),),
    "bbox": (("batch", "sequence", "coordinates"),),
    "decoder_input_ids": (("batch", "decoder_sequence"),),
    "decoder_attention_mask": (("batch", "decoder_sequence"),),
    "decoder_inputs_embeds": (("batch", "decoder_sequence", "hidden"),),
    "encoder_hidden_states": (("batch", "encoder_sequence", "hidden"),),
    "encoder_attention_mask": (("batch", "encoder_sequence"),),
    "pixel_values": (
        ("patches", "patch_features"),
        ("batch", "channels", "height", "width"),
        ("batch", "images_per_row", "channels", "height", "width"),
        ("batch", "images_per_row", "tiles", "channels", "height", "width"),
    ),
    "aspect_ratio_ids": (("batch", "images_per_row"),),
    "aspect_ratio_mask": (("batch", "images_per_row", "tiles"),),
    "cross_attention_mask": (("batch", "sequence", "images_per_row", "tiles"),),
    "image_attention_mask": (("batch", "sequence", "images_per_row"),),
    "pixel_mask": (("batch", "height", "width"),),
    "pixel_attention_mask": (("batch", "images_per_row", "height", "width"), ("batch", "height", "width")),
    "image_grid_thw": (("images", "thw"),),
    "image_position_ids": (("patches", "coordinates"),),
    "image_cu_seqlens": (("image_bounds",),),
    "pixel_values_videos": (("video_patches", "patch_features"), ("batch", "frames", "channels", "height", "width")),
    "video_grid_thw": (("videos", "thw"),),
    "video_position_ids": (("video_patches", "coordinates"),),
    "video_cu_seqlens": (("video_bounds",),),
    "input_features": (("mel_bins", "packed_frames"), ("batch", "mel_bins", "frames")),
    "feature_lens": (("batch",),),
    "aftercnn_lens": (("batch",),),
    "input_values": (("batch", "samples"), ("batch", "channels", "samples")),
    "padding_mask": (("batch", "samples"),),
    "object_queries_position_embeddings": (("batch", "sequence", "hidden"),),
    "reference_points": (("batch", "sequence", "coordinates"),),
    "spatial_shapes": (("levels", "coordinates"),),
    "level_start_index": (("levels",),),
    "valid_ratios": (("batch", "levels", "coordinates"),),
}
#: Inputs with a row (…, height, width) per image, in patches, for images that are packed one after the other.
_GRIDS = ("image_grid_thw", "grid_thw", "target_sizes")

#: Arguments of a decoder's graph that hold the tensors of its cache.
STEP_GROUPS = frozenset({"past_key_values", "past_conv", "past_ssm"})

#: Arguments of a lone decoder whose coordinates are counted by its code: it knows two of them, and four.
_POINTS = frozenset({"reference_points", "valid_ratios"})

#: Axes of a decoder that keeps its cache inside of the program, for one text (`generation.static_decoder`).
_OF_ONE_TEXT = frozenset({"row", "place"})

Labels = dict[str, tuple[str, ...]]


def label_axes(inputs: Mapping[str, Any]) -> Labels:
    """A label for every axis of every tensor leaf.

    Args:
        inputs: Forward arguments by name; values are tensors or containers of tensors.

    Returns:
        Leaf name to labels, one per axis: ``{"input_ids": ("batch", "sequence"), …}``.
    """
    leaves = [(name, leaf) for name, leaf in pytrees.named_leaves(dict(inputs)) if isinstance(leaf, torch.Tensor)]
    labels: Labels = {}
    for name, leaf in leaves:
        labels[name] = _known(name, leaf, inputs) or ()
    for name in _for_all_rows(dict(leaves), labels):
        labels[name] = tuple(f"{name}.{axis}" if label == "batch" else label for axis, label in enumerate(labels[name]))
    batch = min((leaf.shape[ls.index("batch")] for n, leaf in leaves if "batch" in (ls := labels[n])), default=None)
    for name, leaf in leaves:  # a codebook or a beam of its own for each row of the batch
        if "batch" in labels[name] and leaf.shape[labels[name].index("batch")] != batch:
            labels[name] = tuple("rows" if label == "batch" else label for label in labels[name])
    for name, leaf in leaves:
        if not labels[name] and leaf.ndim:
            first = "batch" if batch is None or leaf.shape[0] == batch else f"{name}.0"
            labels[name] = (first, *(f"{name}.{axis}" for axis in range(1, leaf.ndim)))
            batch = leaf.shape[0] if batch is None else batch
    return _merge_audio_mask(labels, dict(leaves))


def _for_all_rows(leaves: Mapping[str, torch.Tensor], labels: Labels) -> list[str]:
    """Names of positions and masks with one row, which stands for all rows of the text."""
    text = next((leaves[name] for name in ("input_ids", "inputs_embeds") if name in leaves), None)
    if text is None or text.shape[0] < 2:
        return []
    beside = [name for name in ("position_ids", "attention_mask", "token_type_ids") if "batch" in labels.get(name, ())]
    return [name for name in beside if leaves[name].shape[labels[name].index("batch")] == 1]


def is_settled(name: str, label: str) -> bool:
    """Whether an axis is not even asked to be dynamic: what layers of a decoder keep differs in its fixed sizes, and
    who keeps one text has one row.
    """
    return label in FIXED and (name.partition(".")[0] in STEP_GROUPS or name in _POINTS or label in _OF_ONE_TEXT)


def sizes(inputs: Mapping[str, Any], labels: Labels) -> dict[str, int]:
    """Size of each label in the inputs."""
    found: dict[str, int] = {}
    for name, leaf in pytrees.named_leaves(dict(inputs)):
        for label, size in zip(labels.get(name, ()), getattr(leaf, "shape", ())):
            found.setdefault(label, int(size))
    return found


def _known(name: str, leaf: torch.Tensor, inputs: Mapping[str, Any]) -> tuple[str, ...] | None:
    top, _, rest = name.partition(".")
    if rest and top in STEP_GROUPS:
        return _of_a_step(name, leaf, inputs)
    if rest and leaf.ndim == 3 and _is_step_of_embeddings(inputs):
        return ("batch", "sequence", "hidden")  # what pictures add to the states of a layer
    if rest:
        return _known_leaf(name, leaf, inputs[top])
    if grid_name(inputs) in ("grid_thw", "target_sizes"):
        return _packed_alone(top, leaf, inputs)
    if packed := _packed(top, leaf, inputs):
        return packed
    if top == "image_grid_thw" and _is_padded(inputs.get("pixel_values"), leaf.shape[0]):
        return ("batch", "thw")
    if top == "pixel_attention_mask" and leaf.ndim == 2 and getattr(inputs.get("pixel_values"), "ndim", 0) == 5:
        return ("batch", "images_per_row")  # which of a row's cameras there are, not which of their pixels
    if top == "input_features" and _frames_first(leaf, inputs):
        return ("batch", "frames", "mel_bins")
    if top == "encoder_attention_mask" and "tokens" in inputs:
        return ("row", "encoder_sequence")
    for labels in _BY_NAME.get(top, ()):
        if len(labels) == leaf.ndim:
            ids = inputs.get("input_ids")
            longer = top == "attention_mask" and isinstance(ids, torch.Tensor) and leaf.shape[-1] != ids.shape[-1]
            longer = longer or (top == "attention_mask" and _misses_a_token(inputs))
            longer = longer or (_is_step_of_embeddings(inputs) and leaf.shape[-1] != _new_tokens(inputs))
            if top == "attention_mask" and leaf.ndim == 4 and leaf.shape[2] == leaf.shape[3]:
                return ("batch", "heads", "sequence", "sequence")
            return ("batch", "total_sequence") if longer and leaf.ndim == 2 else labels
    if top == "hidden_states" and _misses_a_token(inputs):
        return ("batch", "sequence", "hidden")
    if leaf.ndim == 3 and top.endswith(("hidden_state", "embeds", "hidden_states")):
        return ("batch", f"{top}.1", "hidden")
    return None


def _misses_a_token(inputs: Mapping[str, Any]) -> bool:
    """Whether the model puts a token of its own before the states: the mask has one column more than there are."""
    states, mask = inputs.get("hidden_states"), inputs.get("attention_mask")
    if not isinstance(states, torch.Tensor) or not isinstance(mask, torch.Tensor):
        return False
    return (states.ndim, mask.ndim) == (3, 2) and mask.shape[1] == states.shape[1] + 1


def _is_step_of_embeddings(inputs: Mapping[str, Any]) -> bool:
    """Whether the inputs are those of a decoder behind the embeddings (`transporters.generation.multimodal`)."""
    return "inputs_embeds" in inputs and not STEP_GROUPS.isdisjoint(inputs)


def _new_tokens(inputs: Mapping[str, Any]) -> int:
    """Tokens of a step that were not seen before."""
    given = inputs["inputs_embeds"] if _is_step_of_embeddings(inputs) else inputs["input_ids"]
    return int(given.shape[1])


def grid_name(inputs: Mapping[str, Any]) -> str:
    """Name of the input that says how large packed images are; empty when there is none."""
    return next((name for name in _GRIDS if isinstance(inputs.get(name), torch.Tensor)), "")


def _is_padded(patches: Any, images: int) -> bool:
    """Whether patches have a row for each image, filled up to the length of the longest."""
    return isinstance(patches, torch.Tensor) and patches.ndim == 3 and 1 < patches.shape[0] == images


def _packed_alone(top: str, leaf: torch.Tensor, inputs: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Labels for a vision encoder without a text beside it: an image is a row of its batch."""
    if top == grid_name(inputs):
        return ("batch", "thw")
    return _rows_of_patches(top, leaf, inputs) or tuple(f"{top}.{axis}" for axis in range(leaf.ndim))


def _packed(top: str, leaf: torch.Tensor, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Labels of patches that are packed one after the other, and of what is computed for each; empty for others."""
    grid = grid_name(inputs)
    if not grid or top == grid or (top in _BY_NAME and top != "pixel_values"):
        return ()
    return _rows_of_patches(top, leaf, inputs)


def _rows_of_patches(top: str, leaf: torch.Tensor, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The same for any name.

    The patches lie along the first axis, along the second behind one of size 1, or in one image side by side.
    """
    grid = grid_name(inputs)
    if top.endswith(("seqlens", "window_index")):
        return tuple(f"{top}.{axis}" for axis in range(leaf.ndim))
    total = int(inputs[grid].prod(-1).sum())
    for before in ((), ("packed",)):
        place = len(before)
        if leaf.ndim > place and leaf.shape[place] == total and (not before or leaf.shape[0] == 1):
            return (*before, "patches", *("patch_features" for _ in leaf.shape[place + 1 :]))
    if leaf.ndim == 4 and leaf.shape[0] == 1 and leaf.shape[3] == leaf.shape[2] * total:  # patches side by side
        return ("packed", "channels", "patch_features", "patches")
    return ()


def _of_a_step(name: str, leaf: torch.Tensor, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Labels of a tensor that a decoder's graph takes back from the step before (`transporters.generation`)."""
    if not name.endswith((".key", ".value")):
        return ("batch", *("state" for _ in leaf.shape[1:]))
    if "tokens" in inputs:
        return ("row", "heads", "encoder_sequence", "head_dim")
    if "encoder_hidden_states" in inputs:
        return ("batch", "heads", "past_encoder_sequence" if ".encoder." in name else "past_sequence", "head_dim")
    seen = inputs["attention_mask"].shape[1] - _new_tokens(inputs)
    return ("batch", "heads", "past_sequence" if leaf.shape[2] == seen else "past_window", "head_dim")


def _frames_first(features: torch.Tensor, inputs: Mapping[str, Any]) -> bool:
    """Whether the mask beside audio features has as many columns as their second axis, and not as their third."""
    masks = (inputs.get(name) for name in ("attention_mask", "input_features_mask", "feature_attention_mask"))
    mask = next((mask for mask in masks if isinstance(mask, torch.Tensor) and mask.ndim == 2), None)
    return mask is not None and features.ndim == 3 and mask.shape[1] == features.shape[1] != features.shape[2]


def _known_leaf(name: str, leaf: torch.Tensor, container: Any) -> tuple[str, ...] | None:
    """Labels of a leaf inside a container: keys and values of a cache, hidden states of an encoder."""
    parts = name.split(".")
    if parts[-1] in ("keys", "values") and leaf.ndim == 4:
        length = "past_sequence"
        if "cross_attention_cache" in parts:
            length = "sequence"  # computed from the encoder's states, one for each
        elif hasattr(layer := _follow(container, parts[1:-1]), "max_cache_len"):
            length = "capacity"
        elif hasattr(layer, "sliding_window"):
            length = "window"
        return ("batch", "heads", length, "head_dim")
    if parts[-1] == "last_hidden_state" and leaf.ndim == 3:
        return ("batch", "sequence", "hidden")
    return None


def _follow(value: Any, parts: list[str]) -> Any:
    for part in parts:
        value = value[int(part)] if part.isdigit() else getattr(value, part, None)
    return value


def _merge_audio_mask(labels: Labels, leaves: dict[str, Any]) -> Labels:
    """An attention mask beside audio counts samples or frames, not tokens."""
    for audio in ("input_values", "input_features"):
        mask = leaves.get("attention_mask")
        if audio in leaves and mask is not None and "input_ids" not in leaves and mask.ndim == 2:
            time_axis = next((label for label in labels[audio] if label in ("samples", "frames")), None)
            if time_axis and mask.shape[1] == leaves[audio].shape[labels[audio].index(time_axis)]:
                labels["attention_mask"] = ("batch", time_axis)
    return labels
