# SPDX-License-Identifier: Apache-2.0
"""How small each kind of size becomes, by the name of the config's attribute.

Equal sizes stay equal, wherever they stand: a projection that fitted before fits afterwards. So every rule is a
function of the value (and of the ratios inside its own config), never of the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

WIDTH = 32
HEADS = 4
INNER = 64
#: A power of two: codebooks that are looked up without multiplication need one.
VOCABULARY = 128
POSITIONS = 128
WINDOW = 4
EXPERTS = 4
IMAGE = 32
PATCH = 8

Node = Mapping[str, Any]


def width(value: int) -> int:
    """A hidden size."""
    if value >= 48:
        return WIDTH
    return value if value <= 16 else 16


def stage_width(value: int) -> int:
    """A width in a list of growing ones: doubling ones stay so."""
    return value if value <= 8 else max(8, 2 ** round(math.log2(value / 12)))


def heads(value: int) -> int:
    """A number of attention heads."""
    return min(value, HEADS) if value != 3 else 2


def vocabulary(value: int) -> int:
    """A number of embeddings."""
    return min(value, VOCABULARY)


def image(value: int, node: Node) -> int:
    """The side of an image; stages that halve it four times and then cut it into windows need a bigger one."""
    return min(value, 2 * IMAGE if is_windowed(node) else IMAGE)


def is_windowed(node: Node) -> bool:
    """Whether there are windows on the maps of several stages."""
    return isinstance(node.get("depths"), (list, tuple)) and isinstance(node.get("window_size"), int)


def patch(value: int) -> int:
    """The side of a patch; small ones are left, they are a stem's strides."""
    return value if value <= PATCH else PATCH


