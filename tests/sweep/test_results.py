# SPDX-License-Identifier: Apache-2.0
"""Files of results: appended to, read in part, compared."""

from __future__ import annotations

import json

import pytest

from transporters.errors import ArtifactError, UsageError
from transporters.sweep import cases, comparing, results
from transporters.sweep.cases import Case


def result(name: str, status: str = "verified", backend: str = "torch", **more) -> dict:
    found = {**Case(name, name.lower(), backend, "dynamic").to_dict(), "status": status, "seconds": 1.0}
    return {**found, "versions": results.current_versions(backend), **more}


def test_the_last_result_of_a_case_counts(tmp_path):
    path = tmp_path / "torch-dynamic.jsonl"
    with results.journal(path) as journal:
        journal.add(result("A", "crash"))
        journal.add(result("B"))
        journal.add(result("A"))
    assert [(entry["class"], entry["status"]) for entry in results.read(path)] == [("A", "verified"), ("B", "verified")]


def test_a_line_that_was_cut_short_is_no_result_and_hurts_no_other(tmp_path):
    path = tmp_path / "torch-dynamic.jsonl"
    whole = json.dumps(result("A")) + "\n"
    path.write_text(whole + whole[: len(whole) // 2])
    assert len(results.read(path)) == 1
    with results.journal(path) as journal:
        journal.add(result("B"))
    assert [entry["class"] for entry in results.read(path)] == ["A", "B"]


def test_a_line_that_is_no_result_is_named(tmp_path):
    path = tmp_path / "torch-dynamic.jsonl"
    path.write_text(json.dumps(result("A")) + "\n{}\n")
    with pytest.raises(ArtifactError, match="line 2 of"):
        results.read(path)
    with pytest.raises(UsageError, match="there is no file of results"):
        results.read(tmp_path / "none.jsonl")


def test_two_sweeps_do_not_write_one_file(tmp_path):
    path = tmp_path / "torch-dynamic.jsonl"
    with results.journal(path), pytest.raises(UsageError, match="another sweep"), results.journal(path):
        pass


def test_a_result_of_other_versions_is_not_current():
    assert results.is_current(result("A"))
    old = {**results.current_versions("torch"), "torch": "2.12.0"}
    assert not results.is_current(result("A", versions=old))
    onnx = {**results.current_versions("torch"), "onnx": "1.0"}
    assert not results.is_current(result("A", versions=onnx)), "the torch backend's results do not name onnx"


def test_a_comparison_tells_better_from_worse():
    old = [result("A"), result("B", "crash"), result("C", "crash"), result("D"), result("E")]
    new = [
        result("A", "mismatch", error={"message": "off by 3"}),
        result("B"),
        result("C", "timeout"),
        result("E"),
        result("F"),
    ]
    found = comparing.compare(old, new)
    assert [(change.case.name, change.old, change.new) for change in found.worse] == [("A", "verified", "mismatch")]
    assert found.worse[0].message == "off by 3"
    assert [change.case.name for change in found.better] == ["B"]
    assert [change.case.name for change in found.other] == ["C"]
    assert [change.case.name for change in found.gone] == ["D"]
    assert [change.case.name for change in found.added] == ["F"]
    assert found.same == 1


PAIRS = [(f"Model{number}", f"kind{number // 3}") for number in range(60)]


def test_patterns_fit_names_and_architectures():
    taken = cases.select(PAIRS, ["torch", "onnx"], ["dynamic"], ["Model1?", "kind0"])
    assert {case.name for case in taken} == {f"Model{n}" for n in (0, 1, 2, *range(10, 20))}
    assert len(taken) == 2 * 13
    with pytest.raises(UsageError, match="no model class fits 'Nothing'"):
        cases.select(PAIRS, ["torch"], ["dynamic"], ["Nothing"])
    with pytest.raises(UsageError, match="not 'moving'"):
        cases.select(PAIRS, ["torch"], ["moving"])


def test_a_sample_is_spread_over_architectures_and_does_not_depend_on_the_order():
    drawn = cases.draw(PAIRS, 10)
    assert len(drawn) == len({architecture for _, architecture in drawn}) == 10
    assert cases.draw(PAIRS[::-1], 10) == drawn
    assert set(drawn) < set(cases.draw(PAIRS, 15)), "a larger sample has the smaller one inside"
    assert len(cases.draw(PAIRS, 100)) == 20
