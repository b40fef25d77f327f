# SPDX-License-Identifier: Apache-2.0
"""What stands beside the weights: tokenizer, processor, and the files of a sentence-transformers folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .source import Source

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "tekken.json",
    "chat_template.jinja",
)

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")

#: Files of a sentence-transformers folder beside its modules.
SENTENCE_FILES = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")
#: What a module's own folder (``1_Pooling``, ``2_Dense``) may hold.
_MODULE_FILES = ("config.json", "model.safetensors", "pytorch_model.bin")

#: Files that tell nothing about whether there is a tokenizer at all.
_NOT_A_VOCABULARY = frozenset({"special_tokens_map.json", "added_tokens.json", "chat_template.jinja"})


@dataclass
class Assets:
    """Tokenizer and processor (None when there is none, or it cannot be loaded: then ``notes`` says why)."""

    tokenizer: Any | None = None
    processor: Any | None = None
    extra_files: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_assets(source: Source) -> Assets:
    """Load what a model folder holds beside its weights.

    A tokenizer or processor that is there but cannot be loaded (it may need an optional package such as torchvision) is
    no error: its files go to ``extra_files``, so that they can still be copied, and a line to ``notes``.
    """
    from transformers import AutoProcessor, AutoTokenizer, PreTrainedTokenizerBase

    assets = Assets(extra_files=dict(_sentence_files(source)))
    if source.gguf_file or _any(source, (name for name in TOKENIZER_FILES if name not in _NOT_A_VOCABULARY)):
        assets.tokenizer = _load("tokenizer", AutoTokenizer.from_pretrained, TOKENIZER_FILES, source, assets)
    if source.gguf_file is None and _any(source, PROCESSOR_FILES):
        found = _load("processor", AutoProcessor.from_pretrained, PROCESSOR_FILES, source, assets)
        assets.processor = None if isinstance(found, PreTrainedTokenizerBase) else found
    if assets.tokenizer is None:
        assets.tokenizer = getattr(assets.processor, "tokenizer", None)
    return assets


def _load(what: str, load: Callable[..., Any], files: Iterable[str], source: Source, assets: Assets) -> Any | None:
    try:
        return load(source.name, **source.loading_arguments())
    except Exception as error:  # noqa: BLE001 (a broken tokenizer.json raises a bare Exception)
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        assets.notes.append(f"The {what} cannot be loaded, its files are copied as they are: {reason}")
        assets.extra_files.update({name: path for name in files if (path := source.file(name))})
        return None


def _any(source: Source, names: Iterable[str]) -> bool:
    return any(source.file(name) is not None for name in names)


def _sentence_files(source: Source) -> Iterator[tuple[str, Path]]:
    """Relative name and local path of each file that sentence-transformers needs beside the Transformers model."""
    modules = source.file(SENTENCE_FILES[0])
    if modules is None:
        return
    folders = [entry.get("path", "") for entry in json.loads(modules.read_text(encoding="utf-8"))]
    inner = [f"{folder}/{name}" for folder in folders if folder for name in _MODULE_FILES]
    for name in (*SENTENCE_FILES, *inner):
        path = source.file(name)
        if path is not None:
            yield name, path