def _key_value_heads(value: int, node: Node) -> int:
    queries = sibling(node, "num_attention_heads", "num_heads", "n_head", "encoder_attention_heads")
    if value == 1:
        return 1
    return HEADS if queries is None or value >= queries else max(1, heads(queries) // 2)


def _head_dim(value: int, node: Node) -> int:
    rotary, plain = node.get("qk_rope_head_dim"), node.get("qk_nope_head_dim")
    if rotary and plain:
        rest = 8 if plain == rotary else 16
        return 8 if value == rotary else 8 + rest if value == rotary + plain else 16
    count = sibling(node, "num_attention_heads", "num_heads", "n_head", "n_heads", "attention_heads")
    whole = sibling(node, "hidden_size", "d_model", "n_embd", "hidden_dim", "embed_dim")
    if count and whole and heads(count):
        return width(whole) // heads(count) if count * value == whole else 16
    return 8


def _state_head_dim(value: int, node: Node) -> int:
    """Heads of a state space: together they are as wide as the expanded hidden size."""
    expand = sibling(node, "mamba_expand", "expand") or 1
    return int(expand * WIDTH) // HEADS


def _linear_key_heads(value: int, node: Node) -> int:
    values = node.get("linear_num_value_heads")
    return HEADS if values is None or value >= values else HEADS // 2


def _encoder_stride(value: int, node: Node) -> int:
    """Pixels per patch of the last map: the patch, unless stages halve it."""
    return patch(value) if value == node.get("patch_size") else value


def _state_width(value: int, node: Node) -> int:
    return _state_head_dim(value, node) * HEADS


def _maybe_staged(value: int, node: Node) -> int:
    """A model of stages doubles its first width, so that must be smaller; its last is that of its list of widths."""
    staged = any(isinstance(node.get(name), (list, tuple)) for name in ("depths", "embed_dim_per_stage"))
    return stage_width(value) if staged else width(value)


def _attention_width(value: int, node: Node) -> int:
    """A width of attention that is a multiple of the hidden size."""
    return value * WIDTH // (sibling(node, "hidden_size") or value)


def _window(value: int, node: Node) -> int:
    """A window in tokens or patches; big ones beside a patch size are counted in pixels."""
    return IMAGE if value >= 64 and "patch_size" in node else min(value, 2 if is_windowed(node) else WINDOW)


def _top_k(value: int, node: Node) -> int:
    return min(value, 2)


def _prediction_tokens(value: int, node: Node) -> int:
    return min(value, 4)


Rule = Callable[[int, Node], int]


def _plain(function: Callable[[int], int]) -> Rule:
    return lambda value, node: function(value)


def _most(limit: int) -> Rule:
    return lambda value, node: min(value, limit)


#: The first pattern that an attribute's name matches decides. What matches none stays.
RULES: tuple[tuple[str, Rule], ...] = (
    (r"chunk_size_feed_forward|pretraining_tp|max_length|min_length|.*_coefficient|.*_cost|num_labels", _most(1 << 40)),
    (r".*(ignore_index|token_id|token_ids|token_index|_temperature|_theta)", _most(1 << 40)),
    (
        r"(sampling|sample|frame)_rate|(?!encoder_stride).*stride|.*strides|.*padding|.*kernel_size|.*dilation.*",
        _most(1 << 40),
    ),
    # experts
    (r"(n_group|num_expert_group|n_groups_experts|num_expert_groups)", _most(2)),
    (r"topk_group|num_limited_groups|moe_group_topk", _most(1)),
    (r".*(experts_per_tok|experts_per_token|top_k|topk|top_k_experts|moe_k|num_selected_experts)", _top_k),
    (r"(n_shared_experts|num_shared_experts|moe_num_shared_experts)", _most(2)),
    (
        r"(first_k_dense_replace|num_dense_layers|moe_layer_start_index|max_window_layers|num_kv_shared_layers)",
        _most(1),
    ),
    (r".*(num_experts|n_routed_experts|num_local_experts|n_experts|experts)", _most(EXPERTS)),
    (r"zero_expert_num", _most(2)),
    # heads
    (r"rotary_dim|rotary_emb_dim", _most(4)),
    (r"(mamba_d_ssm)", _state_width),
    (r".*num_groups|.*norm_groups", _most(4)),
    (r".*(num_key_value_heads|num_kv_heads|n_kv_heads|multi_query_group_num|key_value_heads)", _key_value_heads),
    (r"linear_num_key_heads", _linear_key_heads),
    (r"(mamba_d_head|mamba_head_dim|mamba_headdim|ssm_head_dim)", _state_head_dim),
    (r"(mamba_n_groups|n_groups|ssm_n_groups)", _most(2)),
    # Scores that are sums of relu are 0 where all heads' are, and which of equal ones is chosen differs by runtime.
    (r"index_n_heads", _most(16)),
    (r".*(num_attention_heads|num_heads|attention_heads|n_heads?|_heads|num_mem_heads)", _plain(heads)),
    (r".*(head_dim|d_kv|kv_channels|dim_head|head_size)", _head_dim),
    # vocabularies and lengths
    (r".*(vocab_size.*|vocabulary_size|codebook_size|num_embeddings|vocab_sizes|group_vocab)", _plain(vocabulary)),
    (r"num_(bpe|wordpiece|character)_labels", _plain(vocabulary)),
    (r".*(max_position_embeddings|max_sequence_length|n_positions|n_ctx|max_seq_len|max_positions)", _most(POSITIONS)),
    (r"max_2d_position_embeddings|max_source_positions|max_target_positions", _most(64)),
    (
        r".*(sliding_window(_size)?|attention_window(_size|_len)?|keep_window_size|local_window_size|"
        r"local_attention|attention_chunk_size)",
        _most(WINDOW),
    ),
    (r".*(index_topk)", _most(WINDOW)),
    (r".*(num_queries|num_query_tokens|num_latents|max_num_queries|latent_query_num)", _most(8)),
    (r"(mamba_chunk_size|chunk_size|linear_chunk_size)", _most(WINDOW)),
    (r"(mm_tokens_per_image)", _prediction_tokens),
    (r"coordinate_size", _most(6)),  # four of these and two shapes make up a hidden size
    (r"shape_size", _most(4)),
    # images and sounds
    (r".*(image_size|img_size|image_resolution|input_resolution|crop_size|spec_size)", image),
    (r"patch_size", _plain(patch)),
    (r"encoder_stride", _encoder_stride),
    (r".*(mel_bins|n_mels|num_mel_channels|input_feat_per_channel|model_in_dim)", _most(16)),
    (r".*(num_frames|frames_per_clip)", _most(4)),
    (r".*pos_emb_(height|width)", _most(16)),
    # widths
    (r"stem_.*(channels|width|size|dim)|conv_stem_width", _plain(stage_width)),
    (r"embed_dim|embedding_size|hidden_size|base_channels|hidden_dim|patch_embeds_hidden_size", _maybe_staged),
    (r"num_filters", _most(4)),
    (r"num_pos_feats", _most(WIDTH // 2)),
    (r"attention_hidden_size", _attention_width),
    (r"stage_.*channels|embed_dim_per_stage|stage_out_features|bridge_connector", _plain(stage_width)),
    (r"downsample_channels", _plain(width)),
    (r"window_size.*", _window),
    (r".*linear_units", _most(INNER)),
    (r"upsample_groups|vector_quantization_hidden_dimension", _plain(width)),
    (r".*(lora_rank|_rank)", _most(8)),
    (r".*(state_size|d_state|ssm_state_size)", _most(8)),
    (
        r".*(intermediate_size|ffn_dim|ffn_hidden_size|d_ff|mlp_dim|n_inner|feed_forward.*|ffn_size|intermediate_dim|dim_ff|d_inner)",
        _most(INNER),
    ),
    (r".*(feedforward|ffn_hidden|mlp_hidden_size|inner_dim|ffn_inner)", _most(INNER)),
    (r"num_channels|in_chans|in_channels|channels|audio_channels", _most(1 << 40)),
    (
        r".*(size|sizes|dim|dims|d_model|d_latents|n_embd|width|channels|features|units|filters|hidden|embed|_channel|width|d_embed)",
        _plain(width),
    ),
)


def shrunk(name: str, value: int, node: Node) -> int:
    """The small size of an attribute that is a number.

    Args:
        name: The attribute's name.
        value: Its value.
        node: All attributes of the config that it stands in, at full size.
    """
    if value <= 0:
        return value
    for pattern, rule in RULES:
        if re.fullmatch(pattern, name):
            return rule(value, node)
    return value


def shrunk_list(name: str, values: list[int], node: Node) -> list[int]:
    """The small sizes of a list of numbers: widths keep their doubling, everything else goes one by one."""
    if name in ("in_channels", "out_channels"):
        return values  # scaled by a coefficient
    if "kernel" in name:
        return values
    if name in _ALWAYS_EQUAL:
        return [width(value) for value in values]
    varied = len(set(values)) > 1 and min(values) > 0
    if varied and _STAGED.fullmatch(name) and not name.startswith("patch"):
        return [stage_width(value) for value in values]
    if varied and re.fullmatch(r".*heads?", name):
        return [min(value, 2) for value in values]
    return [shrunk(name, value, node) for value in values]


#: Widths of a neck that ends at the width of the next part.
_ALWAYS_EQUAL = ("downsample_channels",)


def shrunk_row(values: list[Any]) -> list[Any]:
    """A block in a list of blocks, (kernel, channels, channels, stride, flag) or the like: its channels shrink."""
    return [stage_width(v) if isinstance(v, int) and not isinstance(v, bool) and v >= 16 else v for v in values]


_STAGED = re.compile(r".*(sizes|dims?|channels|widths|filters|embed|channel_list|hidden_size|out_features)")


def sibling(node: Node, *names: str) -> int | None:
    """The first of these attributes that is a number."""
    return next((found for name in names if isinstance(found := node.get(name), int)), None)
