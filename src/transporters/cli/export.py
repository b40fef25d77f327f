# SPDX-License-Identifier: Apache-2.0
"""``transporters export``: a model becomes a program, is proved equal to eager, and is saved."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..clients import find as find_clients
from ..errors import InputError, UsageError
from .console import Screen, session
from .facts import program_lines
from .files import check_file, check_target, file_sizes, read_json_object, unverified, write_text
from .options import CLIENT_HELP, FORMAT_HELP, AsJson, Html, Verbose

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel
    from ..clients.base import Client
    from ..inputs.loading import LoadedModel
    from ..verification.report import Report

PAGE = "report.html"

#: Tasks of models with a decoder that writes, where there is an encoder before it.
_BEHIND_ENCODERS = frozenset({"text2text-generation", "automatic-speech-recognition"})

#: Task of models that write about pictures.
_WITH_PICTURES = "image-text-to-text"

_STATIC = "a cache grows, and --static fixes every axis"


@dataclass(frozen=True)
class Order:
    """What the command line asked for."""

    model: str
    export_format: str
    out: Path
    gguf_file: str | None
    task: str | None
    dtype: str | None
    dynamic: bool
    dynamic_shapes: Path | None
    allow_static: tuple[str, ...]
    check: bool
    skip_workarounds: tuple[str, ...]
    cache: bool
    clients: tuple[str, ...]
    html: Path | None
    format_options: dict[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """The export configuration as a dict; what was not asked for is left to its class.

        Raises:
            UsageError: When the file of dynamic shapes cannot be read or contradicts ``--static``, or when a largest
                size is no number.
        """
        asked: dict[str, Any] = {"export_format": self.export_format, "dynamic": self.dynamic}
        if self.dynamic_shapes is not None and not self.dynamic:
            raise UsageError("--static and --dynamic-shapes exclude each other", advice="leave one of them out")
        if self.dynamic_shapes is not None:
            asked["dynamic_shapes"] = read_json_object(self.dynamic_shapes)
        if self.allow_static:
            asked["allow_static"] = list(self.allow_static)
        asked |= {key: value for key, value in self.format_options.items() if value is not None}
        if asked.get("max_dims"):
            asked["max_dims"] = _sizes(asked["max_dims"])
        return {**asked, "skip_workarounds": list(self.skip_workarounds)}


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Local folder or hub id of a Transformers model.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=FORMAT_HELP)],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the artifact.")],
    gguf_file: Annotated[
        str | None, typer.Option("--gguf-file", metavar="FILE", help="Name of the GGUF file inside MODEL.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="What the model is for; found from its config by default."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="DTYPE", help="Cast to float32, float16 or bfloat16.")
    ] = None,
    static: Annotated[bool, typer.Option("--static", help="Fix every axis at the size of the sample.")] = False,
    dynamic_shapes: Annotated[
        Path | None,
        typer.Option("--dynamic-shapes", metavar="FILE", help="JSON file: input name to axis to its bounds."),
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Text generation: one forward pass instead of a decoder with its cache.")
    ] = False,
    clients: Annotated[list[str] | None, typer.Option("--for", metavar="NAME", help=CLIENT_HELP)] = None,
    allow_static: Annotated[
        list[str] | None,
        typer.Option("--allow-static", metavar="LABEL", help="Let the trace fix this axis. Repeatable."),
    ] = None,
    opset: Annotated[
        int | None, typer.Option("--opset", metavar="N", help="ONNX: version of the operator set.")
    ] = None,
    external_data: Annotated[
        bool | None,
        typer.Option(
            "--external-data/--no-external-data",
            help="ONNX: weights in a file of their own; by default from 1.5 GB on.",
            show_default=False,
        ),
    ] = None,
    no_optimize: Annotated[bool, typer.Option("--no-optimize", help="ONNX: leave the graph as translated.")] = False,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="NAME", help="ExecuTorch: delegate; xnnpack by default.")
    ] = None,
    max_dim: Annotated[
        list[str] | None,
        typer.Option("--max-dim", metavar="LABEL=N", help="ExecuTorch: largest size of an axis. Repeatable."),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option("--max-context", metavar="N", help="ExecuTorch: tokens of a text, with those that are written."),
    ] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Save without comparing with eager.")] = False,
    skip_workaround: Annotated[
        list[str] | None, typer.Option("--skip-workaround", metavar="ID", help="Switch a workaround off. Repeatable.")
    ] = None,
    html: Html = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Export MODEL, verify the program against eager PyTorch, and save it to DIR."""
    order = Order(  # what is None is left to the format's configuration
        model=model,
        export_format=to,
        out=out,
        gguf_file=gguf_file,
        task=task,
        dtype=dtype,
        dynamic=not static,
        dynamic_shapes=dynamic_shapes,
        allow_static=tuple(allow_static or ()),
        check=not no_verify,
        cache=not no_cache,
        clients=tuple(clients or ()),
        skip_workarounds=tuple(skip_workaround or ()),
        html=html,
        format_options={
            "opset_version": opset,
            "external_data": external_data,
            "optimize": False if no_optimize else None,
            "backend": backend,
            "max_dims": max_dim,
            "max_context": max_context,
        },
    )
    with session(as_json=as_json, verbose=verbose) as screen:
        raise typer.Exit(_carry_out(order, screen))


def _sizes(given: list[str]) -> dict[str, int]:
    """``LABEL=N`` as a dict.

    Raises:
        UsageError: When an entry is written in another way.
    """
    found = dict(entry.rpartition("=")[::2] for entry in given)
    for label, size in found.items():
        if not label or not size.isdecimal():
            raise UsageError(
                f"--max-dim takes LABEL=N, not {f'{label}={size}' if label else size!r}",
                advice="for example --max-dim sequence=2048",
            )
    return {label: int(size) for label, size in found.items()}


