# SPDX-License-Identifier: Apache-2.0
"""The largest sizes that an ExecuTorch program's memory is planned for."""

from __future__ import annotations

import pytest
import torch
from executorch_programs import Twice, export, ids, llama

from transporters import ExecutorchConfig, ExecutorchExporter, ExportedModel
from transporters.errors import ConfigError, FrozenAxisError, RunError
from transporters.exporters import executorch_bounds, registry

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def exported() -> ExportedModel:
    """A decoder, with a bound of the caller's for its batch."""
    return export(llama(), max_dims={"batch": 3})


def test_bounds_are_the_models_and_never_the_samples(exported: ExportedModel) -> None:
    assert exported.sample_inputs["input_ids"].shape == (2, 7)
    assert {axis.label: axis.maximum for axis in exported.contract.axes} == {"batch": 3, "sequence": 128}
    assert exported.runner.describe()["bounds"]["input_ids"] == [3, 128]
    found = exported(**ids(2, 65)).logits
    torch.testing.assert_close(found, exported.model(**ids(2, 65)).logits, atol=1e-4, rtol=1e-4)


def test_the_user_is_told_of_bounds_that_he_did_not_choose(exported: ExportedModel) -> None:
    told = {finding.where: finding.message for finding in exported.run.findings}
    assert "up to 128 (the model's max_position_embeddings)" in told["sequence"]
    assert "max_dims={'sequence': N}" in told["sequence"]
    assert "batch" not in told


@pytest.mark.parametrize(("batch", "length", "label", "most"), [(4, 7, "batch", 3), (2, 129, "sequence", 128)])
def test_past_a_bound_the_error_names_it(
    exported: ExportedModel, batch: int, length: int, label: str, most: int
) -> None:
    with pytest.raises(RunError, match=rf"axis \d \({label}\) of input_ids is \d+, .* up to {most}") as caught:
        exported(**ids(batch, length))
    assert f"max_dims={{'{label}'" in str(caught.value)
    assert exported(**ids(3, 128)).logits.shape == (3, 128, 99), "the program still runs"


def test_a_wrong_dtype_or_static_size_is_named(exported: ExportedModel) -> None:
    given = ids(2, 7)
    with pytest.raises(RunError, match=r"input_ids has dtype torch\.int32"):
        exported(**{**given, "input_ids": given["input_ids"].int()})
    static = export(llama(), dynamic=False)
    with pytest.raises(RunError, match="axis 1 of input_ids is 8, the program fixes it to 7"):
        static(**ids(2, 8))


def test_max_dims_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"max_dims names 'sequnce'[\s\S]*did you mean 'sequence'"):
        export(llama(), max_dims={"sequnce": 8})
    with pytest.raises(ConfigError, match="from axis label to a size"):
        ExecutorchConfig(max_dims={"batch": 0})
    one_axis = export(llama(), max_dims={"input_ids.1": 16, "attention_mask.1": 16})
    assert one_axis.runner.describe()["bounds"]["attention_mask"][1] == 16


def test_general_bounds_shrink_until_tensors_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executorch_bounds, "LARGEST_TENSOR", 1 << 16)
    found = export(llama(positions=100_000))
    bounds = {axis.label: axis.maximum for axis in found.contract.axes}
    assert bounds["sequence"] is not None
    assert bounds["sequence"] < 512
    assert bounds["batch"] == 2, "the sample's own sizes must fit"
    assert any("lowered" in finding.message for finding in found.run.findings)
    monkeypatch.setattr(executorch_bounds, "LARGEST_TENSOR", 1 << 19)
    roomy = {axis.label: axis.maximum for axis in export(llama(positions=100_000)).contract.axes}
    assert roomy == {"batch": 4, "sequence": 64}, "lengths are lowered before the batch falls below four"
    mine = export(llama(positions=100_000), max_dims={"batch": 2, "sequence": 300})
    assert {axis.maximum for axis in mine.contract.axes} == {2, 300}, "the caller's own are not touched"


def test_a_sample_that_is_larger_than_a_general_bound_fits() -> None:
    axis = export(Twice().eval(), {"x": torch.randn(24, 3)}).contract.axes[0]
    assert (axis.label, axis.maximum) == ("batch", 48)


class Filled(torch.nn.Module):
    """An empty tensor of the input's size, filled in two parts: ExecuTorch's lowering fixes it to the sample's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        filled = x.new_empty(x.shape)
        filled[:, :1] = 1
        filled[:, 1:] = x[:, 1:]
        return filled * 2


def test_an_axis_that_the_lowering_fixes_is_an_error() -> None:
    fix = "executorch:_fix_empty"
    assert export(Filled().eval(), {"x": torch.randn(5, 3)}).verify().verified
    with pytest.raises(FrozenAxisError, match=r"lowering fixes axis 0 .* of x to 5"):
        export(Filled().eval(), {"x": torch.randn(5, 3)}, skip_workarounds=[fix])


def test_a_bound_that_the_lowering_narrows_is_an_error() -> None:
    layouts = "executorch:_patch_layout_of_images"
    repro = registry.find_workaround(layouts).repro
    assert repro is not None
    shrinking = repro.module()
    with pytest.raises(FrozenAxisError, match=r"axis 2 \(x\.2\) of x up to 4 only, and not to 1024"):
        ExecutorchExporter().export(shrinking, {"x": torch.rand(2, 3, 2, 2)}, {"skip_workarounds": [layouts]})
