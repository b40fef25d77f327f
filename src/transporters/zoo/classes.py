# SPDX-License-Identifier: Apache-2.0
"""Which model classes there are: every subclass of ``PreTrainedModel`` in the model modules of Transformers."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
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
        if module_name in UNIMPORTABLE:
            continue
        module = importlib.import_module(module_name)
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module_name and _is_concrete(value):
                config_class = _config_class(value)
                entry = ZooClass(name, module_name, config_class, getattr(config_class, "model_type", ""))
                known = found.setdefault(name, entry)
                if known != entry:
                    raise RuntimeError(f"Two classes are called {name}: in {known.module} and in {module_name}.")
    return sorted(found.values(), key=lambda entry: entry.name)


def find(name: str) -> ZooClass:
    """The class of this name.

    Raises:
        KeyError: If there is none.
    """
    return _by_name()[name]


@cache
def _by_name() -> dict[str, ZooClass]:
    return {entry.name: entry for entry in classes()}


def _modules() -> list[str]:
    import transformers.models as models

    found = []
    for package in sorted(pkgutil.iter_modules(models.__path__), key=lambda info: info.name):
        if package.ispkg:
            name = f"{models.__name__}.{package.name}"
            inside = importlib.import_module(name).__path__
            found += [f"{name}.{info.name}" for info in pkgutil.iter_modules(inside)]
    return sorted(name for name in found if name.rpartition(".")[2].startswith("modeling_"))


def _config_class(value: Any) -> type[Any]:
    found: type[Any] = value.config_class
    return found


def _is_concrete(value: Any) -> bool:
    from transformers import PreTrainedModel

    if not issubclass(value, PreTrainedModel) or value.config_class is None:
        return False
    runs = getattr(value, "forward", None) is not torch.nn.Module.forward
    return runs or not re.search("Pre[tT]rained", value.__name__)
