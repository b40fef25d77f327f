# SPDX-License-Identifier: Apache-2.0
"""Families of models that speak, listen or act over time: a few lines each."""

from __future__ import annotations

from typing import Any

import torch

from . import audio, multimodal, text
from .request import SampleRequest
from .samples import compose, register_sample


@register_sample("CsmBackboneModel")
@register_sample("kyutai_speech_to_text")
def _ids_of_all_codebooks(request: SampleRequest) -> dict[str, Any]:
    """A text token and one code per codebook at each step: ``(batch, length, codebooks + text)``."""
    made = compose(request)
    ids = made["input_ids"]
    text_column = 0 if request.class_name == "CsmBackboneModel" else 1
    columns = int(request.find("num_codebooks")) + text_column
    size = int(request.config.vocab_size)
    codes = request.random_ints(
        1, min(size, int(request.find("codebook_vocab_size", default=size))), *ids.shape, columns
    )
    if text_column:
        codes[..., 0] = ids
    return {**made, "input_ids": codes}


@register_sample("dia")
@register_sample("dia_decoder")
def _dia(request: SampleRequest) -> dict[str, Any]:
    """The decoder writes all channels at once: ``(batch, length, channels)``."""
    made = compose(request)
    channels = int(request.find("num_channels", parts=("decoder_config",)))
    size = int(request.find("vocab_size", parts=("decoder_config",)))
    name = "decoder_input_ids" if request.takes("decoder_input_ids") else "input_ids"
    shape = made[name].shape if name in made else (request.batch, text.DECODER_LENGTH)
    return {**made, name: request.random_ints(0, size, *shape[:2], channels)}


@register_sample("BarkFineModel")
def _bark_fine(request: SampleRequest) -> dict[str, Any]:
    """Codes of all codebooks, ``(batch, length, codebooks)``, and the number of the one that is predicted."""
    size = int(request.find("input_vocab_size", default=100))
    books = int(request.find("n_codes_total"))
    ids = request.random_ints(0, size, request.batch, text.DEFAULT_LENGTH, books)
    return {"codebook_idx": int(request.find("n_codes_given")) + 1, "input_ids": ids}


@register_sample("fastspeech2_conformer_hifigan")
@register_sample("speecht5_hifigan")
def _vocoder(request: SampleRequest) -> dict[str, Any]:
    """``spectrogram`` ``(batch, frames, mel bins)``."""
    mels = int(request.find("model_in_dim"))
    return {"spectrogram": audio.spectrogram(request, request.batch, audio.FRAMES, mels)}


@register_sample("qwen2_5_omni_bigvgan")
def _bigvgan(request: SampleRequest) -> dict[str, Any]:
    """``mel_spectrogram`` ``(batch, mel bins, frames)``."""
    mels = int(request.find("mel_dim"))
    return {
        "mel_spectrogram": audio.spectrogram(request, request.batch, audio.FRAMES, mels).transpose(1, 2).contiguous()
    }


@register_sample("SpeechT5ForSpeechToSpeech")
def _speech_to_speech(request: SampleRequest) -> dict[str, Any]:
    """A waveform, and the first frames of the speech: ``decoder_input_values`` ``(batch, 5, mel bins)``."""
    mels = int(request.config.num_mel_bins)
    samples = audio.waveform(request, request.batch, audio.sample_count(request))
    frames = audio.spectrogram(request, request.batch, text.DECODER_LENGTH, mels)
    return {
        "input_values": samples,
        "attention_mask": torch.ones(samples.shape, dtype=torch.int64),
        "decoder_input_values": frames,
    }


@register_sample("clvp")
def _clvp(request: SampleRequest) -> dict[str, Any]:
    """Text, and the voice to speak it with: ``input_features`` ``(batch, mel bins, frames)``."""
    made = compose(request)
    if not request.takes("input_features"):
        return made
    mels = int(request.find("feature_size", parts=("decoder_config",)))
    voice = audio.spectrogram(request, request.batch, audio.FEATURE_FRAMES, mels).transpose(1, 2).contiguous()
    return {**made, "input_features": voice}


@register_sample("decision_transformer")
def _decision_transformer(request: SampleRequest) -> dict[str, Any]:
    """A history of seven steps: what was seen, done, earned and still hoped for."""
    steps = (request.batch, text.DEFAULT_LENGTH)
    if request.takes("input_ids"):
        return compose(request)
    return {
        "states": request.uniform(*steps, int(request.find("state_dim"))),
        "actions": request.uniform(*steps, int(request.find("act_dim"))) * 2 - 1,
        "rewards": request.uniform(*steps, 1),
        "returns_to_go": request.uniform(*steps, 1) * 10,
        "timesteps": torch.arange(steps[1]).expand(steps).clone(),
        "attention_mask": torch.ones(steps, dtype=torch.int64),
    }


@register_sample("Qwen3OmniMoeCode2Wav")
def _codes_to_wave(request: SampleRequest) -> dict[str, Any]:
    """``codes`` ``(batch, quantizers, length)``."""
    quantizers, size = int(request.find("num_quantizers")), int(request.find("codebook_size"))
    return {"codes": request.random_ints(0, size, request.batch, quantizers, text.DEFAULT_LENGTH)}


