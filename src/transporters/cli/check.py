# SPDX-License-Identifier: Apache-2.0
"""``transporters check``: what an export of an architecture would come to, found out on a tiny model of it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import Screen, session
from .options import FORMAT_HELP, AsJson, Verbose

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..artifacts.exported import ExportedModel
    from ..verification.report import Report
    from ..zoo.choosing import Choice

#: Sizes that the screen shows; the JSON document has them all.
_SIZES = 18


@dataclass
class Outcome:
    """What came of one format.

    Attributes:
        export_format: Its name, as it was asked for.
        verdict: "verified", "mismatch", "run error" or "refused".
        seconds: Wall time.
        stages: Stage to seconds, of those that ran.
        error: Type, stage, message and line of the model (``where``), unless it is verified.
        advice: What to do about a refusal.
        exported: The program, unless it was refused.
        report: Its verification, unless it was refused.
    """

    export_format: str
    verdict: str = "refused"
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    error: dict[str, str] | None = None
    advice: str | None = None
    exported: ExportedModel | None = None
    report: Report | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        run, contract = (self.exported.run, self.exported.contract) if self.exported is not None else (None, None)
        return {
            "export_format": self.export_format,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 3),
            "stages": self.stages,
            "error": self.error,
            "advice": self.advice,
            "run": run.to_dict() if run is not None else None,
            "shape_contract": contract.to_dict() if contract is not None else None,
            "report": self.report.to_dict() if self.report is not None else None,
        }


def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="ARCH_OR_MODEL",
            help="Architecture (llama), model class (LlamaForCausalLM), folder with a config.json, or hub id.",
        ),
    ],
    to: Annotated[list[str], typer.Option("--to", metavar="FORMAT", help=f"{FORMAT_HELP} Repeatable.")],
    static: Annotated[bool, typer.Option("--static", help="Fix every axis at the size of the sample.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say whether ARCH_OR_MODEL can be exported, by exporting and verifying a tiny model of the same architecture.

    No weights are needed: a model of the config's kind is built with tiny sizes and random weights. Nothing is saved.
    """
    with session(as_json=as_json, verbose=verbose) as screen:
        raise typer.Exit(_carry_out(what, list(dict.fromkeys(to)), not static, screen))


def _carry_out(what: str, formats: list[str], dynamic: bool, screen: Screen) -> int:
    from ..exporters import auto

    for export_format in formats:
        auto.backend(export_format)
    with screen.step("Load libraries"):
        from .. import zoo
        from ..zoo.choosing import build_twin, choose
    with screen.step("Find model class"):
        choice = choose(what)
    with screen.step("Build tiny model"):
        model, inputs = build_twin(choice)
    outcomes = []
    for export_format in formats:
        if len(formats) > 1:
            screen.say(f"{choice.name} → {export_format}", "bold")
        outcomes.append(_try(export_format, dynamic, model, inputs, screen))
    tiny = zoo.tiny_config(choice.config)
    payload = _about(what, choice, tiny, model)
    good = all(outcome.verdict == "verified" for outcome in outcomes)
    screen.result(
        {
            "status": "verified" if good else "not verified",
            **payload,
            "dynamic": dynamic,
            "formats": [outcome.to_dict() for outcome in outcomes],
        },
        _view(payload, outcomes),
    )
    return 0 if good else 1


def _try(export_format: str, dynamic: bool, model: Any, inputs: dict[str, Any], screen: Screen) -> Outcome:
    """Export and verify. Whatever an export raises is the answer to what was asked; the next format has its turn."""
    from .. import AutoExportConfig, AutoExporter
    from ..errors import TransportersError
    from ..sweep.faults import VERIFY, describe, failure

    outcome = Outcome(export_format)

    def observe(record: Any) -> None:
        screen.observe(record)
        if record.status != "running":
            outcome.stages[record.name] = round(outcome.stages.get(record.name, 0.0) + record.seconds, 3)

    start = time.perf_counter()
    try:
        config = AutoExportConfig.from_dict({"export_format": export_format, "dynamic": dynamic})
        outcome.exported = AutoExporter.from_config(config).export(model, inputs, config, observer=observe)
        with screen.step(VERIFY):
            outcome.report = outcome.exported.verify(observer=screen.checking)
    except Exception as error:  # noqa: BLE001  a library may raise anything
        stage = getattr(error, "stage", None) or (VERIFY if outcome.exported is not None else "")
        outcome.error = describe(error, stage)
        outcome.advice = error.advice if isinstance(error, TransportersError) else None
        outcome.verdict = "refused" if outcome.exported is None else "run error"
    else:
        outcome.verdict = _verdict(outcome.report)
        outcome.error = None if outcome.report.verified else failure(outcome.report)
    outcome.seconds = time.perf_counter() - start
    return outcome


