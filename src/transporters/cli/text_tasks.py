# SPDX-License-Identifier: Apache-2.0
"""From texts to a model's inputs, and from its outputs to what a person asked for. Pure functions on tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArtifactError, UsageError

_POOLING_KEYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_EMBEDDING_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class Pooling:
    """How token vectors become one vector: ``mode`` is "mean", "cls", "max" or "last"."""

    mode: str = "mean"
    normalize: bool = True


def read_pooling(directory: Path) -> Pooling:
    """The sentence-transformers recipe saved with a model; mean and L2 norm when there is none.

    Args:
        directory: Folder with ``modules.json`` and ``1_Pooling/config.json``, or without them.

    Raises:
        UsageError: When the recipe has a step that is not supported, since the vector would be a wrong one.
        ArtifactError: When a file of the recipe is damaged.
    """
    listing = directory / "modules.json"
    if not listing.is_file():
        return Pooling(_pooling_mode(directory / "1_Pooling" / "config.json"))
    modules = [(str(row["type"]).rsplit(".", 1)[-1], str(row["path"])) for row in _read_json(listing)]
    if foreign := [kind for kind, _ in modules if kind not in _EMBEDDING_MODULES]:
        raise UsageError(
            f"the embedding recipe in {listing.name} has a step that is not supported: {foreign[0]}",
            advice="run the program from Python and apply the recipe there",
        )
    places = [path for kind, path in modules if kind == "Pooling"]
    mode = _pooling_mode(directory / places[0] / "config.json") if places else "mean"
    return Pooling(mode, normalize=any(kind == "Normalize" for kind, _ in modules))


def _pooling_mode(path: Path) -> str:
    if not path.is_file():
        return "mean"
    config = _read_json(path)
    wanted = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if isinstance(config.get("pooling_mode"), str):
        wanted.append(f"pooling_mode_{config['pooling_mode']}")
        names = {**_POOLING_KEYS, **{f"pooling_mode_{mode}": mode for mode in _POOLING_KEYS.values()}}
    else:
        names = _POOLING_KEYS
    modes = [names.get(key) for key in wanted]
    if len(modes) == 1 and modes[0] is not None:
        return modes[0]
    raise UsageError(
        f"the pooling in {path.parent.name}/{path.name} is not supported: {', '.join(wanted) or 'none'}",
        advice="run the program from Python and pool its outputs there",
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{path} is not valid JSON: {error}", advice="export the model again") from error


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """One vector per row.

    Args:
        hidden: Token vectors, float, ``[rows, length, width]``.
        mask: 1 for a token and 0 for padding, ``[rows, length]``.
        pooling: The recipe.

    Returns:
        float32 ``[rows, width]``.
    """
    hidden = hidden.float()
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    rows = torch.arange(hidden.shape[0])
    if pooling.mode == "mean":
        vector = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
    elif pooling.mode == "max":
        vector = hidden.masked_fill(weight == 0, float("-inf")).max(dim=1).values
    elif pooling.mode == "cls":
        vector = hidden[rows, mask.long().argmax(dim=1)]
    else:
        positions = torch.arange(mask.shape[1]) * mask.long()
        vector = hidden[rows, positions.argmax(dim=1)]
    return torch.nn.functional.normalize(vector, dim=1) if pooling.normalize else vector


def fit(inputs: Mapping[str, Tensor], *, batch: int | None, length: int | None, pad_id: int) -> dict[str, Tensor]:
    """Bring token inputs to the sizes that a static program takes.

    Args:
        inputs: Integer tensors ``[rows, tokens]`` with at most ``batch`` rows and ``length`` tokens.
        batch: Rows that the program takes; None when any number will do. The last row is repeated.
        length: Tokens that the program takes; None when any number will do. Padding goes to the right.
        pad_id: Token id of the padding; every other input is padded with 0.
    """
    fitted = {}
    for name, value in inputs.items():
        if length is not None and value.shape[1] < length:
            filler = pad_id if name == "input_ids" else 0
            value = torch.nn.functional.pad(value, (0, length - value.shape[1]), value=filler)
        if batch is not None and value.shape[0] < batch:
            value = torch.cat([value, value[-1:].expand(batch - value.shape[0], -1)])
        fitted[name] = value
    return fitted


def greedy(logits: Callable[[list[int]], Tensor], start: list[int], *, steps: int, stop: Iterable[int]) -> list[int]:
    """Continue a sequence with the likeliest token at each step.

    Args:
        logits: Scores ``[vocabulary]`` of the token that follows the ids it is given.
        start: The prompt's ids.
        steps: At most this many new tokens.
        stop: Ids that end the text; they are not part of the result.

    Returns:
        The new ids.
    """
    ends = frozenset(stop)
    ids = list(start)
    for _ in range(steps):
        token = int(logits(ids).argmax())
        if token in ends:
            break
        ids.append(token)
    return ids[len(start) :]


def ranked(scores: Tensor, labels: Mapping[int, str], *, independent: bool = False) -> list[tuple[str, float]]:
    """Labels with their probabilities, likeliest first.

    Args:
        scores: Logits of one text, ``[labels]``.
        labels: Index to name; an index without one is named ``LABEL_<index>``.
        independent: Each label is a yes or no of its own (sigmoid); otherwise they exclude each other (softmax).
            A single score is a regression's value and stays as it is.
    """
    scores = scores.float()
    if scores.numel() > 1:
        scores = scores.sigmoid() if independent else scores.softmax(dim=0)
    pairs = [(labels.get(index, f"LABEL_{index}"), score) for index, score in enumerate(scores.tolist())]
    return sorted(pairs, key=lambda pair: -pair[1])


def preview(value: Tensor, count: int = 5) -> list[float | int | bool]:
    """The first values of a tensor in its own order."""
    first = value.reshape(-1)[:count]
    values: list[float | int | bool] = (first.float() if first.is_floating_point() else first).tolist()
    return values