@register_sample("vibevoice_acoustic_tokenizer_encoder")
def _waveform_as_states(request: SampleRequest) -> dict[str, Any]:
    """The waveform goes by the name of states: ``(batch, channels, samples)``."""
    channels = int(request.find("channels", default=1))
    tones = audio.waveform(request, request.batch * channels, audio.sample_count(request))
    return {"hidden_states": tones.reshape(request.batch, channels, -1)}


@register_sample("vibevoice_acoustic_tokenizer_decoder")
def _latents_as_states(request: SampleRequest) -> dict[str, Any]:
    """Latent frames: ``(batch, hidden, frames)``."""
    return {"hidden_states": request.uniform(request.batch, int(request.find("hidden_size")), audio.FRAMES) * 2 - 1}


@register_sample("inkling_audio")
def _audio_codes(request: SampleRequest) -> dict[str, Any]:
    """Audio as codes: ``audio_input_ids`` ``(frames, bins)``."""
    bins = int(request.find("num_mel_bins", "n_mel_bins", default=16))
    size = int(request.find("vocab_size", "mel_vocab_size", "codebook_size", default=16))
    return {"audio_input_ids": request.random_ints(0, size, audio.FRAMES, bins)}


@register_sample("granite_speech5_encoder")
@register_sample("granite_speech5_ctc")
def _four_frames_at_once(request: SampleRequest) -> dict[str, Any]:
    """Four frames of mel bins are stacked: ``input_features`` ``(batch, frames, 4 · mel bins)``."""
    features = 4 * int(request.find("num_mel_bins", parts=("encoder_config",)))
    return {"input_features": audio.spectrogram(request, request.batch, audio.FRAMES, features)}


@register_sample("GraniteSpeechCTCEncoder")
@register_sample("GraniteSpeechPlusCTCEncoder")
@register_sample("phi4_multimodal_audio")
def _features_as_states(request: SampleRequest) -> dict[str, Any]:
    """Features go by the name of states: ``hidden_states`` ``(batch, frames, features)``."""
    features = audio.spectrogram(
        request, request.batch, audio.FEATURE_FRAMES, int(request.find("input_dim", "input_size"))
    )
    whole = {"mask": torch.ones(features.shape[:2], dtype=torch.bool)} if request.takes("mask") else {}
    return {"hidden_states": features, **whole}


@register_sample("SpeechT5EncoderWithoutPrenet")
@register_sample("SpeechT5DecoderWithoutPrenet")
def _states_as_values(request: SampleRequest) -> dict[str, Any]:
    """States go by the name of values: ``input_values`` ``(batch, length, hidden)``."""
    return {
        "input_values": request.uniform(request.batch, text.DEFAULT_LENGTH, int(request.config.hidden_size)) * 2 - 1
    }


@register_sample("SeamlessM4TTextToUnitModel")
@register_sample("SeamlessM4TTextToUnitForConditionalGeneration")
def _units(request: SampleRequest) -> dict[str, Any]:
    """The text decoder's states become units: ``inputs_embeds`` ``(batch, length, hidden)``."""
    states = request.uniform(request.batch, text.DEFAULT_LENGTH, int(request.config.hidden_size)) * 2 - 1
    size = int(request.config.vocab_size)
    return {
        "inputs_embeds": states,
        "decoder_input_ids": request.random_ints(4, size, request.batch, text.DECODER_LENGTH),
    }


@register_sample("gemma3n_audio")
def _gemma3n_audio(request: SampleRequest) -> dict[str, Any]:
    """``audio_mel`` ``(batch, frames, mel bins)``, and a mask that is true for padding."""
    mels = int(request.find("input_feat_size"))
    features = audio.spectrogram(request, request.batch, audio.FEATURE_FRAMES, mels)
    return {"audio_mel": features, "audio_mel_mask": torch.zeros(features.shape[:2], dtype=torch.bool)}


@register_sample("apertus1p5")
@register_sample("vibevoice")
def _vibevoice(request: SampleRequest) -> dict[str, Any]:
    """Text around a waveform with an axis for its one channel: ``(batch, 1, samples)``."""
    tones = audio.waveform(request, request.batch, audio.sample_count(request))
    given = {"input_values": tones.unsqueeze(1), "padding_mask": torch.ones(tones.shape, dtype=torch.int64)}
    made = compose(request, {"input_values": lambda _: tones.unsqueeze(1)}, given)
    return {**made, **{name: value for name, value in given.items() if request.takes(name)}}