def _carry_out(order: Order, screen: Screen) -> int:
    start = time.perf_counter()
    check_target(order.out)
    check_target(unverified(order.out))
    check_file(order.html)
    exporter, config = _exporter(order, order.config(), screen)
    clients = find_clients(order.clients, exporter.export_format)
    from ..inputs.loading import load_model
    from ..inputs.samples import sample_inputs

    with screen.step("Load model"):
        loaded = load_model(order.model, task=order.task, dtype=order.dtype, gguf_file=order.gguf_file)
    make = _maker(order, loaded, exporter)
    for note in loaded.notes:
        screen.say(f"  ! {note}", "yellow")
    with screen.step("Sample inputs"):
        inputs = sample_inputs(loaded.model, tokenizer=loaded.tokenizer, processor=loaded.processor)
    exported = make(loaded.model, inputs, config, observer=screen.observe)
    for client in clients:
        client.adapt(exported, loaded.tokenizer)
    report: Report | None = None
    if order.check:
        with screen.step("Verify"):
            report = exported.verify(observer=screen.checking)
    directory = order.out if report is None or report.verified else unverified(order.out)
    with screen.step("Save"):
        _save(exported, loaded, clients, report, directory)
    if report is not None and order.html is not None:
        write_text(order.html, _page(report))
    _tell(order, exported, loaded, report, directory, time.perf_counter() - start, screen)
    return 0 if report is None or report.verified else 1


def _maker(order: Order, loaded: LoadedModel, exporter: Any) -> Any:
    """The exporter's method: a model that writes becomes a decoder with its cache, unless told otherwise."""
    from ..generation.multimodal import reads_pictures

    behind_encoder = loaded.task in _BEHIND_ENCODERS and getattr(loaded.model.config, "is_encoder_decoder", False)
    with_pictures = loaded.task == _WITH_PICTURES and reads_pictures(loaded.model)
    if not order.cache or not (behind_encoder or with_pictures or loaded.task == "text-generation"):
        return exporter.export
    reason = _no_cache(exporter.export_format, loaded.model) if order.dynamic else _STATIC
    if reason is None:
        return exporter.export_for_generation
    loaded.notes.append(f"One forward pass without a cache, so a new token costs a run of the whole text: {reason}")
    return exporter.export


def _no_cache(export_format: str, model: Any) -> str | None:
    """Why a format cannot have a model's cache yet, or None; what no format can have is left to the export to refuse
    where the others would.
    """
    from ..generation.export import INSIDE, not_yet

    if export_format not in INSIDE:
        return None
    try:
        reason = not_yet(export_format, model)
    except InputError as error:
        reason = error.message
    return None if reason is None else f"{export_format} cannot keep this cache yet: {reason}"


def _exporter(order: Order, asked: dict[str, Any], screen: Screen) -> tuple[Any, Any]:
    """The exporter and its config; a wrong format or workaround id ends here, before the model is loaded."""
    with screen.step("Load libraries"):
        from .. import AutoExportConfig, AutoExporter
        from ..exporters.utils import find_workaround

        for workaround_id in order.skip_workarounds:
            find_workaround(workaround_id)
        config = AutoExportConfig.from_dict(asked)
        return AutoExporter.from_config(config), config


def _save(
    exported: ExportedModel, loaded: LoadedModel, clients: list[Client], report: Report | None, directory: Path
) -> None:
    """Save the artifact with its page: the page is part of the whole that appears at once."""
    pages = [] if report is None else [_Page(report, loaded.extra_files)]
    exported.save(
        directory,
        assets=[*loaded.assets, *clients, *pages],
        extra_files=loaded.extra_files,
        source=loaded.source,
        task=loaded.task,
    )
    if report is not None:
        report.files = file_sizes(directory)


@dataclass(frozen=True)
class _Page:
    """The report as an asset of the artifact. It is written after the others, because it lists the files beside it.

    Attributes:
        report: What the page shows.
        extra_files: Files that are put beside the page after it.
    """

    report: Report
    extra_files: dict[str, Path]

    def save_pretrained(self, folder: Path) -> None:
        """Write the page into an artifact's folder."""
        coming = {name: path.stat().st_size for name, path in self.extra_files.items()}
        self.report.files = dict(sorted((file_sizes(folder) | coming).items()))
        (folder / PAGE).write_text(_page(self.report), encoding="utf-8")


def _page(report: Report) -> str:
    from ..verification.html import render_html

    return render_html(report)


def _tell(
    order: Order,
    exported: ExportedModel,
    loaded: LoadedModel,
    report: Report | None,
    directory: Path,
    seconds: float,
    screen: Screen,
) -> None:
    from rich.text import Text

    described = exported.runner.describe()
    payload: dict[str, Any] = {
        "status": report.status if report is not None else "exported",
        "artifact": str(directory),
        "export_format": order.export_format,
        "seconds": round(seconds, 3),
        "notes": loaded.notes,
        "run": exported.run.to_dict(),
        "program": described,
        "shape_contract": exported.contract.to_dict(),
        "report": report.to_dict() if report is not None else None,
    }
    if report is None:
        screen.result(payload, Text(f"Exported without verification: {directory}", style="yellow"))
        return
    from ..verification.table import report_table

    screen.result(payload, report_table(report))
    for line in program_lines(described, file_sizes(directory)):
        screen.say(line)
    if report.verified:
        screen.say(f"Saved: {directory}  (page: {directory / PAGE})")
        return
    screen.say(f"✗ NOT VERIFIED. Saved for inspection only: {directory}", "bold red")
    if order.out.exists():
        screen.say(f"  → {order.out} still holds the earlier artifact.")
