# SPDX-License-Identifier: Apache-2.0
"""``transporters run``: text goes in, with pictures for some, and what the model is for comes out, from the saved
program alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from .console import Screen, session
from .files import check_artifact
from .options import Artifact, AsJson, Verbose

if TYPE_CHECKING:
    from rich.table import Table

    from .program import TextProgram

Row = dict[str, Any]
_SHOWN_LABELS = 3
_SHOWN_VALUES = 5
_SHOWN_LETTERS = 400


def run(
    directory: Artifact,
    text: Annotated[
        list[str], typer.Option("--text", metavar="TEXT", help="Text to run. Repeatable: all texts are one batch.")
    ],
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="FILE", help="Picture for the text. Repeatable: all go with the one text."),
    ] = None,
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", metavar="N", min=1, help="Longest continuation, for models that write text."),
    ] = 20,
    chat: Annotated[bool, typer.Option("--chat", help="Put each text into the tokenizer's chat template.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run the artifact in DIR in its runtime on text: embeddings, a continuation, labels, or the plain outputs."""
    with session(as_json=as_json, verbose=verbose) as screen:
        _carry_out(directory, text, image or [], max_new_tokens, chat, screen)


def _carry_out(
    directory: Path, texts: list[str], images: list[Path], max_new_tokens: int, chat: bool, screen: Screen
) -> None:
    check_artifact(directory)
    if images and len(texts) > 1:
        raise UsageError(f"--image is for one text, not for {len(texts)}", advice="run the texts one after the other")
    with screen.step("Load libraries"):
        from .. import ExportedModel
        from .picturing import continuation
        from .program import TextProgram
        from .writing import continuations
    with screen.step("Load artifact"):
        exported = ExportedModel.load(directory)
    task = str(exported.manifest.get("task") or "")
    if images:
        with screen.step("Run"):
            settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "chat": chat}
            rows = continuation(exported, directory, texts[0], images, **settings)
        _show(rows, task, directory, screen)
        return
    if exported.cache_contract is not None:
        with screen.step("Run"):
            rows = continuations(exported, directory, texts, max_new_tokens=max_new_tokens, chat=chat)
        _show(rows, task, directory, screen)
        return
    if chat:
        raise UsageError("--chat is for text generation with a cache", advice="leave it out, or export again")
    with screen.step("Run"):
        program = TextProgram.from_artifact(exported, directory)
        rows = run_task(program, task, texts, directory, max_new_tokens)
    for text, limit in program.cut.items():
        screen.say(f"! cut at {limit} tokens: {text[:60]}…", "yellow")
    _show(rows, task, directory, screen)


def _show(rows: list[Row], task: str, directory: Path, screen: Screen) -> None:
    payload = {"status": "ok", "artifact": str(directory), "task": task, "results": rows}
    screen.result(payload, _table(rows))


def run_task(program: TextProgram, task: str, texts: list[str], directory: Path, max_new_tokens: int) -> list[Row]:
    """One row per text, except for models without a text task: those give one row per output.

    Args:
        program: The program and its tokenizer.
        task: The artifact's task.
        texts: What to run.
        directory: The artifact's folder, for its recipe and configuration.
        max_new_tokens: Longest continuation of a model that writes.
    """
    if task in ("text-generation", "text2text-generation"):
        write = _writer(program, task, directory, max_new_tokens)
        return [{"text": text, "continuation": write(text)} for text in texts]
    rows: list[Row] = []
    for batch in program.batches(texts):
        outputs, given = program.run(program.encode(batch))
        rows += _results(outputs, given, task, batch, program, directory)
    return rows


def _results(
    outputs: Any, given: dict[str, Any], task: str, texts: list[str], program: TextProgram, directory: Path
) -> list[Row]:
    if task == "feature-extraction" and getattr(outputs, "last_hidden_state", None) is not None:
        return _embeddings(outputs.last_hidden_state, given["attention_mask"], texts, directory)
    if task == "text-classification":
        return _labels(outputs.logits, texts, directory)
    if task == "token-classification":
        return _tags(outputs.logits, given, texts, program, directory)
    if task == "fill-mask":
        return _fillings(outputs.logits, given, texts, program)
    return _plain(outputs)


def _embeddings(hidden: Any, mask: Any, texts: list[str], directory: Path) -> list[Row]:
    from .text_tasks import pool, read_pooling

    vectors = pool(hidden, mask, read_pooling(directory))[: len(texts)].tolist()
    tokens = mask.sum(dim=1).tolist()
    return [
        {"text": text, "tokens": count, "width": len(vector), "embedding": vector}
        for text, vector, count in zip(texts, vectors, tokens)
    ]


def _labels(logits: Any, texts: list[str], directory: Path) -> list[Row]:
    from .text_tasks import ranked

    config = _config(directory)
    independent = getattr(config, "problem_type", None) == "multi_label_classification"
    return [
        {"text": text, "labels": _scored(ranked(scores, config.id2label or {}, independent=independent))}
        for text, scores in zip(texts, logits)
    ]


