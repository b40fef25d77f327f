# SPDX-License-Identifier: Apache-2.0
"""A text with pictures continued: the processor in the artifact's folder makes the model's inputs of both."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UsageError
from ..trees import containers
from .writing import check_tokenizer, continue_rows

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel

_ADVICE = "run it from Python: ExportedModel.load(DIR).generate(…)"


def continuation(
    exported: ExportedModel, directory: Path, text: str, files: list[Path], *, max_new_tokens: int, chat: bool
) -> list[dict[str, Any]]:
    """The likeliest continuation of a text with pictures, as `writing.continuations` gives it.

    Args:
        exported: A decoder with its cache, behind a vision encoder.
        directory: The artifact's folder, for its processor.
        text: What is asked. Pictures whose token is not in it stand before it, in order.
        files: The pictures.
        max_new_tokens: Longest continuation.
        chat: Whether to put the text and its pictures into the chat template.

    Raises:
        UsageError: The artifact reads no pictures, has no processor, or a file is no picture.
        RunError: The runtime refuses a step.
    """
    if "vision_encoder" not in exported.parts:
        raise UsageError("this artifact reads no pictures", advice="leave --image out")
    processor = _processor(directory)
    check_tokenizer(processor.tokenizer, exported)
    pictures = [_picture(file) for file in files]
    written = _as_chat(processor, text, len(pictures)) if chat else _with_places(processor, text, len(pictures))
    encoded = processor(text=[written], images=pictures, add_special_tokens=not chat, return_tensors="pt")
    takes = inspect.signature(containers.find_type(exported.model_class).forward).parameters  # type: ignore[attr-defined]
    given = {n: value for n, value in encoded.items() if n in takes and isinstance(value, torch.Tensor)}
    row = continue_rows(exported, processor.tokenizer, given, max_new_tokens)[0]
    new = processor.tokenizer.decode(row, skip_special_tokens=True)
    return [{"text": text, "images": [file.name for file in files], "ids": row, "continuation": new}]


def _processor(directory: Path) -> Any:
    from transformers import AutoProcessor

    try:
        found = AutoProcessor.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"the processor in {directory} cannot be loaded: {error}", advice=_ADVICE) from error
    if not hasattr(found, "image_processor") or not hasattr(found, "tokenizer"):
        raise UsageError(f"{directory} holds no processor for pictures and text", advice=_ADVICE)
    return found


def _picture(file: Path) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise UsageError("Pillow, which reads pictures, is not installed", advice="pip install pillow") from error
    try:
        with Image.open(file) as opened:
            return opened.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise UsageError(f"{file} is no picture: {error}", advice="name a PNG, a JPEG, …") from error


def _with_places(processor: Any, text: str, count: int) -> str:
    """The text with a token for each picture."""
    token = getattr(processor, "image_token", None)
    if not isinstance(token, str):
        raise UsageError("the processor does not say how a text names a picture", advice=_ADVICE)
    missing = count - text.count(token)
    if missing < 0:
        raise UsageError(f"the text has {text.count(token)} {token} for {count} pictures", advice="add --image FILE")
    return " ".join([*[token] * missing, text])


def _as_chat(processor: Any, text: str, count: int) -> str:
    if not getattr(processor, "chat_template", None):
        raise UsageError("the processor has no chat template", advice="leave --chat out")
    content = [*({"type": "image"} for _ in range(count)), {"type": "text", "text": text}]
    messages = [{"role": "user", "content": content}]
    written: str = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return written
