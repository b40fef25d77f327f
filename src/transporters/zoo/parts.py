# SPDX-License-Identifier: Apache-2.0
"""Parts: classes that work inside of a bigger model, on states which only that model computes.

Nothing about such a class tells what its inputs look like (masks over several scales, positions, lists of maps), so
they are taken where they are made: the bigger model is run once, and what it passes to the part is written down.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ..trees import pytrees

#: Part to the smallest model that runs it.
WHOLES: dict[str, str] = {
    "AutoformerDecoder": "AutoformerModel",
    "AutoformerEncoder": "AutoformerModel",
    "Blip2QFormerModel": "Blip2Model",
    "BltGlobalTransformer": "BltModel",
    "BltLocalDecoder": "BltModel",
    "BltLocalEncoder": "BltModel",
    "BrosEncoder": "BrosModel",
    "CLIPSegDecoder": "CLIPSegForImageSegmentation",
    "CohereAsrDecoder": "CohereAsrModel",
    "ConditionalDetrDecoder": "ConditionalDetrModel",
    "ConditionalDetrEncoder": "ConditionalDetrModel",
    "ConvNextEncoder": "ConvNextModel",
    "ConvNextV2Encoder": "ConvNextV2Model",
    "CsmBackboneModel": "CsmForConditionalGeneration",
    "DFineDecoder": "DFineModel",
    "DFineHybridEncoder": "DFineModel",
    "DINOv3ConvNextEncoder": "DINOv3ConvNextModel",
    "DINOv3ViTEncoder": "DINOv3ViTModel",
    "DabDetrDecoder": "DabDetrModel",
    "DabDetrEncoder": "DabDetrModel",
    "DeepseekOcr2VisionEncoder": "DeepseekOcr2Model",
    "DeformableDetrDecoder": "DeformableDetrModel",
    "DeformableDetrEncoder": "DeformableDetrModel",
    "Deimv2Decoder": "Deimv2Model",
    "Deimv2HybridEncoder": "Deimv2Model",
    "DetrDecoder": "DetrModel",
    "DetrEncoder": "DetrModel",
    "DiaDecoder": "DiaModel",
    "DiffusionGemmaEncoderModel": "DiffusionGemmaModel",
    "Dinov2Encoder": "Dinov2Model",
    "Dinov2WithRegistersEncoder": "Dinov2WithRegistersModel",
    "Dots3NoteAudioModel": "Dots3NoteModel",
    "FlavaMultimodalModel": "FlavaModel",
    "Florence2VisionBackbone": "Florence2Model",
    "GroundingDinoDecoder": "GroundingDinoModel",
    "GroundingDinoEncoder": "GroundingDinoModel",
    "Idefics2PerceiverResampler": "Idefics2Model",
    "InformerDecoder": "InformerModel",
    "InformerEncoder": "InformerModel",
    "Inkling2VisionModel": "Inkling2Model",
    "Kosmos2_5VisionEncoder": "Kosmos2_5VisionModel",
    "LwDetrDecoder": "LwDetrModel",
    "LwDetrViTEncoder": "LwDetrViTBackbone",
    "MMGroundingDinoDecoder": "MMGroundingDinoModel",
    "MMGroundingDinoEncoder": "MMGroundingDinoModel",
    "MaskFormerDetrDecoder": "MaskFormerModel",
    "MimiDecoderModel": "MimiModel",
    "Molmo2Adapter": "Molmo2Model",
    "MoonshineStreamingDecoder": "MoonshineStreamingModel",
    "OmniASRAudioModel": "OmniASRModel",
    "PPDocLayoutV2Decoder": "PPDocLayoutV2Model",
    "PPDocLayoutV2HybridEncoder": "PPDocLayoutV2Model",
    "PPDocLayoutV2ReadingOrder": "PPDocLayoutV2ForObjectDetection",
    "PPDocLayoutV3Decoder": "PPDocLayoutV3Model",
    "PPDocLayoutV3HybridEncoder": "PPDocLayoutV3Model",
    "PPDocLayoutV4Decoder": "PPDocLayoutV4Model",
    "PPDocLayoutV4HybridEncoder": "PPDocLayoutV4Model",
    "PPOCRV5MobileDetModel": "PPOCRV5MobileDetForObjectDetection",
    "PPOCRV5MobileRecEncoderWithSVTR": "PPOCRV5MobileRecForTextRecognition",
    "PPOCRV5ServerRecEncoderWithSVTR": "PPOCRV5ServerRecForTextRecognition",
    "PPOCRV6SmallRecEncoderWithSVTR": "PPOCRV6SmallRecForTextRecognition",
    "PaddleOCRVisionModel": "PaddleOCRVLModel",
    "PaddleOCRVisionTransformer": "PaddleOCRVLModel",
    "PatchTSMixerEncoder": "PatchTSMixerModel",
    "PatchTSTEncoder": "PatchTSTModel",
    "Pix2StructVisionModel": "Pix2StructForConditionalGeneration",
    "PocketTTSAudioTokenizerDecoderModel": "PocketTTSAudioTokenizerModel",
    "Qwen2_5OmniAudioEncoder": "Qwen2_5OmniThinkerModel",
    "Qwen3OmniMoeAudioEncoder": "Qwen3OmniMoeThinkerModel",
    "Qwen3OmniMoeCode2WavDecoderBlock": "Qwen3OmniMoeCode2Wav",
    "Qwen3OmniMoeCode2WavTransformerModel": "Qwen3OmniMoeCode2Wav",
    "RTDetrDecoder": "RTDetrModel",
    "RTDetrHybridEncoder": "RTDetrModel",
    "RTDetrV2Decoder": "RTDetrV2Model",
    "RTDetrV2HybridEncoder": "RTDetrV2Model",
    "RadioEncoder": "RadioModel",
    "RfDetrDecoder": "RfDetrModel",
    "RfDetrDinov2Encoder": "RfDetrModel",
    "SLANeXtBackbone": "SLANeXtForTableRecognition",
    "SLANeXtSLAHead": "SLANeXtForTableRecognition",
    "SLANetBackbone": "SLANetForTableRecognition",
    "SLANetSLAHead": "SLANetForTableRecognition",
    "Sam3DetrDecoder": "Sam3Model",
    "Sam3DetrEncoder": "Sam3Model",
    "Sam3LiteTextDetrDecoder": "Sam3LiteTextModel",
    "Sam3LiteTextDetrEncoder": "Sam3LiteTextModel",
    "Sam3LiteTextMaskDecoder": "Sam3LiteTextModel",
    "Sam3MaskDecoder": "Sam3Model",
    "Sapiens2Encoder": "Sapiens2Model",
    "SeamlessM4Tv2TextToUnitDecoder": "SeamlessM4Tv2TextToUnitModel",
    "SpeechT5Decoder": "SpeechT5ForSpeechToText",
    "SpeechT5DecoderWithSpeechPrenet": "SpeechT5ForTextToSpeech",
    "SpeechT5DecoderWithTextPrenet": "SpeechT5ForSpeechToText",
    "SpeechT5Encoder": "SpeechT5ForSpeechToText",
    "SpeechT5EncoderWithTextPrenet": "SpeechT5ForTextToSpeech",
    "SpeechT5Model": "SpeechT5ForSpeechToText",
    "SwinEncoder": "OneFormerModel",
    "SwinModel": "OneFormerModel",
    "T5Gemma2Decoder": "T5Gemma2Model",
    "T5GemmaDecoder": "T5GemmaModel",
    "T5GemmaEncoder": "T5GemmaModel",
    "TableTransformerDecoder": "TableTransformerModel",
    "TableTransformerEncoder": "TableTransformerModel",
    "TimeSeriesTransformerDecoder": "TimeSeriesTransformerModel",
    "TimeSeriesTransformerEncoder": "TimeSeriesTransformerModel",
    "Tipsv2VisionEncoder": "Tipsv2Model",
    "UVDocBridge": "UVDocBackbone",
    "UnlimitedOcrVisionEncoder": "UnlimitedOcrModel",
    "VitPoseBackboneEncoder": "VitPoseBackbone",
    "VoxtralRealtimeTextModel": "VoxtralRealtimeModel",
    "XCLIPVisionModel": "XCLIPModel",
}

#: A cache is filled while the part runs; without one it makes its own, or none.
_CACHES = frozenset({"cache", "past_key_values", "past_key_value"})


def inside(whole: Any, name: str) -> Any:
    """The first module of this class in a model.

    Raises:
        LookupError: If there is none.
    """
    for module in whole.modules():
        if type(module).__name__ == name and module is not whole:
            return module
    raise LookupError(f"{type(whole).__name__} has no {name} in it.")


def passed(whole: Any, inputs: dict[str, Any], part: Any) -> dict[str, Any]:
    """What a model passes to a part of it, by the names of the part's ``forward``.

    Tensors are copied. Arguments that are None or a cache are left out.

    Raises:
        LookupError: If the part is not called in a forward pass.
    """
    calls: list[dict[str, Any]] = []

    def note(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not calls:
            calls.append(_by_name(module, positional, named))

    handle = part.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            whole(**inputs)
    finally:
        handle.remove()
    if not calls:
        raise LookupError(f"{type(whole).__name__} does not call its {type(part).__name__} in a forward pass.")
    return calls[0]


def _by_name(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(module.forward)
    arguments = dict(signature.bind_partial(*positional, **named).arguments)
    bundle = next((name for name, p in signature.parameters.items() if p.kind is p.VAR_KEYWORD), None)
    arguments |= arguments.pop(bundle, {}) if bundle is not None else {}
    kept = {name: value for name, value in arguments.items() if value is not None and name not in _CACHES}
    copied: dict[str, Any] = pytrees.map_named(
        lambda _, leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, kept
    )
    return copied
