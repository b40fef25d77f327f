# SPDX-License-Identifier: Apache-2.0
"""Which model classes there are: every subclass of ``PreTrainedModel`` in the model modules of Transformers."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .unbuildable import UNIMPORTABLE


@dataclass(frozen=True, order=True)
class ZooClass:
    """A model class.

    Attributes:
        name: The class name, unique.
        module: Dotted path of the module that defines it.
        config_class: Its config class.
        model_type: The config's ``model_type`` (may be empty for parts that have none).
    """

    name: str
    module: str
    config_class: type[Any]
    model_type: str

    def load(self) -> type[Any]:
        """The class itself."""
        found: type[Any] = getattr(importlib.import_module(self.module), self.name)
        return found


@cache
def classes() -> list[ZooClass]:
    """Every concrete model class of the installed Transformers, sorted by name.

    Abstract bases (``…PreTrainedModel``, ``Pretrained…``, without a ``forward``) are left out. Loads all model modules
    once, which takes some seconds.
    """
    found: dict[str, ZooClass] = {}
    for module_name in _modules():
        for entry in _defined_in(module_name):
            known = found.setdefault(entry.name, entry)
            if known != entry:
                raise RuntimeError(f"Two classes are called {entry.name}: in {known.module} and in {entry.module}.")
    return sorted(found.values(), key=lambda entry: entry.name)


def of_config(config_class: type[Any]) -> list[ZooClass]:
    """The classes in the package of a config class, sorted by name. Loads that package only.

    Args:
        config_class: A config class of Transformers.
    """
    package = config_class.__module__.rpartition(".")[0]
    return sorted(entry for module_name in _modules_of(package) for entry in _defined_in(module_name))


def find(name: str) -> ZooClass:
    """The class of this name. Only the module that defines it is loaded, unless all are loaded already.

    Raises:
        KeyError: If there is none.
    """
    if classes.cache_info().currsize:
        return _by_name()[name]
    for module_name in _sources().get(name, ()):
        for entry in _defined_in(module_name):
            if entry.name == name:
                return entry
    raise KeyError(name)


@cache
def _by_name() -> dict[str, ZooClass]:
    return {entry.name: entry for entry in classes()}


def names() -> list[str]:
    """What Transformers exports by a name that a model module defines: model classes mostly. Loads no model."""
    import transformers

    return sorted(set(_sources()) & set(dir(transformers)))


@cache
def _sources() -> dict[str, list[str]]:
    """Name of a class to the model modules whose text defines it."""
    import transformers.models as models

    found: dict[str, list[str]] = {}
    for folder in models.__path__:
        for file in sorted(Path(folder).glob("*/modeling_*.py")):
            for name in re.findall(rb"^class (\w+)\(", file.read_bytes(), flags=re.M):
                found.setdefault(name.decode(), []).append(f"{models.__name__}.{file.parent.name}.{file.stem}")
    return found


@cache
def _defined_in(module_name: str) -> tuple[ZooClass, ...]:
    """The concrete model classes that a module defines; none when it cannot be imported."""
    if module_name in UNIMPORTABLE:
        return ()
    found = []
    for name, value in vars(importlib.import_module(module_name)).items():
        if isinstance(value, type) and value.__module__ == module_name and _is_concrete(value):
            config_class = _config_class(value)
            found.append(ZooClass(name, module_name, config_class, getattr(config_class, "model_type", "")))
    return tuple(found)


def _modules() -> list[str]:
    import transformers.models as models

    packages = sorted(f"{models.__name__}.{info.name}" for info in pkgutil.iter_modules(models.__path__) if info.ispkg)
    return sorted(module_name for package in packages for module_name in _modules_of(package))


def _modules_of(package: str) -> list[str]:
    """The model modules of a package."""
    inside = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return sorted(f"{package}.{info.name}" for info in inside if info.name.startswith("modeling_"))


def _config_class(value: Any) -> type[Any]:
    found: type[Any] = value.config_class
    return found


def _is_model(value: Any) -> bool:
    from transformers import PreTrainedModel

    return isinstance(value, type) and issubclass(value, PreTrainedModel)


def _is_concrete(value: type[Any]) -> bool:
    if not _is_model(value) or _config_class(value) is None:
        return False
    runs = getattr(value, "forward", None) is not torch.nn.Module.forward
    return runs or not re.search("Pre[tT]rained", value.__name__)
