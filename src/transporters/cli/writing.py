# SPDX-License-Identifier: Apache-2.0
"""Texts continued, or rewritten by a decoder behind an encoder, in batches; the tokenizer is checked to be theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

_SPECIAL = ("bos_token_id", "eos_token_id")  # padding is masked, so any token will do for it

#: Tokenizers say "no limit" with a number like this.
_NO_LIMIT = 10**6


def continuations(
    exported: ExportedModel, directory: Path, texts: list[str], *, max_new_tokens: int, chat: bool
) -> list[dict[str, Any]]:
    """The likeliest continuation of each text, all of them in one batch.

    The batch is padded on the left, and on the tokenizer's own side for an encoder. A program with its cache inside
    gets one text after the other.

    Args:
        exported: A decoder with its cache, or an encoder and such a decoder.
        directory: The artifact's folder, for its tokenizer.
        texts: Prompts, or with ``chat`` what a user says.
        max_new_tokens: Longest continuation.
        chat: Whether to put each text into the tokenizer's chat template.

    Returns:
        Per text ``text``, ``ids`` (the new ones, with the one that ended the text) and ``continuation``.

    Raises:
        UsageError: The folder has no tokenizer, or one of another model, or there is no chat template, or the model
            does not take text.
        RunError: The runtime refuses a step.
    """
    from .program import load_tokenizer

    encoder = exported.parts.get("encoder")
    if encoder is not None and "input_ids" not in encoder.sample_inputs:
        raise UsageError(
            f"the encoder takes {', '.join(encoder.sample_inputs)}, which a text does not give",
            advice="run it from Python: ExportedModel.load(DIR).generate(…)",
        )
    tokenizer = load_tokenizer(directory)
    check_tokenizer(tokenizer, exported)
    given = [_as_chat(tokenizer, text) if chat else text for text in texts]
    # A cache inside of the program has room for one text.
    batches = [[text] for text in given] if _context(exported) is not None else [given]
    rows = [row for batch in batches for row in _batch(exported, tokenizer, batch, max_new_tokens, chat)]
    return [
        {"text": text, "ids": row, "continuation": tokenizer.decode(row, skip_special_tokens=True)}
        for text, row in zip(texts, rows, strict=True)
    ]


def _batch(exported: ExportedModel, tokenizer: Any, texts: list[str], wanted: int, chat: bool) -> list[list[int]]:
    """The new ids of each text."""
    alone = "encoder" not in exported.parts
    encoded = tokenizer(
        texts,
        padding=len(texts) > 1,
        padding_side="left" if alone else tokenizer.padding_side,
        add_special_tokens=not chat,  # the template has written them
        return_tensors="pt",
    )
    given = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    return continue_rows(exported, tokenizer, given, wanted)


def continue_rows(exported: ExportedModel, tokenizer: Any, given: dict[str, Any], wanted: int) -> list[list[int]]:
    """The new ids of each row, by greedy search.

    Args:
        exported: A decoder with its cache.
        tokenizer: The model's.
        given: ``input_ids`` and ``attention_mask`` ``(rows, length)``, and what the model takes beside them.
        wanted: The most new ids.
    """
    alone = "encoder" not in exported.parts
    ids = given["input_ids"]
    ends = stop_ids(exported) or _ids(tokenizer.eos_token_id)
    found = exported.generate(
        **given,
        max_new_tokens=_room(ids.shape[1], wanted, tokenizer, exported),
        do_sample=False,
        num_beams=1,
        eos_token_id=sorted(ends) or None,
        pad_token_id=tokenizer.pad_token_id or 0,
    )
    first = ids.shape[1] if alone else 1  # a decoder behind an encoder begins from one id of its own
    return [_until(row, ends) for row in found[:, first:].tolist()]


def _context(exported: ExportedModel) -> int | None:
    """How many tokens a cache inside of the program holds."""
    found: int | None = (exported.cache_contract or {}).get("context")
    return found


def check_tokenizer(tokenizer: Any, exported: ExportedModel) -> None:
    """Refuse the tokenizer of another model.

    Raises:
        UsageError: When it has more entries than the model has embeddings, or other special ids than its config.
    """
    config = exported.model_config.get_text_config()
    advice = "put the tokenizer of the exported model into the folder, or export again"
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= config.vocab_size:
        raise UsageError(
            f"the tokenizer is another model's: its ids go up to {largest} for {config.vocab_size} embeddings",
            advice=advice,
        )
    for name in _SPECIAL:
        own = getattr(tokenizer, name, None)
        known = _ids(getattr(exported.generation_config, name, None)) | _ids(getattr(config, name, None))
        if own is not None and known and own not in known:
            listed = ", ".join(map(str, sorted(known)))
            raise UsageError(
                f"the tokenizer is another model's: its {name} is {own}, the model's configuration says {listed}",
                advice=advice,
            )


def _room(length: int, wanted: int, tokenizer: Any, exported: ExportedModel) -> int:
    """How many tokens to write after ``length`` ones, within what tokenizer and model say that a text may have."""
    alone, context = "encoder" not in exported.parts, _context(exported)
    if context is not None and not alone:  # the id that the decoder begins with takes a place
        wanted = min(wanted, context - 1)
    limits = (
        getattr(tokenizer, "model_max_length", None),
        getattr(exported.model_config.get_text_config(), "max_position_embeddings", None),
        context if alone else None,
    )
    longest = min((limit for limit in limits if limit is not None and 0 < limit < _NO_LIMIT), default=None)
    if not length:
        raise UsageError("there is no token to begin from", advice="give a --text with something in it")
    if longest is None:
        return wanted
    if not alone:  # what is written does not stand after the text
        written, room = "", length <= longest
    else:
        written, room = " with what it writes", length < longest
    if not room:
        raise UsageError(f"the text has {length} tokens and the model takes {longest}{written}", advice="shorten it")
    return min(wanted, int(longest) - (length if alone else 1))


def stop_ids(exported: ExportedModel) -> set[int]:
    """Ids that end a text, as ``generate`` takes them from the model's configuration."""
    generation = exported.generation_config
    found = getattr(generation, "eos_token_id", None) if generation is not None else None
    return _ids(found if found is not None else getattr(exported.model_config, "eos_token_id", None))


def _as_chat(tokenizer: Any, text: str) -> str:
    if not tokenizer.chat_template:
        raise UsageError("the tokenizer has no chat template", advice="leave --chat out")
    messages = [{"role": "user", "content": text}]
    written: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return written


def _until(ids: list[int], ends: set[int]) -> list[int]:
    """Up to and with the first id that ends a text; what follows in a batch is padding."""
    last = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return ids[: last + 1]


def _ids(found: Any) -> set[int]:
    return set() if found is None else {found} if isinstance(found, int) else set(found)
