# SPDX-License-Identifier: Apache-2.0
"""Every container class of Transformers, found by importing all of its models, and an instance of each with tensors."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers.models
from transformers import LlamaConfig, cache_utils
from transformers.utils import ModelOutput

from transporters.trees.containers import type_name
from transporters.trees.pytrees import subclasses

#: Modules of models that need a package which a plain installation does not have.
OPTIONAL = {"transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer": "torchaudio"}

SHAPES = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2, "hidden_size": 16}


@functools.cache
def import_all() -> dict[str, str]:
    """Import every module of a model that can define a container; give those that cannot be, with what is missing."""
    failed = {}
    for package in pkgutil.iter_modules(transformers.models.__path__, "transformers.models."):
        folder = importlib.import_module(package.name)
        for module in pkgutil.iter_modules(getattr(folder, "__path__", []), f"{package.name}."):
            if module.name.rpartition(".")[2].startswith(("modeling_", "generation_")):
                try:
                    importlib.import_module(module.name)
                except ImportError as error:
                    failed[module.name] = error.name or str(error)
    return failed


def of_transformers(*bases: type) -> list[type]:
    """The bases and what Transformers derives from them: other tests of this process import classes of our own."""
    found = {cls for base in bases for cls in (base, *subclasses(base))}
    return sorted((cls for cls in found if cls.__module__.startswith("transformers.")), key=type_name)


def cache_classes() -> list[type]:
    return of_transformers(cache_utils.Cache)


def layer_classes() -> list[type]:
    """Cache layers that can be made; an abstract class has no instances."""
    bases = (cache_utils.CacheLayerMixin, cache_utils.LinearAttentionCacheLayerMixin, cache_utils.DummyLayer)
    return [cls for cls in of_transformers(*bases) if not inspect.isabstract(cls)]


def own_containers() -> list[type]:
    """What a model or its generation defines itself and calls a cache."""
    standard = (cache_utils.Cache, *cache_classes(), *layer_classes())
    found = {
        value
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and name.rpartition(".")[2].startswith(("modeling_", "generation_"))
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == name and "Cache" in value.__name__
    }
    return sorted(found - set(standard), key=type_name)


def output_classes() -> list[type]:
    return [cls for cls in of_transformers(ModelOutput) if cls is not ModelOutput]


# ── Instances ──


def states(length: int, heads: int = 2, size: int = 4) -> torch.Tensor:
    """(batch 2, heads, length, size), every value another one."""
    return torch.arange(2.0 * heads * length * size).reshape(2, heads, length, size) + 0.5


def instance(cls: type, length: int) -> Any:
    """An instance of ``cls`` that has seen a sequence of ``length``.

    Raises:
        LookupError: When the class is new and needs a maker of its own.
    """
    for base in cls.__mro__:
        if base.__name__ in MAKERS:
            return MAKERS[base.__name__](cls, length)
    if cls is cache_utils.Cache:
        return cls(layers=[filled_layer(cache_utils.DynamicLayer(), length), cache_utils.DummyLayer()])
    if issubclass(cls, cache_utils.Cache):
        return filled_cache(cls(), length)
    if cls in layer_classes():
        return filled_layer(cls(**arguments(cls)), length)
    raise LookupError(f"{type_name(cls)} is new: add a way to make one to MAKERS")


def arguments(cls: type) -> dict[str, Any]:
    """What the constructors of layers ask for."""
    known = {"sliding_window": 4, "max_cache_len": 8, "number_of_states": 2}
    wanted = inspect.signature(cls).parameters
    return {name: value for name, value in known.items() if name in wanted}


def filled_layer(layer: Any, length: int) -> Any:
    """The layer after one step of every kind of update that it has."""
    if hasattr(layer, "update"):
        layer.update(states(length), 2 * states(length))
    if hasattr(layer, "update_conv_state"):
        layer.update_conv_state(states(length)[:, 0].mT, state_idx=0, conv_kernel_size=4)
        layer.update_recurrent_state(states(3), state_idx=layer.number_of_states - 1)
    for name, keys in (("update_indexer", states(length)[:, 0]), ("update_index", states(length, heads=1))):
        if hasattr(layer, name):
            getattr(layer, name)(keys)
    return layer


def filled_cache(cache: Any, length: int) -> Any:
    for index in range(2):
        cache.update(states(length) + index, 2 * states(length), index)
    return cache


def with_attributes(made: Any, **values: Any) -> Any:
    for name, value in values.items():
        assert hasattr(made, name), f"{type(made).__name__} has no {name} any more"
        setattr(made, name, value)
    return made


def _encoder_decoder(cls: Any, length: int) -> Any:
    decoder, encoder = (filled_cache(cache_utils.DynamicCache(), n) for n in (length, length + 1))
    return cls(decoder, encoder)


def _minimax(cls: Any, length: int) -> Any:
    made = filled_cache(cls(), length)
    made.set_linear_cache(0, states(3))
    return made


def _deepseek(cls: Any, length: int) -> Any:
    from transformers import DeepseekV4Config

    made = filled_layer(cls(DeepseekV4Config(sliding_window=4)), length)
    for name in made.entry_count:
        kept, gates, _ = made.store_compression_weights(name, states(length)[:, 0], states(length)[:, 1])
        assert kept.shape == gates.shape
        made.update_compressor_states(name, states(length)[:, 0])
    return made


def _padding(cls: Any, _: int) -> Any:
    made = cls(1, [2], ["constant"], [2])
    made.update(states(4)[:, :, 0], 0)
    return made


def _padding_layer(cls: Any, _: int) -> Any:
    return with_attributes(cls(), cache=states(4)[:, 0], is_initialized=True)


def _padding_layers(cls: Any, length: int) -> Any:
    """The layers' class stands in the same module, under one of three names."""
    module = sys.modules[cls.__module__]
    name = cls.__name__.replace("PaddingCache", "CacheLayer")
    layer = getattr(module, name, None) or getattr(module, name.replace("Conv", "Conv1d"))
    return with_attributes(cls(), layers={"first.conv": _padding_layer(layer, length)})


