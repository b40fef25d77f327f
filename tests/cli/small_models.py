# SPDX-License-Identifier: Apache-2.0
"""Folders with a tiny random model and a tokenizer that knows a few words."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("a", "the", "train", "leaves", "station", "weather", "is", "fine", "and", "slow", "when", "it", "rains", ".")
SENTENCES = ("the train leaves the station .", "it rains", "the weather is fine and the train is slow when it rains")
_BODY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}


def tokenizer(*, causal: bool = False) -> tf.PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if not causal:
        inner.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="[UNK]",
        pad_token="[PAD]",
        eos_token="[SEP]",
        mask_token=None if causal else "[MASK]",
        model_max_length=32,
        model_input_names=["input_ids", "attention_mask"],
    )


def write(folder: Path, kind: str) -> Path:
    """A model folder of one of the kinds "features", "labels", "tags", "mask", "causal", "seq2seq" and "pictures"."""
    torch.manual_seed(0)
    if kind == "pictures":
        return _reader_of_pictures(folder)
    bert = tf.BertConfig(**_BODY, num_labels=3, id2label={0: "calm", 1: "glad", 2: "sad"})
    if kind == "causal":
        model = tf.LlamaForCausalLM(tf.LlamaConfig(**_BODY, num_key_value_heads=2, eos_token_id=3))
    elif kind == "seq2seq":
        sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        model = tf.T5ForConditionalGeneration(tf.T5Config(**sizes, eos_token_id=3, decoder_start_token_id=0))
    else:
        classes = {
            "features": tf.BertModel,
            "labels": tf.BertForSequenceClassification,
            "tags": tf.BertForTokenClassification,
            "mask": tf.BertForMaskedLM,
        }
        model = classes[kind](bert)
    model.save_pretrained(folder)
    tokenizer(causal=kind == "causal").save_pretrained(folder)
    return folder


def processor() -> tf.LlavaProcessor:
    """Pictures of 32 by 32 pixels, and a text with 16 tokens for each."""
    words = tokenizer(causal=True)
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    pictures = tf.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    more = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return tf.LlavaProcessor(pictures, words, patch_size=8, **more)


def _reader_of_pictures(folder: Path) -> Path:
    text = {"model_type": "llama", **_BODY, "num_key_value_heads": 2}
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {"model_type": "clip_vision_model", **layers, "image_size": 32, "patch_size": 8, "initializer_range": 0.2}
    token = processor().tokenizer.convert_tokens_to_ids("<image>")
    more = {"image_token_id": token, "eos_token_id": 3, "initializer_range": 0.2}
    config = tf.LlavaConfig(vision_config=vision, text_config={**text, "eos_token_id": 3}, **more)
    tf.LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


def load(folder: Path, kind: str) -> tf.PreTrainedModel:
    """The model of a folder as eager PyTorch has it."""
    autos = {
        "features": tf.AutoModel,
        "labels": tf.AutoModelForSequenceClassification,
        "tags": tf.AutoModelForTokenClassification,
        "mask": tf.AutoModelForMaskedLM,
        "causal": tf.AutoModelForCausalLM,
        "seq2seq": tf.AutoModelForSeq2SeqLM,
        "pictures": tf.AutoModelForImageTextToText,
    }
    model: tf.PreTrainedModel = autos[kind].from_pretrained(folder).eval()
    return model
