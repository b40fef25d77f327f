# SPDX-License-Identifier: Apache-2.0
"""The last word on a decoder: it generates, step by step with its cache, and the ids must be those of eager.

An encoder gets its texts padded on the right, as its tokenizers do, and a decoder without one on the left. A model that
reads pictures gets one in each text.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationMixin

from ..errors import RunError
from ..exporters.tracing import preserved_state
from ..inputs.samples import sample_inputs
from . import compare
from .report import OutputCheck, Variation

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

NAME = "greedy generation"
STEPS = 12

#: Lengths of the two texts; the shorter one is padded.
_LENGTHS = (5, 7)


def generation(
    exported: ExportedModel, model: Any, given: dict[str, torch.Tensor], noise: dict[str, float]
) -> Variation:
    """Generate from two texts of different length, by the program and by eager.

    Args:
        exported: A decoder with its cache.
        model: The eager model.
        given: What `prompts` gave.
        noise: Eager's own relative noise by output, for ties: an id may differ only where eager's scores of both ids
            are equal within the tolerance of ``logits``.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
    pad = given["input_ids"][0, 0].item() if "input_ids" in given else 0
    settings = {"max_new_tokens": STEPS, "do_sample": False, "num_beams": 1, "eos_token_id": None, "pad_token_id": pad}
    if _has_encoder(exported) and not _has_start(exported.generation_config):
        settings["decoder_start_token_id"] = pad
    more = {"return_dict_in_generate": True, "output_logits": True}
    try:
        with torch.no_grad(), preserved_state(model):
            on_device = {name: tensor.to(model.device) for name, tensor in given.items()}
            expected = GenerationMixin.generate(model, **on_device, **settings, **more)  # a model's own does more
    except Exception as error:  # noqa: BLE001  whatever eager refuses is no demand on the program
        text = f"eager refuses to generate: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Variation(NAME, "not applicable", shapes, detail=text)
    start = time.perf_counter()
    try:
        actual = exported.generate(**given, **settings)
    except RunError as error:
        return Variation(NAME, "run error", shapes, detail=str(error))
    check = _check(_new(actual), _new(expected.sequences), torch.stack(expected.logits, dim=1).cpu(), noise)
    seconds = time.perf_counter() - start
    detail = _detail(check, _texts(exported, given))
    return Variation(NAME, "verified" if check.passed else "mismatch", shapes, (check,), detail, seconds)