def _transducer(cls: Any, _: int) -> Any:
    made = cls(LlamaConfig(**SHAPES))
    hidden = states(1)[:, 0]
    return with_attributes(made, cache=hidden, hidden_state=2 * hidden, cell_state=3 * hidden, is_initialized=True)


def _speakers(cls: Any, length: int) -> Any:
    module = importlib.import_module("transformers.models.nemotron3_diarization.configuration_nemotron3_diarization")
    made = cls(module.Nemotron3DiarizationStreamingConfig())
    seen = states(length)[:, 0]
    counted = with_attributes(made, num_cache_frames=length, num_fifo_frames=length, is_initialized=True)
    return with_attributes(counted, embeds=seen, probs=2 * seen, fifo=3 * seen)


def _lru(cls: Any, _: int) -> Any:
    made = cls(2)
    made.put("a cat", states(1)[0])
    return made


def _reformer(cls: Any, length: int) -> Any:
    made = cls()
    for index in range(2):
        made.update(states(length).long(), states(length)[:, 0], index)
    return made


def _video(cls: Any, _: int) -> Any:
    made = cls(inference_device=torch.device("cpu"), max_vision_features_cache_size=2)
    made.cache_vision_features(0, {"vision_feats": [states(1)[0], states(2)[0]], "vision_pos_embeds": states(1)[1]})
    return made


def _xlstm(cls: Any, length: int) -> Any:
    from transformers import xLSTMConfig

    config = xLSTMConfig(hidden_size=16, num_heads=2, num_hidden_layers=2)
    made = cls(config, max_batch_size=2, dtype=torch.float32)
    made.seqlen_offset += length
    return made


#: How to make one, by the name of the class, where `arguments` does not suffice. A subclass is made like its base.
MAKERS: dict[str, Callable[[Any, int], Any]] = {
    "DummyLayer": lambda cls, _: cls(),
    "StaticCache": lambda cls, length: filled_cache(cls(LlamaConfig(**SHAPES), max_cache_len=8), length),
    "QuantizedCache": lambda cls, length: filled_cache(cls("fp8", LlamaConfig(**SHAPES)), length),
    "DFlashCache": lambda cls, n: with_attributes(filled_cache(cls(), n), _previous_number_of_accepted_tokens=n),
    "EncoderDecoderCache": _encoder_decoder,
    "MiniMaxCache": _minimax,
    "DeepseekV4HCACache": _deepseek,
    "KyutaiSpeechToTextConv1dPaddingCache": _padding,
    "MimiConv1dPaddingCache": _padding,
    "PocketTTSAudioTokenizerConv1dPaddingCache": _padding,
    "MuseSparkAudioConv1dCacheLayer": _padding_layer,
    "NemotronAsrStreamingConv1dCacheLayer": _padding_layer,
    "NemotronAsrStreamingEncoderCausalConv1dCacheLayer": _padding_layer,
    "NemotronAsrStreamingEncoderCausalConv2dCacheLayer": _padding_layer,
    "VibeVoiceAcousticTokenizerConv1dCacheLayer": _padding_layer,
    "VibeVoiceAsrConv1dCacheLayer": _padding_layer,
    "VoxtralRealtimeConv1dCacheLayer": _padding_layer,
    "MuseSparkAudioConv1dPaddingCache": _padding_layers,
    "NemotronAsrStreamingConv1dPaddingCache": _padding_layers,
    "NemotronAsrStreamingEncoderCausalConvPaddingCache": _padding_layers,
    "VibeVoiceAcousticTokenizerConv1dPaddingCache": _padding_layers,
    "VibeVoiceAsrConv1dPaddingCache": _padding_layers,
    "VoxtralRealtimeConv1dPaddingCache": _padding_layers,
    "ParakeetRNNTDecoderCache": _transducer,
    "Nemotron3DiarizationSpeakerCache": _speakers,
    "OmDetTurboLRUCache": _lru,
    "ReformerDynamicCache": _reformer,
    "Sam2VideoInferenceCache": _video,
    "Sam3TrackerVideoInferenceCache": _video,
    "Sam3VideoInferenceCache": _video,
    "EdgeTamVideoInferenceCache": _video,
    "xLSTMCache": _xlstm,
}


def output(cls: type, x: torch.Tensor) -> Any:
    """An output with a tensor in its first field, a tuple of tensors in one other, and nothing in the rest."""
    names = [field.name for field in dataclasses.fields(cls)]
    values: dict[str, Any] = {names[len(cls.__name__) % len(names)]: (x + 1, None, 2 * x)}
    return cls(**{**values, names[0]: x})
