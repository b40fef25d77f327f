# SPDX-License-Identifier: Apache-2.0
"""One class for an architecture: the one with the most of the model in it.

The rule goes by the ending of the class name, in the order of :data:`ENDINGS`:

1. what generates from an encoder, images or sounds (``ForConditionalGeneration`` and the like);
2. language models: masked before causal, since an architecture that has both is an encoder, whose causal head is a
   variant that nobody publishes;
3. heads that give a map, boxes or a series;
4. the bare ``Model``, if its config holds the configs of several towers: a classifier uses one of them only;
5. heads that classify, then every other ``For…``;
6. a model with its projection, the bare ``Model``, then whatever there is.

Whole models go before parts that work inside of one, then the shortest name wins, then the alphabet.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from . import parts
from .classes import ZooClass, classes, find, of_config
from .unbuildable import UNBUILDABLE

_TOWERS = "the bare model of several towers"
_BARE = r"(?<!Encoder)(?<!Decoder)Model"

#: Endings of class names as regular expressions, the richest first.
ENDINGS: tuple[str, ...] = (
    r"(?<!TextToUnit)ForConditionalGeneration",
    r"For(SpeechToText|TextToSpeech|TokenGeneration|VisionText2Text|ProteinText2Text|BlockDiffusion)|TokenForGeneration",
    r"ForMaskedLM",
    r"ForCausalLM|LMHeadModel|ModelWithLMHead|ForCausalImageModeling|ForCTC|ForRNNT|ForTDT|For.*TextRecognition",
    r"For(ObjectDetection|UniversalSegmentation|InstanceSegmentation|SemanticSegmentation|ImageSegmentation)",
    r"For(DepthEstimation|PoseEstimation|KeypointDetection|KeypointMatching|ImageSuperResolution|ImageMatting)",
    r"For(Prediction|TableRecognition|VideoGrounding|OpticalFlow|ProteinFolding|PreTraining|Pretraining)",
    _TOWERS,
    r"For(Sequence|Image|Video|Audio)Classification",
    r"For[A-Z].*",
    r"ModelWithProjection",
    _BARE,
    r".*",
)


def richest(model_type: str) -> str:
    """The name of the richest class of an architecture that can be built.

    Args:
        model_type: The architecture, as configs name it (``llama``).

    Raises:
        KeyError: If there is no such architecture, or none of its classes can be built; the text says which.
    """
    found = _classes_of(model_type)
    if not found:
        raise KeyError(f"no model class has the architecture {model_type!r}")
    buildable = [entry for entry in found if entry.name not in UNBUILDABLE]
    if not buildable:
        raise KeyError(f"{model_type!r} cannot be built: {UNBUILDABLE[found[0].name]}")
    return min(buildable, key=_rank).name


@cache
def richest_classes() -> list[str]:
    """The richest class of every architecture that has one that can be built, sorted by name.

    Left out are parts whose config has no ``model_type``, since they belong to an architecture that has one, and
    architectures that have no class of their own.
    """
    buildable = {entry.model_type for entry in classes() if entry.name not in UNBUILDABLE}
    return sorted({richest(model_type) for model_type in buildable if model_type})


def _classes_of(model_type: str) -> list[ZooClass]:
    """The classes of an architecture: its own, or those of another that Transformers runs it with.

    Its own are looked for in the package of its config first, so that the others need not be loaded.
    """
    from transformers import CONFIG_MAPPING

    if not model_type:
        return []
    near = of_config(CONFIG_MAPPING[model_type]) if model_type in CONFIG_MAPPING else []
    own = [entry for entry in near if entry.model_type == model_type] or _borrowed(model_type)
    return own or [entry for entry in classes() if entry.model_type == model_type]


def _borrowed(model_type: str) -> list[ZooClass]:
    """What the auto classes load an architecture with."""
    from transformers.models.auto import modeling_auto

    names: set[str] = set()
    for mapping, found in vars(modeling_auto).items():
        if mapping.startswith("MODEL_") and mapping.endswith("_MAPPING_NAMES") and model_type in found:
            names |= {found[model_type]} if isinstance(found[model_type], str) else set(found[model_type])
    return [find(name) for name in sorted(names)]


def _rank(entry: ZooClass) -> tuple[bool, int, int, str]:
    return entry.name in parts.WHOLES, _place(entry.name, entry.config_class), len(entry.name), entry.name


def _place(name: str, config_class: type[Any]) -> int:
    if len(getattr(config_class, "sub_configs", ())) > 1 and re.search(rf"{_BARE}$", name):
        return ENDINGS.index(_TOWERS)
    return next(place for place, ending in enumerate(ENDINGS) if re.search(rf"({ending})$", name))
