# SPDX-License-Identifier: Apache-2.0
"""What an encoder reads out of a grid is recorded in one run and computed anew for any other grid."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import vision_utils

from transporters import AutoExporter, ExportedModel, zoo
from transporters.errors import ArtifactError
from transporters.exporters import preparers
from transporters.exporters.preparers.vision_calls import Call, Tensor, recorded, tracked

GRID = torch.tensor([[1, 4, 6], [2, 2, 4]])
OTHER = torch.tensor([[1, 6, 2]])


def test_calls_are_recorded_with_their_inputs_their_options_and_their_keys():
    standing = vision_utils.get_vision_cu_seqlens
    grid = tracked({"image_grid_thw": GRID})["image_grid_thw"]
    with recorded() as calls:
        vision_utils.get_vision_cu_seqlens(grid.to("cpu"), kwargs={})
        vision_utils.get_vision_window_index(grid[:, [0, 2, 1]], 2, window_size=8, patch_size=2, kwargs={})
        vision_utils.get_vision_cu_seqlens(grid + 1, kwargs={})  # reads no input
    assert vision_utils.get_vision_cu_seqlens is standing
    assert [call.keys for call in calls] == [("cu_seqlens",), ("window_index", "cu_window_seqlens")]
    assert calls[0].tensors == {"grid_thw": Tensor("image_grid_thw")}
    assert calls[1].tensors == {"grid_thw": Tensor("image_grid_thw", (0, 2, 1))}
    assert calls[1].options == {"spatial_merge_size": 2, "window_size": 8, "patch_size": 2}
    again = [Call.from_dict(json.loads(json.dumps(call.to_dict()))) for call in calls]
    assert again == calls
    found = again[1].compute({"image_grid_thw": OTHER})
    wanted = vision_utils.get_vision_window_index(OTHER[:, [0, 2, 1]], 2, 8, 2)
    assert all(torch.equal(found[key], value) for key, value in zip(calls[1].keys, wanted))


def test_what_the_caller_has_computed_is_not_recorded_and_reaches_the_model():
    bounds = torch.tensor([0, 24, 32, 40], dtype=torch.int32)
    given = {"cu_seqlens": bounds, "position_ids": None}
    with recorded() as calls:
        assert vision_utils.get_vision_cu_seqlens(tracked({"grid_thw": GRID})["grid_thw"], kwargs=given) is bounds
    assert not calls
    assert "cu_seqlens" not in given


def test_a_grid_of_square_images_does_not_hide_which_columns_were_read():
    """Equal columns look alike, and the program must be right for images that are not square."""
    square = tracked({"image_grid_thw": torch.tensor([[1, 4, 4]])})["image_grid_thw"]
    with recorded() as calls:
        vision_utils.get_vision_window_index(square[:, [0, 2, 1]], 2, 8, 2, kwargs={})
    assert [call.tensors["grid_thw"].columns for call in calls] == [(0, 2, 1)]
    with recorded() as calls:
        vision_utils.get_vision_cu_seqlens(torch.tensor([[1, 4, 4]]), kwargs={})  # of the same values, from elsewhere
    assert not calls


@pytest.mark.parametrize(
    "function", ["os:system", "transformers.vision_utils:F", "transformers.models.x.y:get_vision_z"]
)
def test_a_manifest_names_no_other_function(function):
    entry = {"function": function, "tensors": {}, "options": {}, "keys": ["x"]}
    with pytest.raises(ArtifactError, match="computes no vision inputs"):
        Call.from_dict(entry).compute({})
    with pytest.raises(ArtifactError, match="does not have"):
        preparers.from_description([{"name": "nobody"}])


@pytest.mark.model
def test_windows_of_packed_images_are_right_for_other_grids_after_loading(tmp_path):
    model, inputs = zoo.build_with_inputs("Qwen2_5_VisionTransformerPretrainedModel")
    exported = AutoExporter.from_format("torch").export(model, inputs)
    report = exported.verify()
    assert report.verified
    assert {"batch 3", "batch 1", "batch reversed"} <= {v.name for v in report.variations if v.status == "verified"}
    exported.save(tmp_path / "vision")
    loaded = ExportedModel.load(tmp_path / "vision")
    patches, width = inputs["hidden_states"].shape
    grid = torch.tensor([[1, 6, 4], [1, 2, 8]])
    other = {"hidden_states": torch.randn(40, width), "grid_thw": grid}
    with torch.no_grad():
        wanted = model(**other)
    torch.testing.assert_close(loaded(**other).last_hidden_state, wanted.last_hidden_state, atol=1e-4, rtol=1e-4)
    assert patches != 40
