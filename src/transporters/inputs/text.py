# SPDX-License-Identifier: Apache-2.0
"""Text: token ids with their masks, of real sentences or of ordinary ids, and a decoder's first tokens."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import InputError
from .request import TEXT_PARTS, SampleRequest

#: Length of a row without a tokenizer, and of a decoder's row.
DEFAULT_LENGTH = 7
DECODER_LENGTH = 5

#: Number of choices in a multiple-choice row.
CHOICES = 2

#: Names for the number of positions that a text model has.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length")

SENTENCES = (
    "The ferry leaves at nine.",
    "After three days of rain the river had covered the lower road, so the children walked to school over the hill.",
    "Who wrote this letter?",
    "She tuned the old piano by ear, one string at a time, until the evening.",
    "Water boils at a lower temperature in the mountains than it does by the sea.",
    "No.",
    "The museum keeps 4,312 coins, most of which were found by farmers while ploughing their fields in spring.",
    "Please close the window, it is getting cold in here.",
    "A good map leaves out more than it shows.",
    "Two of the five bridges were closed, and the trains ran late all week because of the repairs.",
    "Bees dance.",
    "The recipe asks for flour, salt, a spoon of honey, and a great deal of patience.",
)


@dataclass
class Row:
    """One row of text before padding: its ids, and what the tokenizer gives beside them (all of the same length)."""

    ids: list[int]
    beside: dict[str, list[int]] = field(default_factory=dict)


def tokens(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``input_ids`` ``(batch, length)`` int64, with the masks and token types that go with them.

    Multiple choice adds an axis: ``(batch, 2, length)``. Placeholders for images and audio that an earlier part left in
    ``made`` go behind the first token of each row.
    """
    if not _wanted(request):
        return {}
    _refuse_unpadded_heads(request)
    choices = CHOICES if request.class_name.endswith("ForMultipleChoice") else 1
    rows = text_rows(request, request.batch * choices)
    for row, inserted in zip(rows, made.get("placeholder_rows", ())):
        row.ids[1:1] = inserted
        for values in row.beside.values():
            values[1:1] = [0] * len(inserted)
    ids, mask, beside = _rectangle(request, rows)
    found = {"input_ids": ids, **{name: value for name, value in beside.items() if request.takes(name)}}
    if request.takes("attention_mask"):
        found["attention_mask"] = mask
    if request.takes("mm_token_type_ids"):
        found["mm_token_type_ids"] = _modality_of(ids, made.get("placeholder_kinds", {}))
    if choices == 1:
        return found
    return {name: value.reshape(request.batch, choices, -1) for name, value in found.items()}


