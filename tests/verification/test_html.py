# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sample_report import NASTY, bad_report, check, good_report

from transporters.verification.html import render_html
from transporters.verification.markup import Markup, el, embedded_json, join
from transporters.verification.report import Report, Variation


class Page(HTMLParser):
    """Elements by id, with their text, and how often each tag occurs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.attributes: list[tuple[str, str, str | None]] = []
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        assert self._open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("meta", "input", "br"):
            self._open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, name in self._open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data + " "


def test_page_is_well_formed_and_says_the_verdict():
    page = Page(render_html(good_report()))
    assert "Verified" in page.texts["verdict"]
    assert "7 sets of inputs" in page.texts["verdict"]
    assert "Not verified" in Page(render_html(bad_report())).texts["verdict"]


def test_page_shows_every_part_of_the_report():
    page = Page(render_html(bad_report()))
    for stage in bad_report().run["stages"]:
        assert stage["name"] in page.texts["stages"]
    assert "2.41 s" in page.texts["stages"]
    assert "dynamo:_patch_cast_classifier" in page.texts["workarounds"]
    assert "dynamo:_patch_mask" in page.texts["workarounds"]
    for words in ("input_ids", "sequence", "1 … 512", "guard: h % 4 == 0 (modeling_x.py:12)"):
        assert words in page.texts["contract"]
    for words in ("logits", "3.10e-01", "structure", "tie", "nan", "past_key_values.layers.0.keys"):
        assert words in page.texts["numbers"]
    for words in ("exported program", "deviates", "model.layers.0.self_attn"):
        assert words in page.texts["bisection"]
    assert "the model ignores this input" in page.texts["findings"]
    assert "transformers" in page.texts["versions"]
    assert "90.9 MB" in page.texts["files"]
    assert "the runtime said: shape 3 is not 4" in page.texts["variations"]


def test_parts_that_are_empty_are_left_out():
    page = Page(render_html(Report("X", "torch")))
    assert "No set of inputs was run" in page.texts["verdict"]
    assert {"stages", "error", "bisection", "contract", "findings", "versions", "files"}.isdisjoint(page.texts)


def test_page_loads_nothing_from_elsewhere():
    text = render_html(bad_report())
    page = Page(text)
    assert not [entry for entry in page.attributes if entry[1] in ("src", "href", "srcset", "action")]
    assert page.counts.get("link", 0) == 0
    assert "@import" not in text
    assert "url(" not in text


def test_facts_are_json_without_a_way_out_of_the_element():
    report = bad_report(NASTY)
    report.variations[0] = type(report.variations[0])(NASTY, "verified", {}, report.variations[0].outputs)
    text = render_html(report)
    block = re.search(r'<script type="application/json" id="facts">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    facts = json.loads(block[1], parse_constant=pytest.fail)
    assert facts[0]["name"] == NASTY
    assert NASTY not in text


def test_elements_escape_text_and_attributes():
    assert el("p", "a < b", title='"x"') == '<p title="&quot;x&quot;">a &lt; b</p>'
    assert el("p", el("b", "&"), None, hidden=True, id=None) == "<p hidden><b>&amp;</b></p>"
    assert el("meta", name="viewport", http_equiv="a") == '<meta name="viewport" http-equiv="a">'
    assert join(Markup("<i>"), "<i>") == "<i>&lt;i&gt;"
    assert embedded_json({"a": "</script>&"}) == '{"a":"\\u003c/script\\u003e\\u0026"}'


PROBE = """<script>
document.querySelector('.cell[data-variation="1"][data-output="pooler_output"]')
  .dispatchEvent(new MouseEvent("click", {bubbles: true}));
const field = document.getElementById("filter");
field.value = "batch 3";
field.dispatchEvent(new Event("input"));
document.documentElement.dataset.drawn = [...document.querySelectorAll("svg")]
  .map((svg) => `${Math.round(svg.getBBox().width)}x${Math.round(svg.getBBox().height)}`).join(" ");
</script></body>"""


def test_browser_runs_the_page_without_an_error(browse):
    dom = browse(render_html(good_report()))
    assert 'data-ready="yes"' in dom
    assert "data-errors" not in dom
    page = Page(dom)
    assert "last_hidden_state at sample" in page.texts["panel"].replace("  ", " ")  # the worst cell is chosen first
    assert "3.3 % of the limit" in page.texts["panel"]
    assert page.counts["svg"] == 3


def test_browser_shows_a_chosen_cell_and_filters_the_numbers(browse):
    page = render_html(good_report())
    dom = browse(page.replace("</body>", PROBE))
    shown = Page(dom)
    assert "pooler_output at batch 3" in shown.texts["panel"].replace("  ", " ")
    assert shown.texts["matches"].strip() == "5 of 35"
    boxes = re.search(r'data-drawn="([^"]*)"', dom)
    assert boxes is not None
    assert all(int(size.split("x")[0]) > 300 and int(size.split("x")[1]) > 100 for size in boxes[1].split())


def test_rows_that_were_compared_one_by_one_share_their_output_s_cell(browse):
    report = good_report()
    rows = tuple(check(f"pooler_output [row {row}]", 1e-9 * 10**row) for row in range(3))
    report.variations.append(Variation("left-padded rows alone", "verified", {}, rows))
    text = render_html(report)
    assert 'data-output="pooler_output"' in text
    assert 'data-output="pooler_output [row' not in text
    click = PROBE.replace('data-variation="1"', f'data-variation="{len(report.variations) - 1}"')
    shown = Page(browse(text.replace("</body>", click)))
    assert "pooler_output [row 2] at left-padded rows alone" in shown.texts["panel"].replace("  ", " ")
    assert "pooler_output [row 0]" in shown.texts["numbers"]


def test_browser_is_not_fooled_by_names(browse):
    report = bad_report(NASTY)
    report.variations[3] = type(report.variations[3])(NASTY, "mismatch", {NASTY: (1,)}, report.variations[3].outputs)
    report.run["findings"] = [{"level": "warning", "where": NASTY, "message": NASTY}]
    dom = browse(render_html(report))
    assert "<title>owned" not in dom
    assert 'data-ready="yes"' in dom
    assert "data-errors" not in dom


BACKGROUND = """<script>
document.documentElement.dataset.page = getComputedStyle(document.body).backgroundColor;
</script></body>"""


@pytest.mark.parametrize(("scheme", "bright"), [(1, True), (0, False)], ids=["light", "dark"])
def test_browser_draws_the_reader_s_scheme(browse, tmp_path: Path, scheme, bright):
    flag = f"--blink-settings=preferredColorScheme={scheme}"
    dom = browse(render_html(good_report()).replace("</body>", BACKGROUND), flag, "--dump-dom")
    colour = re.search(r'data-page="rgb\((\d+), (\d+), (\d+)\)"', dom)
    assert colour is not None
    assert all((int(part) > 128) is bright for part in colour.groups())
    picture = tmp_path / "page.png"
    browse(render_html(good_report()), flag, f"--screenshot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000  # a blank page of this size takes less than 20 kB


def test_the_browser_s_own_errors_are_noticed(browse):
    with pytest.raises(AssertionError, match="no such thing"):
        browse("<!doctype html><script>throw new Error('no such thing')</script>")
