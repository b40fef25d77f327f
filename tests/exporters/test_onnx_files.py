# SPDX-License-Identifier: Apache-2.0
"""The folder of an ONNX artifact: one copy of each weight, aligned where it lies outside, found from anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPooling

from transporters import ExportedModel, OnnxExporter
from transporters.errors import ArtifactError
from transporters.inputs.samples import sample_inputs
from transporters.runners import onnx_runner

pytestmark = pytest.mark.model


def llama(*, tied: bool) -> LlamaForCausalLM:
    """One layer and a large vocabulary, so that a second copy of the embedding would double the file."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20000,
        hidden_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=512,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # equal small weights would become one
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of the parameters, tied ones once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportedModel, Path]:
    """A tied model with its weights in a file of their own."""
    model = llama(tied=True)
    exported = OnnxExporter().export(model, sample_inputs(model), {"external_data": True})
    return exported, exported.save(tmp_path_factory.mktemp("outside") / "llama")


@pytest.mark.parametrize("external", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_every_weight_is_stored_once(tied: bool, external: bool, tmp_path: Path) -> None:
    model = llama(tied=tied)
    exported = OnnxExporter().export(model, sample_inputs(model), {"external_data": external})
    folder = exported.save(tmp_path / "llama")
    stored = sum(
        (folder / name).stat().st_size for name in ("model.onnx", "model.onnx_data") if (folder / name).exists()
    )
    assert stored <= 1.05 * weight_bytes(model)
    assert (folder / "model.onnx_data").exists() == external


def test_outside_weights_are_aligned_in_one_file(outside: tuple[ExportedModel, Path]) -> None:
    exported, folder = outside
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    entries = [{e.key: e.value for e in i.external_data} for i in proto.graph.initializer if i.external_data]
    assert len(entries) >= 3
    assert {entry["location"] for entry in entries} == {"model.onnx_data"}
    assert all(int(entry.get("offset", 0)) % 65536 == 0 for entry in entries)
    assert (folder / "model.onnx").stat().st_size < 0.1 * weight_bytes(exported.model)
    assert exported.verify().verified


def test_large_weights_go_outside_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_runner, "EXTERNAL_FROM", 1_000_000)
    model = llama(tied=True)
    exported = OnnxExporter().export(model, sample_inputs(model))
    assert exported.verify().verified, "run without the whole model in one message"
    assert (exported.save(tmp_path / "llama") / "model.onnx_data").exists()


def test_it_loads_from_everywhere(outside: tuple[ExportedModel, Path], tmp_path: Path) -> None:
    """Moved, through a folder of links as a hub cache has them, and from another working directory."""
    exported, folder = outside
    expected = exported(**exported.sample_inputs).logits
    links = tmp_path / "snapshot"
    links.mkdir()
    for path in folder.iterdir():
        (links / path.name).symlink_to(path)
    moved = exported.save(tmp_path / "moved")
    os.rename(moved, tmp_path / "elsewhere")
    for place in (links, tmp_path / "elsewhere"):
        loaded = ExportedModel.load(place)
        assert torch.equal(loaded(**exported.sample_inputs).logits, expected)
    code = "import sys; from transporters import ExportedModel as E; e = E.load(sys.argv[1]); e(**e.sample_inputs)"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=tmp_path, check=True)


def test_saved_again_over_itself_nothing_is_lost(outside: tuple[ExportedModel, Path], tmp_path: Path) -> None:
    exported, folder = outside
    target = exported.save(tmp_path / "again")
    loaded = ExportedModel.load(target)
    loaded.save(target)
    assert (target / "model.onnx_data").read_bytes() == (folder / "model.onnx_data").read_bytes()
    assert torch.equal(
        ExportedModel.load(target)(**exported.sample_inputs).logits, exported(**exported.sample_inputs).logits
    )


