# SPDX-License-Identifier: Apache-2.0
"""Reports made by hand, with every kind of verdict in them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from transporters.exporters.shapes import Axis
from transporters.verification.report import Bisection, BisectionStep, OutputCheck, Report, Variation

NASTY = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&"

RUN: dict[str, Any] = {
    "backend": "dynamo",
    "stages": [
        {"name": "Forward signature", "seconds": 0.0121, "status": "done"},
        {"name": "Model patches", "seconds": 0.004, "status": "done"},
        {"name": "Pytree registration", "seconds": 0.031, "status": "done"},
        {"name": "Dynamic shapes", "seconds": 2.41, "status": "done"},
        {"name": "State cleanup", "seconds": 0.002, "status": "done"},
    ],
    "workarounds": {"dynamo:_patch_cast_classifier": 2, "model:_patch_window": 1},
    "skipped_workarounds": [],
    "findings": [
        {"level": "warning", "where": "pixel_mask", "message": "the model ignores this input"},
        {"level": "info", "where": "attention", "message": "flash was swapped to sdpa for the trace"},
    ],
    "versions": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.24.0"},
}


def check(name: str, difference: float, *, verdict: str = "close") -> OutputCheck:
    passed = verdict in ("close", "equal", "tie")
    return OutputCheck(
        name=name,
        verdict=verdict,
        shape=(2, 16, 384),
        dtype="float32",
        max_abs=difference,
        max_rel=difference / 5.0,
        mismatched=0 if passed else 11,
        total=12288,
        atol=1e-5,
        rtol=1e-5,
        detail="" if passed else "11 elements lie outside of the tolerance",
    )


def variation(name: str, scale: float) -> Variation:
    names = ("last_hidden_state", "pooler_output", "past_key_values.layers.0.keys", "past_key_values.layers.0.values")
    checks = [check(output, scale * 10.0**-step) for step, output in enumerate(names)]
    checks.append(check("argmax", 0.0, verdict="equal"))
    return Variation(name, "verified", {"input_ids": (2, 16), "attention_mask": (2, 16)}, tuple(checks), "", 0.012)


def axes() -> list[dict[str, Any]]:
    rows = [
        Axis(name, index, label, 2 if index == 0 else 16, True, f"s{index}", 1, None if index == 0 else 512)
        for name in ("input_ids", "attention_mask")
        for index, label in enumerate(("batch", "sequence"))
    ]
    rows.append(Axis("pixel_values", 1, "channels", 3, False, cause="config", reason="num_channels is 3"))
    rows.append(
        Axis("pixel_values", 2, "height", 32, False, cause="guard", reason="h % 4 == 0", source="modeling_x.py:12")
    )
    return [asdict(row) for row in rows]


def good_report() -> Report:
    names = ("sample", "batch 3", "length 19", "left padding", "right padding", "permuted batch", "decoder length 5")
    variations = [variation(name, 2e-6 / 7**position) for position, name in enumerate(names)]
    variations.append(Variation("image 48 × 48", "not applicable", detail="the model takes no images"))
    return Report(
        "BertModel",
        "torch",
        variations,
        run=RUN,
        shape_contract=axes(),
        files={"export.json": 8123, "program.pt2": 90_870_000},
        created="2026-01-02T03:04:05Z",
    )


def bad_report(model: str = "LlamaForCausalLM") -> Report:
    report = good_report()
    report.model = model
    wrong = [
        check("logits", 0.31, verdict="mismatch"),
        check("argmax", 3.0, verdict="tie"),
        OutputCheck("cache.keys", "structure", detail="eager gives 4 axes, the program 3"),
        replace(check("hidden", float("nan"), verdict="mismatch"), detail="NaN where eager has numbers"),
    ]
    report.variations[3] = replace(report.variations[3], status="mismatch", outputs=tuple(wrong))
    report.variations[4] = Variation("right padding", "run error", detail="the runtime said: shape 3 is not 4")
    steps = (
        BisectionStep("eager", True, 0.0),
        BisectionStep("patched eager", True, 1e-7),
        BisectionStep("exported program", False, 0.31, "logits"),
        BisectionStep("runtime", False, 0.31),
    )
    report.bisection = Bisection("left padding", steps, "exported program", "model.layers.0.self_attn")
    report.run = {**report.run, "skipped_workarounds": ["dynamo:_patch_mask"]}
    return report
