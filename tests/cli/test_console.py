# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
import typer

from transporters.cli.console import Screen, error_payload, error_text, exit_code, session
from transporters.cli.quiet import Streams
from transporters.errors import ExportError, MissingBackendError, UsageError
from transporters.exporters.run import ExportRun


def screen(**options) -> tuple[Screen, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Screen(Streams(out, err, None), **options), out, err


def test_a_step_is_a_line_with_its_time():
    shown, out, err = screen()
    with shown.step("Load model"):
        pass
    assert err.getvalue().startswith("  ✓ Load model")
    assert err.getvalue().rstrip().endswith("0.00 s")
    assert out.getvalue() == ""


def test_a_step_that_fails_is_a_line_too():
    shown, _, err = screen()
    with pytest.raises(ValueError, match="no"), shown.step("Load [model]"):
        raise ValueError("no")
    assert err.getvalue().startswith("  ✗ Load [model]")


def test_stages_of_a_run_are_lines_in_order():
    shown, _, err = screen()
    run = ExportRun("dynamo", observer=shown.observe)
    with run.stage("Forward signature"):
        pass
    with pytest.raises(ExportError), run.stage("Dynamic shapes"):
        raise RuntimeError("no")
    first, second = err.getvalue().splitlines()
    assert "✓ Forward signature" in first
    assert "✗ Dynamic shapes" in second


def test_a_live_line_is_drawn_on_a_terminal_and_replaced_by_the_final_one(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(err, "isatty", lambda: True, raising=False)
    shown = Screen(Streams(out, err, None))
    with shown.step("Verify"):
        assert shown._live is not None
    assert shown._live is None
    assert err.getvalue().count("✓") == 1


def test_result_is_the_view_or_one_document():
    shown, out, _ = screen()
    shown.result({"a": 1}, "a view [with] brackets")
    assert out.getvalue() == "a view [with] brackets\n"
    shown, out, _ = screen(as_json=True)
    shown.result({"a": float("nan"), "b": [float("inf"), 1.5]}, "view")
    assert json.loads(out.getvalue(), parse_constant=pytest.fail) == {"a": None, "b": [None, 1.5]}


@pytest.mark.parametrize(
    ("error", "code", "text", "advice"),
    [
        (UsageError("no such thing", advice="look again"), 2, "no such thing", "look again"),
        (
            ExportError("bad graph", backend="onnx", stage="FX node fixes", workaround="onnx:_fix_x"),
            1,
            "onnx · stage FX node fixes · onnx:_fix_x: bad graph",
            "",
        ),
        (MissingBackendError("onnx is absent", advice="pip install x"), 1, "onnx is absent", "pip install x"),
        (KeyboardInterrupt(), 130, "Interrupted.", ""),
        (OSError(28, "No space left on device", "/a/b"), 1, "No space left on device: /a/b", "disk has room"),
        (ZeroDivisionError("by zero"), 1, "Unexpected ZeroDivisionError: by zero", "--verbose"),
    ],
)
def test_every_error_has_a_code_a_message_and_advice(error, code, text, advice):
    assert exit_code(error) == code
    message, next_step = error_text(error)
    assert message == text
    assert advice in next_step
    payload = error_payload(error)
    assert payload["status"] == "error"
    assert payload["exit_code"] == code
    assert payload["error"]["type"] == type(error).__name__


def test_json_error_keeps_the_parts_of_the_message():
    error = ExportError("bad graph", backend="onnx", stage="FX node fixes", workaround="onnx:_fix_x", advice="skip it")
    assert error_payload(error)["error"] == {
        "type": "ExportError",
        "message": "bad graph",
        "advice": "skip it",
        "backend": "onnx",
        "stage": "FX node fixes",
        "workaround": "onnx:_fix_x",
    }


def test_markup_in_an_error_is_shown_as_it_is():
    shown, _, err = screen()
    shown.fail(UsageError("[bold]axis[/] [0]"))
    assert "[bold]axis[/] [0]" in err.getvalue()


def test_session_turns_an_error_into_its_exit_code(capsys):
    with pytest.raises(typer.Exit) as caught, session():
        raise UsageError("wrong")
    assert caught.value.exit_code == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err == "✗ wrong\n"


def test_session_shows_a_traceback_only_when_verbose(capsys):
    with pytest.raises(typer.Exit), session():
        raise ZeroDivisionError("by zero")
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(typer.Exit), session(verbose=True):
        raise ZeroDivisionError("by zero")
    assert "Traceback" in capsys.readouterr().err


def test_session_lets_an_exit_code_through(capsys):
    with pytest.raises(typer.Exit) as caught, session():
        raise typer.Exit(1)
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == ""


def test_observe_takes_anything_that_looks_like_a_stage():
    shown, _, err = screen()
    shown.observe(SimpleNamespace(name="batch 3", status="running", seconds=0.0))
    shown.observe(SimpleNamespace(name="batch 3", status="done", seconds=1.25))
    assert "1.25 s" in err.getvalue()