def _tags(logits: Any, given: dict[str, Any], texts: list[str], program: TextProgram, directory: Path) -> list[Row]:
    from .text_tasks import ranked

    labels = _config(directory).id2label or {}
    rows = []
    for text, scores, ids, mask in zip(texts, logits, given["input_ids"], given["attention_mask"]):
        tokens = program.tokenizer.convert_ids_to_tokens(ids[mask.bool()].tolist())
        best = [ranked(row, labels)[0][0] for row in scores[mask.bool()]]
        rows.append({"text": text, "tags": [{"token": token, "label": label} for token, label in zip(tokens, best)]})
    return rows


def _fillings(logits: Any, given: dict[str, Any], texts: list[str], program: TextProgram) -> list[Row]:
    mask_token, rows = program.tokenizer.mask_token, []
    for text, scores, ids in zip(texts, logits, given["input_ids"]):
        places = (ids == program.tokenizer.mask_token_id).nonzero().flatten().tolist()
        if not places:
            raise UsageError(
                f"the text has no {mask_token} to fill: {text}", advice=f"put {mask_token} in the place of a word"
            )
        best = scores[places[0]].float().softmax(dim=0).topk(_SHOWN_VALUES)
        words = [program.tokenizer.decode([index]).strip() for index in best.indices.tolist()]
        rows.append({"text": text, "fillings": _scored(list(zip(words, best.values.tolist())))})
    return rows


def _scored(pairs: list[tuple[str, float]]) -> list[Row]:
    return [{"label": label, "score": score} for label, score in pairs]


def _plain(outputs: Any) -> list[Row]:
    from ..trees.pytrees import named_leaves
    from .text_tasks import preview

    tensors = [(name, value) for name, value in named_leaves(dict(outputs)) if hasattr(value, "shape")]
    return [
        {"output": name, "shape": list(value.shape), "dtype": str(value.dtype).split(".")[-1], "first": preview(value)}
        for name, value in tensors
    ]


def _writer(program: TextProgram, task: str, directory: Path, max_new_tokens: int) -> Callable[[str], str]:
    """A function from a text to its greedy continuation; the whole text is run again for every token."""
    import torch

    from .text_tasks import greedy

    config = _config(directory)
    stop = _stop_ids(program.tokenizer, config, directory)
    room = program.sizes.limit

    def write(text: str) -> str:
        encoded = program.encode([text])
        if task == "text2text-generation":
            first = [config.decoder_start_token_id or 0]

            def score(ids: list[int]) -> torch.Tensor:
                outputs, _ = program.run(encoded, decoder_input_ids=torch.tensor([ids]))
                return torch.as_tensor(outputs.logits[0, -1])
        else:
            first = encoded["input_ids"][0].tolist()

            def score(ids: list[int]) -> torch.Tensor:
                row = torch.tensor([ids])
                outputs, _ = program.run({"input_ids": row, "attention_mask": torch.ones_like(row)})
                return torch.as_tensor(outputs.logits[0, len(ids) - 1])

        steps = max_new_tokens if room is None else min(max_new_tokens, max(0, room - len(first)))
        written: str = program.tokenizer.decode(greedy(score, first, steps=steps, stop=stop), skip_special_tokens=True)
        return written

    return write


def _stop_ids(tokenizer: Any, config: Any, directory: Path) -> set[int]:
    """Every id that ends a text, from the generation config, the config and the tokenizer."""
    from transformers import GenerationConfig

    found = [tokenizer.eos_token_id, getattr(config, "eos_token_id", None)]
    if (directory / "generation_config.json").is_file():
        found.append(GenerationConfig.from_pretrained(directory).eos_token_id)
    ids: set[int] = set()
    for entry in found:
        ids.update(entry if isinstance(entry, list) else [] if entry is None else [entry])
    return ids


def _config(directory: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(directory, local_files_only=True)


def _table(rows: list[Row]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    rows = [{name: value for name, value in row.items() if name != "ids"} for row in rows]  # of ids there is the text
    for name in rows[0] if rows else ():
        table.add_column(name.capitalize(), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    """A value as a table shows it: long texts cut, vectors by their first numbers, labels by the likeliest."""
    if not isinstance(value, list):
        text = str(value)
        return text if len(text) <= _SHOWN_LETTERS else f"{text[: _SHOWN_LETTERS - 1]}…"
    if value and isinstance(value[0], dict):
        if "score" in value[0]:
            return "  ".join(f"{entry['label']} {entry['score']:.3f}" for entry in value[:_SHOWN_LABELS])
        return "  ".join(f"{entry['token']}/{entry['label']}" for entry in value)
    shown = ", ".join(f"{item:.4f}" if isinstance(item, float) else str(item) for item in value[:_SHOWN_VALUES])
    return f"{shown}, …" if len(value) > _SHOWN_VALUES else shown
