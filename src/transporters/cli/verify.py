# SPDX-License-Identifier: Apache-2.0
"""``transporters verify``: a saved artifact is compared with eager once more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UsageError
from .console import Screen, session
from .files import check_artifact, check_file, file_sizes, write_text
from .options import Artifact, AsJson, Html, Verbose


def verify(
    directory: Artifact,
    model: Annotated[
        str | None, typer.Option("--model", metavar="SOURCE", help="Eager model, when it is not where it was.")
    ] = None,
    html: Html = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run the artifact in DIR in its runtime, and compare its outputs with eager PyTorch."""
    with session(as_json=as_json, verbose=verbose) as screen:
        raise typer.Exit(_carry_out(directory, model, html, screen))


def _carry_out(directory: Path, model: str | None, html: Path | None, screen: Screen) -> int:
    check_artifact(directory)
    check_file(html)
    with screen.step("Load libraries"):
        from .. import ExportedModel
        from ..inputs.loading import load_model
    with screen.step("Load artifact"):
        exported = ExportedModel.load(directory)
    source = eager_source(exported.manifest, model)
    with screen.step("Load model"):
        loaded = load_model(**source)
    with screen.step("Verify"):
        report = exported.verify(model=loaded.model, observer=screen.checking)
    report.files = file_sizes(directory)
    if html is not None:
        from ..verification.html import render_html

        write_text(html, render_html(report))
    from ..verification.table import report_table

    payload = {"status": report.status, "artifact": str(directory), "report": report.to_dict()}
    screen.result(payload, report_table(report))
    return 0 if report.verified else 1


def eager_source(manifest: dict[str, Any], model: str | None) -> dict[str, Any]:
    """Arguments of `load_model` for the model that an artifact was made from.

    Args:
        manifest: The artifact's manifest.
        model: A folder or hub id that takes the place of the recorded one.

    Raises:
        UsageError: When neither the manifest nor the caller names a model.
    """
    recorded = manifest.get("source") or {}
    place = model or recorded.get("model")
    if not place:
        raise UsageError(
            "the artifact does not say which model it was made from",
            advice="name the eager model with --model",
        )
    return {
        "source": place,
        "task": recorded.get("task") or manifest.get("task"),
        "dtype": recorded.get("dtype"),
        "gguf_file": recorded.get("gguf_file"),
    }
