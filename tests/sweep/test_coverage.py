# SPDX-License-Identifier: Apache-2.0
"""The pages about coverage: figures, groups of failures, and a page that can be filtered."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from transporters.sweep import coverage, coverage_page
from transporters.sweep.results import Result

NASTY = "<script>document.title='owned'</script> | </td> [x](y) `a`"


def result(name: str, status: str = "verified", backend: str = "torch", **more: Any) -> Result:
    return {
        "class": name,
        "architecture": re.split(r"(?=[A-Z])", name)[1].lower(),
        "backend": backend,
        "shapes": "dynamic",
        "status": status,
        "seconds": 2.0,
        "stages": {"Build": 0.1, "Dynamic shapes": 1.5},
        "peak_mib": 100,
        "error": None,
        "frozen": [],
        "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
        "date": "2026-11-30T02:00:00+00:00",
        **more,
    }


def error(kind: str, stage: str, message: str, where: str = "") -> dict[str, str]:
    return {"type": kind, "stage": stage, "message": message, "where": where}


RESULTS = [
    result("LlamaModel", seconds=12.3, stages={"Dynamic shapes": 3.0, "Verify": 8.0}),
    result("LlamaForCausalLM"),
    result("BertModel", frozen=["sequence", "batch"]),
    result("SwinModel", "cannot build", error=error("ImportError", "Build", "SwinModel needs the package timm")),
    result(
        "VitModel", "export error", error=error("FrozenAxisError", "Dynamic shapes", "VitModel: axis 1 is 17", "m:3")
    ),
    result("DeitModel", "export error", error=error("FrozenAxisError", "Dynamic shapes", "DeitModel: axis 2 is 1.5e3")),
    result("OddModel", "mismatch", error=error("Mismatch", "Verify", NASTY)),
    result("LlamaModel", backend="onnx", date="2026-11-29T02:00:00+00:00"),
    result("BertModel", "timeout", backend="onnx", seconds=300.0, stages={}),
    result("LlamaModel", backend="torch", shapes="static"),
]


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown page, cells as a reader sees them, the rule left out."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if not line.startswith("| "):
            found.append([])
        elif not line.startswith("| -"):
            found[-1].append([unescape(cell) for cell in line[2:-2].split(" | ")])
    return [table for table in found if table]


# ── Figures ──


def test_every_backend_has_its_counts_dynamic_before_static() -> None:
    head, *rows = tables(coverage.markdown(RESULTS))[0]
    assert head[:6] == ["Backend", "Shapes", "Classes", "Built", "Verified", "Share of the built"]
    assert head[6:] == ["Mismatch", "Run error", "Export error", "Timeout", "Crash", "Cannot build"]
    assert rows == [
        ["torch", "dynamic", "7", "6", "3", "50.0%", "1", "0", "2", "0", "0", "1"],
        ["torch", "static", "1", "1", "1", "100.0%", "0", "0", "0", "0", "0", "0"],
        ["onnx", "dynamic", "2", "2", "1", "50.0%", "0", "0", "0", "1", "0", "0"],
    ]


def test_alike_failures_are_one_group_the_largest_first() -> None:
    groups = coverage.patterns(coverage.failures(RESULTS))
    assert [(group.kind, group.stage, group.classes) for group in groups] == [
        ("FrozenAxisError", "Dynamic shapes", ["DeitModel", "VitModel"]),
        ("Mismatch", "Verify", ["OddModel"]),
        ("timeout", "", ["BertModel"]),
    ]
    assert groups[0].message == "…: axis N is N"
    assert groups[0].places == ["torch dynamic 2"]
    assert [group.classes for group in coverage.patterns(coverage.unbuilt(RESULTS))] == [["SwinModel"]]


@pytest.mark.parametrize(
    ("message", "blank"),
    [
        ("RuntimeError: LlamaAttention at 0x7f3a: 12 of 3.5e-4", "RuntimeError: … at N: N of N"),
        ("SymInt s17 in modeling_llama.py:12", "SymInt sN in modeling_….py:N"),
        ("a BoolTensor is no sentence", "a BoolTensor is no sentence"),
        ("own at own", "… at …"),
    ],
)
def test_numbers_and_names_are_blanked_and_errors_are_not(message: str, blank: str) -> None:
    assert coverage.blanked(message, "own") == blank


def test_the_slowest_come_with_the_stage_that_costs_most() -> None:
    found = tables(coverage.markdown(RESULTS))
    torch, onnx = [table for table in found if table[0][-1] == "Stage that costs most"]
    assert torch[1] == ["LlamaModel", "dynamic", "12.3", "Verify 8.0"]
    assert [row[0] for row in onnx[1:]] == ["BertModel", "LlamaModel"]
    assert onnx[1][-1] == "–", "it was stopped before a stage ended"
    many = [result(f"Model{place}", seconds=place) for place in range(30)]
    assert [row["seconds"] for row in coverage.slowest(many)["torch"]] == list(range(29, 9, -1))


def test_every_architecture_has_a_row() -> None:
    head, *rows = tables(coverage.markdown(RESULTS))[-1]
    assert head == ["Architecture", "Classes", "torch dynamic", "torch static", "onnx dynamic"]
    assert ["llama", "2", "2 / 2", "1 / 1", "1 / 1"] in rows
    assert ["bert", "1", "1 / 1", "–", "0 / 1"] in rows
    assert ["swin", "1", "0 / 1", "–", "–"] in rows


def test_the_page_says_when_and_with_what() -> None:
    text = coverage.markdown(RESULTS)
    assert "Results of 2026-11-29 to 2026-11-30." in text
    assert "torch 2.13.0, transformers 5.24.0" in text
    other = [*RESULTS, result("NewModel", versions={"torch": "2.14.0"})]
    assert coverage.versions(other) == {"torch": "2.13.0, 2.14.0", "transformers": "5.24.0"}


def test_nothing_in_a_message_is_markup() -> None:
    text = coverage.markdown(RESULTS)
    assert "<script>" not in text
    assert "](y)" not in text
    (row,) = [row for table in tables(text) for row in table if "Mismatch" in row and "Verify" in row]
    assert len(row) == 6
    assert row[3] == NASTY


def test_without_results_the_pages_say_so(tmp_path) -> None:
    assert coverage.load(tmp_path / "results") == []
    assert coverage.load(tmp_path) == []
    assert "no results yet" in coverage.markdown([])
    assert "no results yet" in coverage_page.render([])
    assert "NaN" not in coverage.markdown([result("LlamaModel", "cannot build")]), "no share of nothing"


def test_results_come_from_all_files_of_a_folder(tmp_path) -> None:
    for backend in ("torch", "onnx"):
        lines = [json.dumps(row) for row in RESULTS if (row["backend"], row["shapes"]) == (backend, "dynamic")]
        (tmp_path / f"{backend}-dynamic.jsonl").write_text("\n".join([*lines, lines[0][:20]]), encoding="utf-8")
    assert len(coverage.load(tmp_path)) == 9


# ── The page in a browser ──


def test_the_page_asks_nobody_and_its_rows_are_small() -> None:
    text = coverage_page.render(RESULTS)
    assert not re.search(r"\b(src|href)=", text)
    assert "url(" not in text
    assert "@import" not in text
    assert "</script> |" not in text
    many = [result(f"Model{place}", seconds=place / 7) for place in range(2000)]
    assert len(json.dumps(coverage_page.case_data(many), separators=(",", ":"))) < 2000 * 60


def rows(dom: str) -> list[str]:
    """First cells of the cases that the page shows."""
    table = dom.partition('id="cases"')[2].partition("</table>")[0].partition("<tbody>")[2]
    return [re.sub("<.*?>", "", row.partition("</td>")[0]) for row in table.split("<tr>")[1:]]


def after(script: str) -> str:
    """The page, with a reader who does something."""
    probe = f"""<script>
