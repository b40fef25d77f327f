# SPDX-License-Identifier: Apache-2.0
"""From what a person types to a model class and a config: an architecture, a class, a folder or a hub id."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import TransportersError, UsageError
from ..inputs.loading import load_config
from . import defaults, parts
from .building import build_with_inputs
from .classes import ZooClass, find, names
from .outcomes import TROUBLES
from .richest import richest
from .unbuildable import UNBUILDABLE

_GIVE_A_CONFIG = "give the name of another class, or a folder with the config.json of a published model"


@dataclass(frozen=True)
class Choice:
    """A model class and a config of full size.

    Attributes:
        name: Name of the class.
        config: The config; for a part of a bigger model, that model's.
        origin: Where the config comes from, in words.
    """

    name: str
    config: Any
    origin: str


def choose(what: str) -> Choice:
    """The class and config that a name means.

    A folder with a ``config.json`` comes first, then architectures, then classes; a name with a slash is a folder or
    a hub id.

    Args:
        what: A folder, a hub id (``org/name``), an architecture (``llama``) or a class (``LlamaForCausalLM``).

    Raises:
        UsageError: If there is nothing of that name (the nearest names are given), a config cannot be read, or the
            class is known not to be built from its defaults.
    """
    from transformers import CONFIG_MAPPING

    path = Path(what).expanduser()
    if (path / "config.json").is_file() or "/" in what or what.startswith((".", "~")):
        config, model_class = load_config(what)
        return Choice(_entry(model_class.__name__).name, config, f"the config of {what}")
    if what in CONFIG_MAPPING:
        return _default(_richest(what), CONFIG_MAPPING[what])
    if path.is_dir():
        load_config(what)  # says what the folder lacks
    return _default(_entry(what))


def build_twin(choice: Choice) -> tuple[Any, dict[str, Any]]:
    """The tiny model of a choice and its inputs.

    Raises:
        TransportersError: If the class does not take the config, or no inputs can be made.
    """
    try:
        return build_with_inputs(choice.name, config=choice.config)
    except TROUBLES as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TransportersError(
            f"{choice.name} cannot be built tiny from {choice.origin}: {line}",
            advice=UNBUILDABLE.get(choice.name)
            or "name another class of the architecture, or export the real model with `transporters export`",
        ) from error


def _default(entry: ZooClass, config_class: type[Any] | None = None) -> Choice:
    if entry.name in UNBUILDABLE:
        raise UsageError(f"{entry.name!r} cannot be built: {UNBUILDABLE[entry.name]}", advice=_GIVE_A_CONFIG)
    whole = entry
    while whole.name in parts.WHOLES:
        whole = find(parts.WHOLES[whole.name])
    chosen = whole.config_class if whole is not entry or config_class is None else config_class
    return Choice(entry.name, defaults.default_config(chosen, whole.name), f"the defaults of {chosen.__name__}")


def _richest(model_type: str) -> ZooClass:
    try:
        return find(richest(model_type))
    except KeyError as error:
        raise UsageError(str(error.args[0]), advice=_GIVE_A_CONFIG) from error


def _entry(name: str) -> ZooClass:
    """Raises a `UsageError` with the nearest architectures and classes."""
    from transformers import CONFIG_MAPPING, __version__

    try:
        return find(name)
    except KeyError as error:
        known = {known.lower(): known for known in (*names(), *CONFIG_MAPPING)}
        near = [known[found] for found in get_close_matches(name.lower(), list(known), n=3)]
        raise UsageError(
            f"Transformers {__version__} has no architecture and no model class {name!r}, and there is no such folder",
            advice=f"the nearest names are: {', '.join(near)}"
            if near
            else "an architecture looks like 'llama', a class like 'LlamaForCausalLM', a hub id like 'org/name'",
        ) from error
