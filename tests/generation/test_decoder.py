# SPDX-License-Identifier: Apache-2.0
"""The decoder over plain tensors gives what the model gives without any cache, however the text is cut up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from transporters import DynamoExporter
from transporters.errors import InputError
from transporters.generation.cache_contract import CacheContract
from transporters.generation.decoder import Decoder, empty_state, nested, positions
from transporters.trees import pytrees
from transporters.zoo import build

KINDS = {
    "llama": ["full", "full"],
    "gpt2": ["full", "full"],
    "BloomForCausalLM": ["full", "full"],
    "FalconForCausalLM": ["full", "full"],
    "OPTForCausalLM": ["full", "full"],
    "MixtralForCausalLM": ["full", "full"],
    "DeepseekV3ForCausalLM": ["full", "full"],
    "MistralForCausalLM": ["window", "window"],
    "Gemma3ForCausalLM": ["window", "full"],
    "GptOssForCausalLM": ["window", "full"],
    "MambaForCausalLM": ["linear", "linear"],
    "Mamba2ForCausalLM": ["linear", "linear"],
    "FalconMambaForCausalLM": ["linear", "linear"],
    "JambaForCausalLM": ["linear", "full", "linear", "full"],
    "FalconH1ForCausalLM": ["hybrid", "hybrid"],
    "Qwen3NextForCausalLM": ["linear", "full"],
    "lfm2": ["linear", "full", "linear"],
}


@pytest.mark.parametrize("name", KINDS)
def test_a_text_in_pieces(name: str, model: Any, text: Any) -> None:
    whole = model(name)
    decoder = Decoder(whole)
    assert [layer.kind for layer in decoder.contract.layers] == KINDS[name]
    ids = text(whole, 2, 12)
    with torch.no_grad():
        expected = whole(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    state, at = empty_state(decoder.contract, 2), 0
    for new in (5, 3, 1, 1, 2):
        mask = torch.ones(2, at + new, dtype=torch.int64)
        places = {"position_ids": positions(mask, new)} if decoder.takes_positions else {}
        with torch.no_grad():
            outputs = dict(
                pytrees.named_leaves(decoder(ids[:, at : at + new], attention_mask=mask, **places, **nested(state)))
            )
        torch.testing.assert_close(outputs["logits"], expected[:, at : at + new], rtol=1e-4, atol=1e-4)
        state = {slot.name: outputs[slot.present] for slot in decoder.contract.slots}
        at += new
        for slot in decoder.contract.slots:
            assert str(state[slot.name].dtype) == f"torch.{slot.dtype}"
            if slot.window is None:
                assert tuple(state[slot.name].shape) == slot.sizes(2, at)
    assert CacheContract.from_dict(decoder.contract.to_dict()) == decoder.contract


@pytest.mark.parametrize("name", ["Gemma3nForCausalLM", "Gemma4ForCausalLM"])
def test_layers_that_share_have_no_tensors(name: str, model: Any) -> None:
    """Their number and place is the configuration's; where it has none, every layer has its own."""
    whole = model(name)
    shared = whole.config.get_text_config().num_kv_shared_layers
    kinds = [layer.kind for layer in Decoder(whole).contract.layers]
    own = len(kinds) - kinds.count("shared")
    assert own == whole.config.get_text_config().num_hidden_layers - shared


def test_the_model_is_left_alone(model: Any) -> None:
    whole = model("gpt2")
    before = dict(whole.__dict__)
    decoder = Decoder(whole)
    assert [name for name, _ in decoder.named_parameters()] == [name for name, _ in whole.named_parameters()]
    assert decoder.get_parameter("transformer.wte.weight") is whole.transformer.wte.weight
    assert whole.__dict__ == before


def test_a_model_without_a_cache_is_refused() -> None:
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    with pytest.raises(InputError, match="takes no cache"):
        Decoder(transformers.BertForMaskedLM(config).eval())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xLSTMForCausalLM", "a xLSTMCache, no known kind"),
        ("DeepseekV32ForCausalLM", "layer 0 of DeepseekV32ForCausalLM keeps its state in a DynamicIndexedLayer"),
        ("RobertaForCausalLM", "gives no cache back"),
    ],
)
def test_what_keeps_its_state_elsewhere_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Decoder(build(name))


def test_what_eager_refuses_is_told() -> None:
    with pytest.raises(
        InputError, match="MiniMaxForCausalLM refuses a text of ids with a cache of tensors: ValueError"
    ):
        DynamoExporter().export_for_generation(build("MiniMaxForCausalLM"))