@register_sample("voxtral_realtime")
def _a_token_per_frame(request: SampleRequest) -> dict[str, Any]:
    """As many tokens as the audio has frames after the encoder."""
    made = compose(request)
    frames = multimodal.count_features(request, "get_audio_features", made)
    size = text.vocabulary(request)
    ids = request.random_ints(size // 2, size, request.batch, (frames or request.batch) // request.batch)
    return {**made, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


@register_sample("SeamlessM4TCodeHifiGan")
@register_sample("SeamlessM4Tv2CodeHifiGan")
def _voice_of_units(request: SampleRequest) -> dict[str, Any]:
    """Units, and who says them in which language: ``(batch, 1)`` each."""
    ids = request.random_ints(4, int(request.config.unit_hifi_gan_vocab_size), request.batch, text.DEFAULT_LENGTH)
    one = torch.ones(request.batch, 1, dtype=torch.int64)
    speaker = "spkr_id" if request.takes("spkr_id") else "speaker_id"
    return {"input_ids": ids, speaker: one, "lang_id": one.clone()}


@register_sample("dots3_note")
def _chunks(request: SampleRequest) -> dict[str, Any]:
    """Audio in chunks, whose lengths are told in samples: ``chunk_sample_lengths`` ``(batch,)``."""
    if not request.takes("chunk_sample_lengths"):
        return compose(request)
    mels = int(request.find("feature_size", parts=("audio_config",)))
    hop = int(request.find("hop_length", parts=("audio_config",)))
    frames = audio.FEATURE_FRAMES
    features = audio.spectrogram(request, request.batch, frames, mels).transpose(1, 2).contiguous()
    lengths = torch.full((request.batch,), frames * hop)
    return compose(request, {"input_features": lambda _: features}, {"chunk_sample_lengths": lengths})


@register_sample("Qwen3OmniMoeTalkerCodePredictorModel")
@register_sample("Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration")
@register_sample("Qwen3OmniMoeTalkerModel")
def _states_of_the_talker(request: SampleRequest) -> dict[str, Any]:
    """What the talker thinks, in place of ids: ``inputs_embeds`` ``(batch, length, hidden)``."""
    shape = (request.batch, text.DEFAULT_LENGTH, int(request.config.hidden_size))
    return {"inputs_embeds": request.uniform(*shape) * 2 - 1}


@register_sample("MoshiForConditionalGeneration")
def _both_sides(request: SampleRequest) -> dict[str, Any]:
    """Text, and the codes of what both sides say: ``(batch, codebooks, length)``."""
    made = compose(request)
    shape = (request.batch, int(request.config.num_codebooks), made["input_ids"].shape[1])
    size = int(request.config.audio_vocab_size)
    codes = {name: request.random_ints(0, size, *shape) for name in ("user_audio_codes", "moshi_audio_codes")}
    return {"input_ids": made["input_ids"], "attention_mask": torch.ones_like(made["input_ids"]), **codes}


@register_sample("MoshiDepthDecoder")
def _depth(request: SampleRequest) -> dict[str, Any]:
    """One code per codebook, and the state that they unfold: ``last_hidden_state`` ``(batch, 1, input)``."""
    ids = request.random_ints(0, int(request.find("vocab_size")), request.batch, int(request.find("num_codebooks")))
    return {"input_ids": ids, "last_hidden_state": request.uniform(request.batch, 1, int(request.find("input_size")))}


@register_sample("SeamlessM4Tv2TextToUnitModel")
@register_sample("SeamlessM4Tv2TextToUnitForConditionalGeneration")
def _units_of_characters(request: SampleRequest) -> dict[str, Any]:
    """The text decoder's states, and the characters of each of its tokens: two each."""
    states = request.uniform(request.batch, text.DEFAULT_LENGTH, int(request.config.hidden_size)) * 2 - 1
    size = int(request.config.char_vocab_size)
    return {
        "inputs_embeds": states,
        "char_input_ids": request.random_ints(4, size, request.batch, 2 * text.DEFAULT_LENGTH),
        "char_count_per_id": torch.full((request.batch, text.DEFAULT_LENGTH), 2),
    }


@register_sample("musicflamingo")
def _times_of_frames(request: SampleRequest) -> dict[str, Any]:
    """The features depend on where the ids have them, so a text of nothing else stands in until they are counted."""
    positions = request.find("max_source_positions", parts=("audio_config",))
    token = int(request.find("audio_token_id"))
    return compose(request, given={"input_ids": torch.full((request.batch, int(positions) // 2), token)})


@register_sample("xcodec2")
def _frames_of_both(request: SampleRequest) -> dict[str, Any]:
    """A waveform with an axis for its channel, and as many semantic frames as it gets acoustic ones."""
    changes: dict[str, Any] = {
        "input_values": lambda tones: tones.reshape(request.batch, 1, -1),
        "input_features": lambda features: features[:, : audio.FRAMES],
        "input_features_mask": lambda mask: mask[:, : audio.FRAMES],
    }
    return compose(request, changes)


@register_sample("qwen2_audio")
def _expanded_placeholders(request: SampleRequest) -> dict[str, Any]:
    """A token for each feature of an audio, as the processor writes them; the model itself counts none."""
    made = compose(request)
    features = ((made["input_features"].shape[2] - 1) // 2 + 1) // 2
    is_audio = made["input_ids"] == int(request.find("audio_token_id", "audio_token_index"))
    often = torch.where(is_audio, features, 1)
    ids = torch.stack([row.repeat_interleave(times) for row, times in zip(made["input_ids"], often)])
    return {**made, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