const type = (text) => {{
  const field = document.getElementById("filter-name");
  field.value = text;
  field.dispatchEvent(new Event("input"));
}};
const choose = (name, value) => {{
  const select = document.getElementById(`filter-${{name}}`);
  select.value = value;
  select.dispatchEvent(new Event("change"));
}};
const press = (column) => document.querySelectorAll("#cases thead button")[column].click();
{script}
</script></body>"""
    return coverage_page.render(RESULTS).replace("</body>", probe)


def test_browser_shows_all_cases_by_class(browse) -> None:
    dom = browse(coverage_page.render(RESULTS))
    assert 'data-ready="yes"' in dom
    assert "data-errors" not in dom
    assert "<title>Coverage</title>" in dom
    assert "10 of 10" in dom
    assert rows(dom) == sorted(row["class"] for row in RESULTS)


def test_browser_filters_by_name_backend_shapes_and_status(browse) -> None:
    dom = browse(after('type("llama"); choose("backend", "torch"); choose("shapes", "dynamic");'))
    assert "2 of 10" in dom
    assert rows(dom) == ["LlamaForCausalLM", "LlamaModel"]
    assert rows(browse(after('choose("status", "export error");'))) == ["DeitModel", "VitModel"]
    assert rows(browse(after('type("frozenaxis");'))) == ["DeitModel", "VitModel"]


def test_browser_sorts_by_a_heading_and_back(browse) -> None:
    dom = browse(after("press(5);"))
    assert rows(dom)[:2] == ["BertModel", "LlamaModel"], "largest numbers first"
    assert 'aria-sort="descending"' in dom
    again = browse(after("press(5); press(5);"))
    assert rows(again)[-1] == "BertModel"
    assert rows(browse(after("press(0);")))[0] == "VitModel"


def test_browser_shows_many_cases_step_by_step(browse, monkeypatch) -> None:
    many = [result(f"Model{place:04}") for place in range(450)]
    page = coverage_page.render(many)
    assert len(rows(browse(page))) == 200
    click = '<script>document.getElementById("more").click();</script></body>'
    assert len(rows(browse(page.replace("</body>", click)))) == 400
