# SPDX-License-Identifier: Apache-2.0
"""Task names, the auto classes that serve them, and the way back from a model class to its task."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ..errors import UsageError

#: Task name -> auto classes of ``transformers``, the first one that knows the config wins. The order of the tasks
#: matters too: :func:`task_of` answers with the first task whose classes contain the model's class, so a special task
#: stands before the general one that shares its classes.
TASKS: dict[str, tuple[str, ...]] = {
    "image-text-to-text": ("AutoModelForImageTextToText",),
    "automatic-speech-recognition": ("AutoModelForSpeechSeq2Seq", "AutoModelForCTC", "AutoModelForTDT"),
    "text2text-generation": ("AutoModelForSeq2SeqLM",),
    "text-generation": ("AutoModelForCausalLM",),
    "fill-mask": ("AutoModelForMaskedLM",),
    "text-classification": ("AutoModelForSequenceClassification",),
    "token-classification": ("AutoModelForTokenClassification",),
    "question-answering": ("AutoModelForQuestionAnswering",),
    "multiple-choice": ("AutoModelForMultipleChoice",),
    "next-sentence-prediction": ("AutoModelForNextSentencePrediction",),
    "table-question-answering": ("AutoModelForTableQuestionAnswering",),
    "document-question-answering": ("AutoModelForDocumentQuestionAnswering",),
    "visual-question-answering": ("AutoModelForVisualQuestionAnswering",),
    "any-to-any": ("AutoModelForMultimodalLM",),
    "zero-shot-image-classification": ("AutoModelForZeroShotImageClassification",),
    "zero-shot-object-detection": ("AutoModelForZeroShotObjectDetection",),
    "image-classification": ("AutoModelForImageClassification",),
    "object-detection": ("AutoModelForObjectDetection",),
    "semantic-segmentation": ("AutoModelForSemanticSegmentation",),
    "image-segmentation": (
        "AutoModelForImageSegmentation",
        "AutoModelForUniversalSegmentation",
        "AutoModelForInstanceSegmentation",
        "AutoModelForSemanticSegmentation",
    ),
    "depth-estimation": ("AutoModelForDepthEstimation",),
    "pose-estimation": ("AutoModelForPoseEstimation",),
    "keypoint-detection": ("AutoModelForKeypointDetection",),
    "keypoint-matching": ("AutoModelForKeypointMatching",),
    "image-to-image": ("AutoModelForImageToImage",),
    "masked-image-modeling": ("AutoModelForMaskedImageModeling",),
    "mask-generation": ("AutoModelForMaskGeneration",),
    "video-classification": ("AutoModelForVideoClassification",),
    "audio-classification": ("AutoModelForAudioClassification",),
    "audio-frame-classification": ("AutoModelForAudioFrameClassification",),
    "audio-xvector": ("AutoModelForAudioXVector",),
    "text-to-audio": ("AutoModelForTextToSpectrogram", "AutoModelForTextToWaveform"),
    "time-series-forecasting": ("AutoModelForTimeSeriesPrediction",),
    "feature-extraction": ("AutoModel",),
    "image-feature-extraction": ("AutoModel",),
}

#: Other names that people type for the same thing.
ALIASES: dict[str, str] = {
    "asr": "automatic-speech-recognition",
    "causal-lm": "text-generation",
    "image-to-text": "image-text-to-text",
    "masked-lm": "fill-mask",
    "ner": "token-classification",
    "sentence-similarity": "feature-extraction",
    "sentiment-analysis": "text-classification",
    "seq2seq-lm": "text2text-generation",
    "sequence-classification": "text-classification",
    "summarization": "text2text-generation",
    "text-to-speech": "text-to-audio",
    "translation": "text2text-generation",
    "vqa": "visual-question-answering",
    "zero-shot-audio-classification": "feature-extraction",
    "zero-shot-classification": "text-classification",
}

#: The task of a class that no task's auto classes contain (``BertForPreTraining``, …).
OTHER = "other"


def resolve_task(name: str) -> str:
    """The canonical name of a task.

    Raises:
        UsageError: If neither a task nor an alias has this name; the message gives the nearest ones.
    """
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    wanted = ALIASES.get(wanted, wanted)
    if wanted in TASKS:
        return wanted
    near = get_close_matches(wanted, [*TASKS, *ALIASES], n=3, cutoff=0.5)
    raise UsageError(
        f"There is no task {name!r}.",
        advice=f"Did you mean {_either(near)}?" if near else f"The tasks are: {', '.join(TASKS)}.",
    )


def class_for_task(task: str, config: Any, preferred: str | None = None) -> type[Any]:
    """The model class that serves a task for this config.

    Args:
        task: A name in :data:`TASKS`.
        config: The model's ``PretrainedConfig``.
        preferred: Class name that wins when it serves the task too (the checkpoint's own class).

    Raises:
        UsageError: If the config's architecture has no class for the task; the advice lists the tasks that it has.
    """
    served = [cls for auto in TASKS[task] for cls in _classes(auto, config)]
    for cls in served:
        if cls.__name__ == preferred:
            return cls
    if served:
        return served[0]
    possible = [name for name, autos in TASKS.items() if any(_classes(auto, config) for auto in autos)]
    raise UsageError(
        f"The architecture {config.model_type!r} has no model class for the task {task!r}.",
        advice=f"It can do: {', '.join(possible)}." if possible else "Leave the task out to load the base model.",
    )


def task_of(model_class: type[Any]) -> str:
    """The task of a model class, by its name in the auto classes; :data:`OTHER` when none lists it."""
    for task, autos in TASKS.items():
        if any(model_class.__name__ in _class_names(auto) for auto in autos):
            return task
    return OTHER


def _classes(auto_name: str, config: Any) -> tuple[type[Any], ...]:
    """The classes that an auto class has for a config: none, one, or several (Funnel)."""
    mapping = _auto_class(auto_name)._model_mapping
    if type(config) not in mapping:
        return ()
    found = mapping[type(config)]
    return tuple(found) if isinstance(found, (list, tuple)) else (found,)


def _class_names(auto_name: str) -> set[str]:
    """Every class name that an auto class can answer with, without importing one of them."""
    names: set[str] = set()
    for entry in _auto_class(auto_name)._model_mapping._model_mapping.values():
        names.update(entry if isinstance(entry, (list, tuple)) else (entry,))
    return names


def _auto_class(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


def _either(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names)