def _verdict(report: Report) -> str:
    return report.status if report.status in ("verified", "mismatch") else "run error"


def _about(what: str, choice: Choice, tiny: Any, model: Any) -> dict[str, Any]:
    """The facts about the tiny model."""
    from ..zoo.differences import layer_kinds, layer_modules, shrunk

    quantization = getattr(choice.config, "quantization_config", None)
    method = quantization.get("quant_method", "some") if isinstance(quantization, dict) else None
    return {
        "asked": what,
        "class": choice.name,
        "architecture": choice.config.model_type,
        "config": choice.origin,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "left_out": [f"{method} quantization: the tiny model is in float32"] if method else [],
        "shrunk": [asdict(size) for size in shrunk(choice.config, tiny)],
        "layers": layer_modules(model),
        "layer_kinds": [asdict(kinds) for kinds in layer_kinds(choice.config, tiny)],
    }


def _view(payload: dict[str, Any], outcomes: list[Outcome]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from ..verification.table import report_table

    parts: list[RenderableType] = [_twin(payload)]
    for outcome in outcomes:
        if outcome.report is not None:
            parts.append(report_table(outcome.report))
        else:
            parts.append(_refusal(payload["class"], outcome))
    parts.append(Text("In one line", style="bold"))
    parts += [_line(outcome) for outcome in outcomes]
    return Group(*parts)


def _twin(payload: dict[str, Any]) -> RenderableType:
    """Which class, from which config, and what was made smaller."""
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    head = Text(f"{payload['class']}", style="bold")
    head.append(f", tiny ({payload['parameters']:,} random parameters), from {payload['config']}", style="not bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("Shrunk")
    table.add_column("From", justify="right", overflow="fold")
    table.add_column("To", justify="right", overflow="fold")
    for size in payload["shrunk"][:_SIZES]:
        table.add_row(size["name"], _short(size["full"]), _short(size["tiny"]))
    lines = [Text(f"Layers: {name} {_counted(kinds)}") for name, kinds in payload["layers"].items()]
    lines += [Text(f"Kinds kept: {kinds['name']} {_kinds(kinds)}") for kinds in payload["layer_kinds"]]
    lines += [Text(f"Left out: {text}", style="yellow") for text in payload["left_out"]]
    rest = len(payload["shrunk"]) - _SIZES
    if rest > 0:
        lines.insert(0, Text(f"… and {rest} more sizes (--json lists them)", style="dim"))
    return Group(head, Padding(table, (1, 0, 0, 2)), Padding(Group(*lines), (0, 0, 1, 2)))


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ", ".join(map(str, value))


def _counted(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in kinds.items())


def _kinds(kinds: dict[str, Any]) -> str:
    return ", ".join(f"{name} {count} → {kinds['tiny'].get(name, 0)}" for name, count in kinds["full"].items())


def _refusal(name: str, outcome: Outcome) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    error = outcome.error or {}
    lines = [Text(f"✗ {name} → {outcome.export_format}: {outcome.verdict}", style="bold red")]
    lines.append(Text(f"{error.get('type')}: {error.get('message')}", style="red"))
    if error.get("where"):
        lines.append(Text(f"at {error['where']}"))
    if outcome.advice:
        lines.append(Text(f"→ {outcome.advice}"))
    if outcome.stages:
        lines.append(Text(" → ".join(f"{stage} {s:.2f} s" for stage, s in outcome.stages.items()), style="dim"))
    return Padding(Group(*lines), (0, 0, 1, 0))


def _line(outcome: Outcome) -> Any:
    """The verdict of one format; what does not fit into a line stands above."""
    from rich.text import Text

    from ..verification.summary import counts, plural

    if outcome.verdict == "verified" and outcome.report is not None:
        told = f"verified, equal to eager at {plural(counts(outcome.report)[1], 'set')} of inputs"
        return Text(f"  ✓ {outcome.export_format}: {told} ({outcome.seconds:.1f} s)", style="green")
    error = outcome.error or {}
    stage = f" in stage {error['stage']}" if error.get("stage") else ""
    place = f" at {error['where']}" if error.get("where") else ""
    told = f"{outcome.verdict}{stage}{place}: {error.get('type')}: {error.get('message')}"
    return Text(f"  ✗ {outcome.export_format}: {told}", style="bold red", no_wrap=True, overflow="ellipsis")
