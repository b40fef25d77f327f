# SPDX-License-Identifier: Apache-2.0
"""From a model folder or hub id to a model in evaluation mode, with everything an export needs beside it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .assets import load_assets
from .source import Source, find_source
from .tasks import class_for_task, resolve_task, task_of

if TYPE_CHECKING:
    import torch

#: Names that ``dtype`` takes; ``"auto"`` is the dtype that the checkpoint was saved in.
DTYPES = ("float32", "float16", "bfloat16", "auto")
_DTYPE_NICKNAMES = {"fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}

#: Weights that a checkpoint lacks are drawn with this seed, so that loading it again gives the same model.
SEED = 0


@dataclass
class LoadedModel:
    """A model in evaluation mode and what belongs to it.

    Attributes:
        model: The ``PreTrainedModel``, in evaluation mode, on the CPU.
        task: Task of the model's class (:func:`~transporters.inputs.tasks.task_of`), or the one asked for.
        source: What was loaded: ``"model"`` (absolute folder or hub id), ``"gguf_file"``, ``"task"`` and ``"dtype"`` as
            the caller gave them (None when left out). ``load_model`` with these gives the same model.
        tokenizer: The tokenizer, if there is one and it can be loaded.
        processor: The processor, image processor or feature extractor, if there is one and it can be loaded.
        assets: Objects with ``save_pretrained`` that belong into an artifact: config, generation config, tokenizer,
            processor.
        extra_files: Relative name -> file to copy as it is.
        notes: One line for everything that a user should know and that is no error.
    """

    model: Any
    task: str
    source: dict[str, str | None]
    tokenizer: Any | None = None
    processor: Any | None = None
    assets: list[Any] = field(default_factory=list)
    extra_files: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_model(
    source: str, *, task: str | None = None, dtype: str | None = None, gguf_file: str | None = None
) -> LoadedModel:
    """Load a Transformers model with its tokenizer, processor and side files.

    The class is the task's auto class when ``task`` is given (the checkpoint's own class, if that serves the task),
    else the one that the config's ``architectures`` names, else ``AutoModel``'s. A GGUF file means ``text-generation``
    unless a task is given. The weights stay as ``from_pretrained`` maps them: nothing is copied here.

    Args:
        source: A model folder, a ``.gguf`` file, or a hub id (``"org/name"``).
        task: A task name as in Transformers' pipelines, or an alias of one.
        dtype: One of :data:`DTYPES`; None means what the checkpoint says.
        gguf_file: Name of a GGUF file in the folder or repository.

    Raises:
        UsageError: If the folder, config, weights or GGUF file is missing or broken, the hub has no such model or
            cannot be reached, the architecture or task is unknown, or the dtype's name is wrong.
    """
    import torch

    wanted_task = resolve_task(task) if task is not None else None
    arguments: dict[str, Any] = {} if dtype is None else {"dtype": _dtype(dtype)}
    place = find_source(source, gguf_file)
    config = _read_config(place)
    if place.gguf_file is not None:
        arguments["config"] = config  # reading a GGUF file's header takes seconds: once is enough
    model_class = _choose_class(config, wanted_task, place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model, info = _guarded(
            place,
            model_class.from_pretrained,
            place.name,
            output_loading_info=True,
            **place.loading_arguments(),
            **arguments,
        )
    model.eval()
    model.config.architectures = [type(model).__name__]

    found = load_assets(place)
    generation = model.generation_config if model.can_generate() else None
    assets = (model.config, generation, found.tokenizer, found.processor)
    return LoadedModel(
        model=model,
        task=wanted_task or task_of(type(model)),
        source={"model": place.name, "gguf_file": place.gguf_file, "task": task, "dtype": dtype},
        tokenizer=found.tokenizer,
        processor=found.processor,
        assets=[asset for asset in assets if asset is not None],
        extra_files=found.extra_files,
        notes=[*_weight_notes(model, info, place), *found.notes],
    )


def load_config(source: str) -> tuple[Any, type[Any]]:
    """A model's config, and the class that :func:`load_model` gives it. There need not be any weights.

    Args:
        source: A folder with a ``config.json``, or a hub id (``"org/name"``).

    Raises:
        UsageError: As :func:`load_model`, for all that concerns the config.
    """
    place = find_source(source, weights=False)
    config = _read_config(place)
    return config, _choose_class(config, None, place)


def _dtype(name: str) -> torch.dtype | str:
    import torch

    if name not in DTYPES:
        near = _DTYPE_NICKNAMES.get(name.lower()) or next(iter(get_close_matches(name.lower(), DTYPES, n=1)), None)
        raise UsageError(
            f"There is no dtype {name!r}.",
            advice=f"Did you mean {near!r}?" if near else f"The dtypes are: {', '.join(DTYPES)}.",
        )
    if name == "auto":
        return name
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _read_config(place: Source) -> Any:
    """The model's ``PretrainedConfig``."""
    from transformers import AutoConfig

    if place.gguf_file is None:
        _check_config_file(place)
    return _guarded(place, AutoConfig.from_pretrained, place.name, what="config", **place.loading_arguments())


