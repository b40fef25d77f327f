# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import math

import pytest
from rich.console import Console
from sample_report import NASTY, bad_report, check, good_report

from transporters.verification import summary
from transporters.verification.report import OutputCheck, Report, Variation
from transporters.verification.table import report_table


def shown(report: Report, width: int = 120) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(report_table(report))
    return stream.getvalue()


def test_a_row_per_variation_with_its_worst_output():
    text = shown(good_report())
    assert text.startswith("✓ BertModel → torch: verified, equal to eager at 7 sets of inputs")
    row = next(line for line in text.splitlines() if line.startswith("sample"))
    for words in ("✓ verified", "5/5", "last_hidden_state", "2.00e-06", "6.00e-05"):
        assert words in row
    assert "image 48 × 48 does not apply: the model takes no images" in text


def test_sets_of_inputs_that_do_not_apply_for_one_reason_share_a_line():
    report = good_report()
    names = ("batch 1", "batch 4, length 17")
    report.variations += [Variation(name, "not applicable", detail="the program fixes the batch") for name in names]
    text = shown(report)
    assert "· batch 1; batch 4, length 17 do not apply: the program fixes the batch" in text
    assert text.count("the program fixes the batch") == 1


def test_what_was_done_to_the_model_is_shown():
    text = shown(bad_report())
    for words in (
        "Dynamic shapes 2.41 s",
        "dynamo:_patch_cast_classifier  × 2",
        "dynamo:_patch_mask",
        "input_ids  batch ≥ 1 × sequence 1 … 512",
        "height = 32 [guard: h % 4 == 0 (modeling_x.py:12)]",
        "! pixel_mask: the model ignores this input",
    ):
        assert words in text


def test_a_mismatch_says_where_it_begins():
    text = shown(bad_report())
    assert text.startswith("✗ LlamaForCausalLM → torch: NOT verified, 2 of 7 sets of inputs fail")
    assert "✗ left padding: logits: 11 elements lie outside of the tolerance" in text
    assert "✗ right padding: the runtime said: shape 3 is not 4" in text
    assert "First deviation: exported program" in text
    assert "First submodule: model.layers.0.self_attn" in text


def test_nothing_ran_is_not_verified():
    assert "not verified, no set of inputs ran" in shown(Report("X", "torch"))


def test_no_column_is_lost_on_a_narrow_terminal():
    text = shown(good_report(), 80)
    assert "last_hidden" in text
    assert "2.00e-06" in text
    assert "6.00e-05" in text
    assert "5/5" in text


@pytest.mark.parametrize("width", [60, 200])
def test_any_width_and_any_name(width):
    assert "✗" in shown(bad_report("[red]" + NASTY), width)


def test_worst_is_what_fails_then_what_is_nearest_to_its_limit():
    near, far = check("near", 5e-5), check("far", 1e-9)
    failing = OutputCheck("failing", "structure")
    assert summary.worst([far, near]) is near
    assert summary.worst([far, near, failing]) is failing
    assert summary.worst([]) is None


def test_the_row_is_no_part_of_an_output_s_name():
    assert summary.output_of(check("cache.layers.0.keys [row 12]", 0.0)) == "cache.layers.0.keys"
    assert summary.output_of(check("logits", 0.0)) == "logits"


def test_share_of_what_is_allowed():
    assert summary.share(check("a", 0.0, verdict="equal")) == 0
    assert summary.share(check("a", 3e-5)) == pytest.approx(0.5)  # atol 1e-5 and rtol 1e-5 of a magnitude of 5
    assert summary.share(OutputCheck("a", "structure")) is None
    assert summary.share(check("a", math.nan, verdict="mismatch")) is None
    assert summary.share(OutputCheck("a", "tie", max_abs=3.0)) is None


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (None, "–"),
        (0, "equal"),
        (0.0333, "3.3 % of the limit"),
        (1.5, "1.5 × the limit"),
        (math.inf, "inf × the limit"),
    ],
)
def test_distance_in_words(part, text):
    assert summary.distance(part) == text


def test_json_has_no_word_for_nan():
    assert summary.finite({"a": math.nan, "b": (1.0, -math.inf), "c": True}) == {"a": None, "b": [1.0, None], "c": True}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (90_870_000, "90.9 MB"), (3 * 10**9, "3.00 GB")]
)
def test_sizes_a_person_reads(count, text):
    assert summary.size(count) == text
