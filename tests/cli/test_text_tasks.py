# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from transporters.cli.text_tasks import Pooling, fit, greedy, pool, preview, ranked, read_pooling
from transporters.errors import ArtifactError, UsageError

HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]], [[9.0, 9.0], [0.0, 4.0], [4.0, 0.0]]])
MASK = torch.tensor([[1, 1, 0], [0, 1, 1]])  # the second row is padded on the left


def recipe(folder: Path, modules: list[tuple[str, str]] | None, pooling: dict[str, object] | None) -> Path:
    if modules is not None:
        rows = [
            {"idx": i, "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(rows), encoding="utf-8")
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return folder


FULL = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mean", [[2.0, 4.0], [2.0, 2.0]]),
        ("max", [[3.0, 6.0], [4.0, 4.0]]),
        ("cls", [[1.0, 2.0], [0.0, 4.0]]),
        ("last", [[3.0, 6.0], [4.0, 0.0]]),
    ],
)
def test_pooling_never_sees_padding(mode, expected):
    torch.testing.assert_close(pool(HIDDEN, MASK, Pooling(mode, normalize=False)), torch.tensor(expected))


def test_normalised_vectors_have_length_one():
    vectors = pool(HIDDEN.bfloat16(), MASK, Pooling())
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize(
    ("modules", "pooling", "expected"),
    [
        (None, None, Pooling("mean", True)),
        (FULL, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, Pooling("mean", True)),
        (FULL[:2], {"pooling_mode_cls_token": True, "word_embedding_dimension": 4}, Pooling("cls", False)),
        (FULL[:2], {"pooling_mode": "lasttoken"}, Pooling("last", False)),
        (None, {"pooling_mode_max_tokens": True}, Pooling("max", True)),
    ],
)
def test_the_recipe_is_read_as_it_was_saved(tmp_path, modules, pooling, expected):
    assert read_pooling(recipe(tmp_path, modules, pooling)) == expected


@pytest.mark.parametrize(
    ("modules", "pooling", "words"),
    [
        ([*FULL[:2], ("Dense", "2_Dense")], {"pooling_mode_mean_tokens": True}, "Dense"),
        (FULL, {"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        (FULL, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "pooling_mode_cls_token"),
        (FULL, {"word_embedding_dimension": 4}, "none"),
    ],
)
def test_a_recipe_that_is_not_supported_is_refused(tmp_path, modules, pooling, words):
    with pytest.raises(UsageError, match=words):
        read_pooling(recipe(tmp_path, modules, pooling))


def test_a_damaged_recipe_is_named(tmp_path):
    (tmp_path / "modules.json").write_text("[{", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"modules\.json"):
        read_pooling(tmp_path)


def test_fit_pads_to_static_sizes_and_repeats_the_last_row():
    inputs = {"input_ids": torch.tensor([[5, 6], [7, 8]]), "attention_mask": torch.ones(2, 2, dtype=torch.long)}
    fitted = fit(inputs, batch=3, length=4, pad_id=9)
    assert fitted["input_ids"].tolist() == [[5, 6, 9, 9], [7, 8, 9, 9], [7, 8, 9, 9]]
    assert fitted["attention_mask"].tolist() == [[1, 1, 0, 0]] * 3
    assert fit(inputs, batch=None, length=None, pad_id=9)["input_ids"].tolist() == [[5, 6], [7, 8]]


def test_greedy_takes_the_likeliest_token_until_the_end():
    def after(ids: list[int]) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor((ids[-1] + 1) % 8), 8).float()

    assert greedy(after, [1, 2], steps=3, stop=()) == [3, 4, 5]
    assert greedy(after, [1, 2], steps=9, stop={5}) == [3, 4]
    assert greedy(after, [1, 2], steps=0, stop=()) == []


def test_labels_are_ranked_by_probability():
    exclusive = ranked(torch.tensor([0.0, 2.0]), {0: "no", 1: "yes"})
    assert [label for label, _ in exclusive] == ["yes", "no"]
    assert sum(score for _, score in exclusive) == pytest.approx(1)
    independent = ranked(torch.tensor([0.0, 2.0]), {0: "no"}, independent=True)
    assert dict(independent)["no"] == pytest.approx(0.5)
    assert independent[0][0] == "LABEL_1"
    assert ranked(torch.tensor([3.5]), {0: "stars"}) == [("stars", 3.5)]


def test_preview_keeps_what_the_values_are():
    assert preview(torch.tensor([[True, False]])) == [True, False]
    assert preview(torch.arange(9)) == [0, 1, 2, 3, 4]
    assert preview(torch.tensor([0.5], dtype=torch.bfloat16)) == [0.5]
    assert preview(torch.tensor(3)) == [3]