def _check_config_file(place: Source) -> None:
    """Refuse what no ``AutoConfig`` can read, with the reason at the top."""
    from transformers import CONFIG_MAPPING, __version__

    path = _config_file(place)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"The config.json of {place.name} is not valid JSON: {error}.") from error
    model_type = raw.get("model_type") if isinstance(raw, dict) else None
    if not model_type:
        raise UsageError(
            f"The config.json of {place.name} names no model_type.",
            advice='Add the architecture\'s name, such as "model_type": "bert".',
        )
    if model_type in CONFIG_MAPPING:
        return
    if "auto_map" in raw:
        raise UsageError(
            f"{place.name} needs model code from its own repository, which is not run here.",
            advice="Load it in Python with trust_remote_code and export the object.",
        )
    near = get_close_matches(model_type, list(CONFIG_MAPPING), n=3)
    raise UsageError(
        f"Transformers {__version__} has no architecture {model_type!r}.",
        advice=f"The nearest are: {', '.join(near)}." if near else "A newer Transformers may have it.",
    )


def _config_file(place: Source) -> Path:
    try:
        path = place.file("config.json")
    except OSError as error:
        raise UsageError(f"{place.name} cannot be fetched: {_first_line(error)}.") from error
    if path is not None:
        return path
    if place.offline:
        raise UsageError(
            f"There is no folder {place.name}, and the hub cannot be reached to look for a model of that name.",
            advice="Check the path, or the network (HF_HUB_OFFLINE=1 also means: only what is cached).",
        )
    raise UsageError(
        f"There is no folder {place.name}, and no such model on the hub.",
        advice="Check the spelling; a private or gated model needs 'hf auth login' first.",
    )


def _choose_class(config: Any, task: str | None, place: Source) -> type[Any]:
    """The class to call ``from_pretrained`` on."""
    import transformers

    named = next(iter(config.architectures or ()), None)
    if task is None and place.gguf_file is not None:
        task = "text-generation"
    if task is not None:
        return class_for_task(task, config, preferred=named)
    if named is None:
        return class_for_task("feature-extraction", config)
    found = getattr(transformers, named, None)
    if not isinstance(found, type):
        raise UsageError(
            f"Transformers {transformers.__version__} has no class {named!r}, which the config of {place.name} names.",
            advice="Choose a class by its task: --task feature-extraction for the base model (task=…).",
        )
    return found


def _guarded(place: Source, call: Callable[..., Any], *args: Any, what: str = "weights", **kwargs: Any) -> Any:
    """Call a ``from_pretrained``; what goes wrong in it becomes one clear message."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    known = (OSError, ValueError, RuntimeError, TypeError, LookupError, ImportError, EOFError)
    try:
        return call(*args, **kwargs)
    except (*known, SafetensorError, StrictDataclassError, pickle.UnpicklingError) as error:
        raise UsageError(
            f"The {what} of {place.name} cannot be loaded: {_first_line(error)}",
            advice=_loading_advice(error, what),
        ) from error


def _loading_advice(error: Exception, what: str) -> str:
    if isinstance(error, ImportError):
        return "Install the package that is named."
    if "ignore_mismatched_sizes" in str(error):
        return "The shapes in the weights file are not those of config.json: take both from the same model."
    return f"Check that the model's {what} are complete and belong to this architecture."


def _weight_notes(model: Any, info: Any, place: Source) -> list[str]:
    """A note on weights that the checkpoint lacks.

    Raises:
        UsageError: If it lacks every one of them: the weights are another model's.
    """
    missing = sorted(info["missing_keys"])
    if not missing:
        return []
    if {name for name, _ in model.named_parameters()} <= set(missing):
        raise UsageError(
            f"None of the weights in {place.name} fits a {type(model).__name__}.",
            advice="Check config.json (architectures), or the task that was asked for.",
        )
    named = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
    return [f"{len(missing)} weights are not in the checkpoint and are random (seed {SEED}): {named}"]


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