def table_types(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``token_type_ids`` ``(batch, length, kinds)`` int64, for models that tell a table's segment, column, row, ….

    The first third of each row is the question, where all are 0; the rest are cells in two columns.
    """
    sizes = request.find("type_vocab_sizes")
    if "input_ids" not in made or not request.takes("token_type_ids") or not isinstance(sizes, (list, tuple)):
        return {}
    length = made["input_ids"].shape[1]
    cell = torch.arange(length) - length // 3
    kinds = [torch.ones_like(cell), cell % 2 + 1, cell // 2 + 1]
    kinds += [request.random_ints(0, size, length) for size in sizes[len(kinds) :]]
    found = torch.stack([kind.clamp(max=size - 1) for kind, size in zip(kinds, sizes)], dim=-1)
    found = torch.where(cell[:, None] < 0, 0, found)
    return {"token_type_ids": found.expand(request.batch, -1, -1).clone()}


def boxes(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``bbox`` ``(batch, length, 4)``: left, top, right, bottom of each token on a page of 1000 × 1000."""
    if "input_ids" not in made or not request.takes("bbox"):
        return {}
    shape = made["input_ids"].shape
    page = request.find("max_2d_position_embeddings", parts=TEXT_PARTS, default=1024)
    size = min(1000, page - 1)
    corner = request.random_ints(0, size // 2, *shape, 2)
    extent = request.random_ints(1, size // 2, *shape, 2)
    found = torch.cat([corner, corner + extent], dim=-1)
    return {"bbox": found.float() / size if request.find("dim_bbox") is not None else found}


def decoder_tokens(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``decoder_input_ids`` ``(batch, 5)`` int64: the start token and what might follow."""
    if not request.takes("decoder_input_ids"):
        return {}
    if not request.needs("decoder_input_ids") and not getattr(request.config, "is_encoder_decoder", False):
        return {}
    if _ends_with_eos(request) and "input_ids" in made:
        return {}  # such a head reads the last eos of the decoder's row, which the model makes from input_ids itself
    return {"decoder_input_ids": first_tokens(request)}


def first_tokens(request: SampleRequest) -> torch.Tensor:
    """``(batch, 5)`` int64: a decoder's start token and ordinary ones."""
    start = decoder_start(request)
    rows = text_rows(request, request.batch)
    ordinary = ordinary_ids(request)
    filled = []
    for row in rows:
        body = [token for token in row.ids if token != start][: DECODER_LENGTH - 1]
        missing = DECODER_LENGTH - 1 - len(body)
        body += ordinary[request.random_ints(0, len(ordinary), missing)].tolist()
        filled.append([start, *body])
    return torch.tensor(filled, dtype=torch.int64)


def decoder_start(request: SampleRequest) -> int:
    """The token that a decoder begins with."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    found = next((value for name in names if isinstance(value := request.find(name, parts=TEXT_PARTS), int)), 0)
    return found if found < vocabulary(request) else 0


def vocabulary(request: SampleRequest) -> int:
    """Number of ids that the text embedding has."""
    size = request.find("vocab_size", "text_vocab_size", parts=TEXT_PARTS, default=1000)
    return int(size if isinstance(size, int) else max(size))


def ordinary_ids(request: SampleRequest) -> torch.Tensor:
    """Ids that no config attribute names as special (padding, end, image placeholder, …), int64, ascending."""
    size = vocabulary(request)
    allowed = torch.ones(size, dtype=torch.bool)
    for config in request.all_configs():
        for name, value in vars(config).items():
            if name.endswith(("token_id", "token_ids", "token_index", "_idx", "_token")):
                for token in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(token, int) and 0 <= token < size:
                        allowed[token] = False
    found = allowed.nonzero().flatten()
    return found if len(found) else torch.arange(size)


def text_rows(request: SampleRequest, count: int) -> list[Row]:
    """Rows of text: sentences when there is a tokenizer that takes plain text, else ordinary ids."""
    rows = _sentence_rows(request, count) if _reads_plain_text(request.tokenizer) else _id_rows(request, count)
    limit = request.length or max(1, _position_limit(request))
    return [Row(row.ids[:limit], {name: values[:limit] for name, values in row.beside.items()}) for row in rows]


def _wanted(request: SampleRequest) -> bool:
    """Whether the model is to get ``input_ids``: as its main input, or beside images or audio."""
    if not request.takes("input_ids"):
        return False
    return request.needs("input_ids") or request.part(TEXT_PARTS) is not None or "vocab_size" in vars(request.config)


def _refuse_unpadded_heads(request: SampleRequest) -> None:
    """A decoder that classifies at the last token before the padding takes one row, if it knows no padding."""
    classifies = request.class_name.endswith("ForSequenceClassification") and request.takes("cache")
    if not classifies or request.batch == 1 or getattr(request.config, "is_encoder_decoder", False):
        return
    if request.config.get_text_config().pad_token_id is None:
        raise InputError(
            f"{request.class_name} takes more than one row only if its config has a pad_token_id.",
            advice="Set model.config.pad_token_id, or make a sample of one row (batch=1).",
        )


def _reads_plain_text(tokenizer: Any | None) -> bool:
    """Whether a tokenizer can be called with sentences alone: not with words and their boxes, tables or page nodes."""
    if tokenizer is None:
        return False
    parameters = inspect.signature(type(tokenizer).__call__).parameters
    return not {"boxes", "table", "nodes", "entities"} & set(parameters)


def _sentence_rows(request: SampleRequest, count: int) -> list[Row]:
    tokenizer = request.tokenizer
    order = torch.randperm(len(SENTENCES), generator=request.generator).tolist()
    sentences = [SENTENCES[order[place % len(order)]] for place in range(count)]
    assert tokenizer is not None
    encoded = tokenizer(sentences)
    largest = max(max(ids, default=0) for ids in encoded["input_ids"])
    if largest >= vocabulary(request):
        raise InputError(
            f"The tokenizer gives the token {largest}, but {request.class_name} has {vocabulary(request)} embeddings.",
            advice="Use the tokenizer that belongs to the model.",
        )
    beside = [name for name in encoded if name not in ("input_ids", "attention_mask")]
    return [
        Row(list(ids), {name: list(encoded[name][place]) for name in beside})
        for place, ids in enumerate(encoded["input_ids"])
    ]


def _id_rows(request: SampleRequest, count: int) -> list[Row]:
    ordinary = ordinary_ids(request)
    length = request.length or min(DEFAULT_LENGTH, max(1, _position_limit(request)))
    ids = ordinary[request.random_ints(0, len(ordinary), count, length)]
    if _ends_with_eos(request):
        ids[:, -1] = int(request.find("eos_token_id", parts=TEXT_PARTS))
    return [Row(row) for row in ids.tolist()]


def _ends_with_eos(request: SampleRequest) -> bool:
    """Whether the model pools at the end token, so that each row must have one.

    The towers of CLIP's kind do, and the classification heads of encoder-decoders.
    """
    eos = request.find("eos_token_id", parts=TEXT_PARTS)
    if not isinstance(eos, int) or not 0 <= eos < vocabulary(request):
        return False
    contrastive = request.find("projection_dim") is not None and not request.takes("cache")
    classifies = request.class_name.endswith("ForSequenceClassification")
    return contrastive or (classifies and getattr(request.config, "is_encoder_decoder", False))


def _position_limit(request: SampleRequest) -> int:
    """The longest row that the model and its tokenizer take; two positions are left for models that shift them."""
    limits = [request.find(*_POSITIONS, parts=TEXT_PARTS), getattr(request.tokenizer, "model_max_length", None)]
    known = [int(limit) for limit in limits if isinstance(limit, int) and limit > 2]
    return min(known, default=1 << 20) - 2


def _rectangle(request: SampleRequest, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Pad rows to the longest one, or to the length asked for, on the tokenizer's side."""
    tokenizer = request.tokenizer
    width = max(len(row.ids) for row in rows)
    if _reads_plain_text(tokenizer) and request.length is not None:
        width = max(width, request.length)
    left = getattr(tokenizer, "padding_side", "right") == "left"

    def pad(values: list[int], filler: int) -> list[int]:
        padding = [filler] * (width - len(values))
        return padding + values if left else values + padding

    ids = torch.tensor([pad(row.ids, _pad_id(request)) for row in rows], dtype=torch.int64)
    mask = torch.tensor([pad([1] * len(row.ids), 0) for row in rows], dtype=torch.int64)
    filler = {"token_type_ids": getattr(tokenizer, "pad_token_type_id", 0)}
    beside = {
        name: torch.tensor([pad(row.beside[name], filler.get(name, 0)) for row in rows], dtype=torch.int64)
        for name in rows[0].beside
    }
    return ids, mask, beside


def _pad_id(request: SampleRequest) -> int:
    """The padding id: the tokenizer's, the config's, the end token, or 0."""
    tokenizer = request.tokenizer
    named = [getattr(tokenizer, "pad_token_id", None), request.find("pad_token_id", parts=TEXT_PARTS)]
    named += [getattr(tokenizer, "eos_token_id", None), request.find("eos_token_id", parts=TEXT_PARTS)]
    return next((token for token in named if isinstance(token, int) and 0 <= token < vocabulary(request)), 0)


def _modality_of(ids: torch.Tensor, kinds: dict[int, int]) -> torch.Tensor:
    """0 for text, 1 for image and 2 for video placeholders, 3 for audio."""
    found = torch.zeros_like(ids)
    for token, kind in kinds.items():
        found[ids == token] = kind
    return found
