# SPDX-License-Identifier: Apache-2.0
"""A saved program that takes text: its tokenizer, the inputs it wants, and the sizes it takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, ones_like, zeros_like

from ..errors import ArtifactError, UsageError
from .text_tasks import fit

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

#: Tokenizers say "no limit" with a number like this.
_NO_LIMIT = 10**6
#: One of these is always written with a tokenizer.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Sizes:
    """What a program takes.

    Attributes:
        batch: The number of rows, when that axis is static.
        length: The number of tokens, when that axis is static.
        limit: The most tokens that a text may have; None when nothing says.
        rows: The most rows that it takes at once, when that axis is dynamic and bounded.
    """

    batch: int | None = None
    length: int | None = None
    limit: int | None = None
    rows: int | None = None


@dataclass
class TextProgram:
    """Runs texts through a program.

    Attributes:
        call: The program; takes its inputs by name.
        names: The inputs that it takes.
        tokenizer: The tokenizer saved beside it.
        sizes: The sizes that it takes.
        cut: Texts that were longer than the program takes, and how many tokens are left of them.
    """

    call: Callable[..., Any]
    names: frozenset[str]
    tokenizer: Any
    sizes: Sizes
    cut: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_artifact(cls, exported: ExportedModel, directory: Path) -> TextProgram:
        """The program, the tokenizer and the limits in an artifact's folder."""
        tokenizer = load_tokenizer(directory)
        axes = exported.contract.to_dict()
        return cls(exported, frozenset(exported.sample_inputs), tokenizer, read_sizes(axes, tokenizer, directory))

    def batches(self, texts: list[str]) -> Iterator[list[str]]:
        """The texts in groups that the program can take at once."""
        step = self.sizes.batch or self.sizes.rows or len(texts)
        for start in range(0, len(texts), step):
            yield texts[start : start + step]

    def encode(self, texts: list[str]) -> dict[str, Tensor]:
        """Token inputs ``[rows, tokens]``; a text that is too long is cut, and noted in `cut`."""
        limit = self.sizes.limit
        encoded = dict(self.tokenizer(texts, padding=len(texts) > 1, truncation=False, return_tensors="pt"))
        if limit is not None and encoded["input_ids"].shape[1] > limit:
            counted = encoded.get("attention_mask", ones_like(encoded["input_ids"])).sum(dim=1)
            self.cut.update({text: limit for text, count in zip(texts, counted.tolist()) if count > limit})
            encoded = dict(
                self.tokenizer(texts, padding=len(texts) > 1, truncation=True, max_length=limit, return_tensors="pt")
            )
        encoded.setdefault("attention_mask", ones_like(encoded["input_ids"]))
        return encoded

    def run(self, encoded: Mapping[str, Tensor], **others: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The program's outputs, and the inputs as it got them (padded and repeated when its sizes are fixed).

        Args:
            encoded: What `encode` gave, or part of it.
            others: Inputs that do not come from the tokenizer.

        Raises:
            UsageError: When the program wants inputs that a text does not give.
        """
        pad_id = self.tokenizer.pad_token_id or 0
        given = fit(encoded, batch=self.sizes.batch, length=self.sizes.length, pad_id=pad_id)
        given.update(fit(others, batch=self.sizes.batch, length=None, pad_id=pad_id))
        if "position_ids" in self.names:
            given["position_ids"] = (given["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
        if "token_type_ids" in self.names:
            given.setdefault("token_type_ids", zeros_like(given["input_ids"]))
        if missing := sorted(self.names - set(given)):
            raise UsageError(
                f"the program needs inputs that a text does not give: {', '.join(missing)}",
                advice="run it from Python: ExportedModel.load(DIR)(…)",
            )
        return self.call(**{name: given[name] for name in self.names}), given


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer saved in an artifact's folder.

    Raises:
        UsageError: When there is none, so that the program cannot take text.
    """
    from transformers import AutoTokenizer

    advice = "run it from Python: ExportedModel.load(DIR)(…)"
    # With a config.json alone Transformers makes a tokenizer without a vocabulary, and every text would be unknown.
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        raise UsageError(f"{directory} holds no tokenizer, so it does not take text", advice=advice)
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"the tokenizer in {directory} cannot be loaded: {error}", advice=advice) from error
    if tokenizer.pad_token is None:  # padding is masked, so any token will do
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def read_sizes(axes: list[dict[str, Any]], tokenizer: Any, directory: Path) -> Sizes:
    """The sizes that a program takes, from its shape contract and its tokenizer's and recipe's own limits."""
    by_index = {axis["index"]: axis for axis in axes if axis["input"] == "input_ids"}
    fixed = {index: axis["size"] for index, axis in by_index.items() if not axis["dynamic"]}
    limits = [fixed.get(1), by_index.get(1, {}).get("maximum"), _recipe_limit(directory)]
    longest = getattr(tokenizer, "model_max_length", None)
    if longest is not None and longest < _NO_LIMIT:
        limits.append(int(longest))
    known = [limit for limit in limits if limit is not None]
    rows = by_index.get(0, {}).get("maximum")
    return Sizes(fixed.get(0), fixed.get(1), min(known) if known else None, rows)


def _recipe_limit(directory: Path) -> int | None:
    """``max_seq_length`` of a sentence-transformers folder."""
    path = directory / "sentence_bert_config.json"
    if not path.is_file():
        return None
    try:
        limit = json.loads(path.read_text(encoding="utf-8")).get("max_seq_length")
    except ValueError as error:
        raise ArtifactError(f"{path} is not valid JSON: {error}", advice="export the model again") from error
    return int(limit) if limit is not None else None