def prompts(exported: ExportedModel, model: Any) -> dict[str, torch.Tensor]:
    """What to write from: two texts out of the sample's ids, ``(2, 7)``, the first padded; two rows of other inputs.

    A program of one text gets the second, or behind an encoder, which takes padding, the first. Texts with pictures are
    as long as these make them.

    Args:
        exported: A decoder with its cache.
        model: The eager model.
    """
    if reads_pictures(exported):
        return _with_pictures(exported, model)
    short, long = _LENGTHS
    takes_them = exported.parts.get("encoder", exported)
    rows = slice(None)
    if is_of_one_text(exported):
        rows = slice(1) if _has_encoder(exported) else slice(1, None)
    name = "tokens" if "tokens" in takes_them.sample_inputs else "input_ids"
    if name not in takes_them.sample_inputs:
        given = takes_them.sample_inputs.items()
        pairs = {name: tensor.detach().cpu()[torch.arange(2) % tensor.shape[0]] for name, tensor in given}
        return {name: torch.cat([tensor[:1] * 0.75, tensor[1:]])[rows] for name, tensor in pairs.items()}
    ids = takes_them.sample_inputs[name].detach().cpu().reshape(-1)
    ids = ids.repeat(long // len(ids) + 1)[:long]
    mask = torch.ones(2, long, dtype=torch.int64)
    mask[0, slice(short, None) if _has_encoder(exported) else slice(long - short)] = 0
    return {"input_ids": torch.stack([ids.flip(0), ids])[rows], "attention_mask": mask[rows]}


def _with_pictures(exported: ExportedModel, model: Any) -> dict[str, torch.Tensor]:
    """Two texts with a picture in each, the first padded on the left."""
    sample = {name: value for name, value in sample_inputs(model).items() if isinstance(value, torch.Tensor)}
    pictures = (exported.cache_contract or {})["pictures"]
    ids = sample["input_ids"].detach().cpu()
    sample.setdefault("attention_mask", torch.ones_like(ids))
    if pictures["types"] is not None:
        sample[pictures["types"]] = (ids == pictures["token"]).long()
    missing = max(_LENGTHS) - min(_LENGTHS)
    words = ids[:, -missing:].flip(1)
    before = {"input_ids": words, "attention_mask": torch.tensor([[0], [1]]).expand(-1, missing)}
    given = {}
    for name, value in sample.items():
        value = value.detach().cpu()
        if value.shape == ids.shape:
            more = before.get(name, torch.zeros_like(words))
            value = torch.cat([more.to(value.dtype), value], dim=1)
        given[name] = value
    return given


def reads_pictures(exported: ExportedModel) -> bool:
    """Whether the program is a decoder behind embeddings, among which are those of pictures."""
    return "pictures" in (exported.cache_contract or {})


def _has_encoder(exported: ExportedModel) -> bool:
    return "encoder" in exported.parts


def is_of_one_text(exported: ExportedModel) -> bool:
    """Whether the cache lies inside of the program, which then has room for a single text."""
    return "context" in (exported.cache_contract or {})


def no_room(exported: ExportedModel) -> str:
    """Why a cache inside of the program cannot hold what is generated here; empty where it can."""
    context = (exported.cache_contract or {}).get("context")
    wanted = (1 if _has_encoder(exported) else max(_LENGTHS)) + STEPS
    return f"the program's cache holds {context} of {wanted} tokens" if context is not None and context < wanted else ""


def _has_start(config: Any) -> bool:
    """Whether a generation config says what a decoder behind an encoder begins with."""
    return any(getattr(config, name, None) is not None for name in ("decoder_start_token_id", "bos_token_id"))


def _texts(exported: ExportedModel, given: dict[str, torch.Tensor]) -> str:
    if "input_ids" not in given:
        return f"{'a row' if is_of_one_text(exported) else 'two rows'} of {', '.join(given)}"
    if is_of_one_text(exported) and _has_encoder(exported):
        return f"a text of {_LENGTHS[0]} tokens, padded on the right to {_LENGTHS[1]}"
    if is_of_one_text(exported):
        return f"a text of {_LENGTHS[1]} tokens"
    if reads_pictures(exported):
        return "two texts with a picture in each, in one batch, padded on the left"
    side = "right" if _has_encoder(exported) else "left"
    return f"texts of {_LENGTHS[0]} and {_LENGTHS[1]} tokens in one batch, padded on the {side}"


def _new(sequences: torch.Tensor) -> torch.Tensor:
    return sequences[:, -STEPS:].cpu()


def _check(actual: torch.Tensor, expected: torch.Tensor, logits: torch.Tensor, noise: dict[str, float]) -> OutputCheck:
    """One check of all new ids ``(rows, steps)``; after a row's first other id its text is another: not compared."""
    if actual.shape == expected.shape:
        apart = (actual != expected).long().cumsum(dim=1)
        actual = torch.where(apart.cumsum(dim=1) > 1, expected, actual)
    found = compare.compare({"ids": actual, "logits": logits}, {"ids": expected, "logits": logits}, noise)
    return next(check for check in found if check.name == "ids")


def _detail(check: OutputCheck, given: str) -> str:
    texts = f"{STEPS} new ids for {given}"
    if check.passed:
        return f"{texts}: {'eager has the same' if check.verdict == 'equal' else check.detail}"
    return f"{texts}: {check.detail}"