def test_a_missing_or_short_side_file_is_named(outside: tuple[ExportedModel, Path], tmp_path: Path) -> None:
    target = outside[0].save(tmp_path / "broken")
    data = target / "model.onnx_data"
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match=r"model\.onnx_data has .* bytes"):
        ExportedModel.load(target)
    data.unlink()
    with pytest.raises(ArtifactError, match=r"lacks the file model\.onnx_data"):
        ExportedModel.load(target)


def test_the_exporter_leaves_the_models_memory_alone(outside: tuple[ExportedModel, Path]) -> None:
    """The program's weights are the model's own tensors: nothing was copied to make it."""
    exported, _ = outside
    pointers = {parameter.data_ptr() for parameter in exported.model.parameters()}
    held = [value.const_value for value in exported.program.graph.initializers.values()]
    shared = {tensor.raw.data_ptr() for tensor in held if isinstance(getattr(tensor, "raw", None), torch.Tensor)}
    assert pointers <= shared


class Several(torch.nn.Module):
    """An output that is an input, one tensor under two names, an output called like an input, an unused input."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, unused: torch.Tensor) -> dict[str, torch.Tensor]:
        doubled = x * 2
        return {"z": doubled, "x": x, "twice": doubled, "y": y - 1}


def test_outputs_keep_their_own_names_and_inputs_stay(tmp_path: Path) -> None:
    given = {"x": torch.rand(2, 3), "y": torch.rand(2, 3), "unused": torch.rand(4)}
    exported = OnnxExporter().export(Several().eval(), given)
    outputs = exported(**given)
    assert list(outputs) == ["z", "x", "twice", "y"]
    assert torch.equal(outputs["x"], given["x"])
    assert torch.equal(outputs["twice"], outputs["z"])
    assert torch.equal(outputs["y"], given["y"] - 1)
    session = onnxruntime.InferenceSession(exported.save(tmp_path / "several") / "model.onnx")
    assert [i.name for i in session.get_inputs()] == ["x", "y", "unused"]
    assert [o.name for o in session.get_outputs()] == ["z", "output.x", "twice", "output.y"]
    session.run(None, {name: value.numpy() for name, value in given.items()})


def test_nothing_of_this_machine_is_in_the_file(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    model = BertModel(config).eval()
    folder = OnnxExporter().export(model, sample_inputs(model)).save(tmp_path / "bert")
    content = (folder / "model.onnx").read_bytes()
    for word in (b"site-packages", b".py", str(Path.home()).encode(), str(Path.cwd()).encode()):
        assert word not in content


def test_the_manifest_says_what_the_program_is(outside: tuple[ExportedModel, Path]) -> None:
    exported, folder = outside
    program = exported.manifest["program"]
    assert program["opset"] == {"ai.onnx": 20}
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    assert sum(program["operators"].values()) == len(proto.graph.node)
    assert program["providers"]["CPUExecutionProvider"]["MatMul"] >= 8


class Filled(torch.nn.Module):
    """Outputs of which a field is filled in later, one is empty, and one is the same number for all inputs."""

    def forward(self, x: torch.Tensor) -> BaseModelOutputWithPooling:
        found = BaseModelOutputWithPooling(last_hidden_state=x * 2, hidden_states=(None, x + 1, 7))
        found.pooler_output = x.sum(-1)
        return found


def test_outputs_are_those_of_eager_whatever_the_graph_can_hold(tmp_path: Path) -> None:
    exported = OnnxExporter().export(Filled().eval(), {"x": torch.rand(2, 3)})
    names = {output.name for output in exported.program.graph.outputs}
    assert names == {"last_hidden_state", "pooler_output", "hidden_states.1"}
    x = torch.rand(4, 3)
    for program in (exported, ExportedModel.load(exported.save(tmp_path / "out"))):
        found = program(x=x)
        torch.testing.assert_close(found.last_hidden_state, x * 2)
        torch.testing.assert_close(found.pooler_output, x.sum(-1))
        assert found.hidden_states[0] is None
        torch.testing.assert_close(found.hidden_states[1], x + 1)
        assert found.hidden_states[2] == 7
