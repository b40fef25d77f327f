# SPDX-License-Identifier: Apache-2.0
"""What cannot be built or sampled, and why. A test fails when an entry works after all."""

from __future__ import annotations

#: Model modules that cannot be imported, by dotted name.
UNIMPORTABLE: dict[str, str] = {
    "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer": "It imports torchaudio.",
}

#: A cause and the classes that have it, the most frequent first.
CAUSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "It needs the package timm.",
        (
            "EdgeTamModel",
            "EdgeTamVisionModel",
            "FastVlmForConditionalGeneration",
            "FastVlmModel",
            "Gemma3nForConditionalGeneration",
            "Gemma3nModel",
            "PeAudioVideoEncoder",
            "PeAudioVideoModel",
            "PeVideoEncoder",
            "PeVideoModel",
            "PerceptionLMForConditionalGeneration",
            "PerceptionLMModel",
            "TimmBackbone",
            "TimmWrapperForImageClassification",
            "TimmWrapperModel",
        ),
    ),
    (
        "It has no forward: it encodes, decodes or generates by methods of other names.",
        (
            "Apertus1p5VisionTokenizerModel",
            "BarkModel",
            "ChameleonVQVAE",
            "Emu3VQVAE",
            "GlmImageVQVAE",
            "Qwen2_5OmniForConditionalGeneration",
            "Qwen3OmniMoeForConditionalGeneration",
        ),
    ),
    (
        "It needs the package detectron2.",
        (
            "LayoutLMv2ForQuestionAnswering",
            "LayoutLMv2ForSequenceClassification",
            "LayoutLMv2ForTokenClassification",
            "LayoutLMv2Model",
        ),
    ),
    (
        "It takes an inference session, which holds a video and a memory, in place of tensors.",
        (
            "EdgeTamVideoModel",
            "Sam2VideoModel",
            "Sam3TrackerVideoModel",
            "Sam3VideoModel",
        ),
    ),
    (
        "The default backbone of its config is that of line recognition, whose maps do not fit the detection neck.",
        (
            "PPOCRV6MediumDetForObjectDetection",
            "PPOCRV6MediumDetModel",
            "PPOCRV6SmallDetForObjectDetection",
            "PPOCRV6SmallDetModel",
        ),
    ),
    (
        "It needs the package natten.",
        (
            "DinatBackbone",
            "DinatForImageClassification",
            "DinatModel",
        ),
    ),
    (
        "It speaks on the states of the thinker, which only generation passes on.",
        (
            "Qwen2_5OmniTalkerForConditionalGeneration",
            "Qwen3OmniMoeTalkerForConditionalGeneration",
        ),
    ),
    (
        "It views position embeddings of one row with the size of the batch, so more than one row fails.",
        (
            "TvpForVideoGrounding",
            "TvpModel",
        ),
    ),
    (
        "Its default text config uses caches of kinds of layers that do not make one.",
        (
            "Gemma4AssistantForCausalLM",
            "Gemma4UnifiedAssistantForCausalLM",
        ),
    ),
    (
        "It aligns words with frames after a transcription, on states that only that gives.",
        ("Nemotron3_5TranscribeWordTimestampModel",),
    ),
    (
        "It asks the text model's output for image_outputs, which that does not have.",
        ("Llama4ForConditionalGeneration",),
    ),
    (
        "It builds its backbone with arguments that only timm's backbones take.",
        ("OmDetTurboForObjectDetection",),
    ),
    (
        "It denoises between a speaker's state and codes in a loop of its own.",
        ("Qwen2_5OmniToken2WavDiTModel",),
    ),
    (
        "It reads a cache that the encoder has filled.",
        ("DiffusionGemmaDecoderModel",),
    ),
    (
        "It reads the hidden states and the cache of another model.",
        ("MuseGlimmerAssistantModel",),
    ),
    (
        "It solves a differential equation in a loop over codes and a speaker's state.",
        ("Qwen2_5OmniToken2WavModel",),
    ),
    (
        "It takes a config of the lite kind, which is not the family's default.",
        ("Deimv2LiteEncoder",),
    ),
    (
        "It takes a config with a backbone of the DINOv3 kind, which is not the family's default.",
        ("Deimv2DINOv3ConvEncoder",),
    ),
    (
        "It takes a dictionary of modalities in place of a tensor.",
        ("PerceiverForMultimodalAutoencoding",),
    ),
    (
        "It takes a folding config, which the family's default does not have.",
        ("EsmForProteinFolding",),
    ),
    (
        "It takes the features of a protein that a pipeline outside of the library computes.",
        ("EsmFold2Model",),
    ),
    (
        "It takes the marks and options of one question, which only its processor makes.",
        ("JevForDecision",),
    ),
    (
        "It works inside of OmDetTurboForObjectDetection, which needs timm.",
        ("OmDetTurboDecoder",),
    ),
    (
        "Its text path attends with no positions left when the config's default head is off.",
        ("Blip2ForImageTextRetrieval",),
    ),
)

#: Causes by class.
UNBUILDABLE: dict[str, str] = {name: cause for cause, names in CAUSES for name in names}
