# SPDX-License-Identifier: Apache-2.0
"""From a traced program to an ONNX model.

The program comes from `DynamoExporter`; five stages stand around `torch.onnx.export`:

1. **Torch patches**: what ONNX has no translation for is swapped, from the trace on until the graph is finished.
2. **ONNX patches**: the program is decomposed here, once, and the guards that this brings back are dropped again.
3. **FX node fixes**: graph nodes that cannot be lowered are rewritten.
4. **ONNX translations**: the graph is translated, with our own lowerings where the default is missing or wrong.
5. **ONNX IR fixes**: the finished graph is optimized, named, and rewritten around faults of ONNX Runtime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.fx.experimental import _config as fx_config
from torch.onnx.errors import OnnxExporterError

from ..errors import ExportError
from .base import Finished
from .configs import ExportConfig, OnnxConfig
from .decomposition import decompose
from .exporter_dynamo import DynamoExporter
from .known_faults import ONNX_DISABLE_OPTIMIZE
from .onnx_tables import _IR_FIXES, _ONNX_TRANSLATION_TABLE, apply_ir_fixes, translation_table
from .patching import fix_nodes, fix_program, patched
from .quiet import without_output
from .run import ExportRun
from .traced import finish, run_program, source_line

if TYPE_CHECKING:
    import onnx_ir
    from transformers import PreTrainedModel

__all__ = ["ONNX_DISABLE_OPTIMIZE", "_IR_FIXES", "_ONNX_TRANSLATION_TABLE", "OnnxExporter"]

# ── Stage 1: Torch patches ──

# `patched("onnx", …)` in `OnnxExporter.run_stages`: in force while the stages of `DynamoExporter` trace the
# model, and, for those that swap torch.onnx's and onnxscript's own code, until the graph is finished.


# ── Stage 2: ONNX patches ──


def _decompose(
    program: ExportedProgram, translations: Mapping[Any, Any], config: OnnxConfig, run: ExportRun
) -> ExportedProgram:
    """Bring the program down to operations that have a translation, and repair what that breaks.

    Node fixes run before as well, for the decomposition trips over some of the nodes that they rewrite.
    """
    from torch.onnx._internal.exporter import _decomp, _registration

    fix_nodes("onnx", program.graph_module, run, run.skipped)
    with without_output():
        registry = _registration.ONNXRegistry.from_torchlib(config.opset_version)
    known = {*_decomp.get_onnx_implemented_overloads(registry), *translations}
    with torch.no_grad(), fx_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]  # as in the trace
        lowered = decompose(program, _decomp.create_onnx_friendly_decomposition_table(known))
    fix_program("dynamo", lowered, run, run.skipped)
    return lowered


# ── Stage 3: FX node fixes ──


def _fix_nodes(lowered: ExportedProgram, run: ExportRun) -> None:
    """Rewrite what has no translation, until nothing more is found: a fix may make a node that another one wants."""
    while fix_nodes("onnx", lowered.graph_module, run, run.skipped):
        pass


# ── Stage 4: ONNX translations ──


def _translate(lowered: ExportedProgram, translations: Mapping[Any, Any], config: OnnxConfig) -> onnx_ir.Model:
    """Translate operation by operation. The program is decomposed already, so torch's own second go gives it back.

    Outputs that are plain numbers, the same for all inputs, cannot be outputs of an ONNX graph; the runner adds them.
    """
    lowered.run_decompositions = lambda *_, **__: lowered
    output = lowered.graph.output_node()
    outputs = output.args
    output.args = (tuple(made if isinstance(made, torch.fx.Node) else None for made in outputs[0]),)
    try:
        with without_output(), torch.no_grad():  # with gradients attention would lie in memory in another way
            translated = torch.onnx.export(
                lowered,
                dynamo=True,
                verbose=False,
                optimize=False,
                opset_version=config.opset_version,
                custom_translation_table=dict(translations),
            )
    except OnnxExporterError as error:
        raise _explained(error, lowered) from error
    finally:
        output.args = outputs
    assert translated is not None, "torch.onnx.export with dynamo=True gives the model back"
    return translated.model


def _explained(error: OnnxExporterError, lowered: ExportedProgram) -> ExportError:
    """torch's error, which is a page long, as the node that failed, the model's line, and the innermost cause."""
    causes: list[BaseException] = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    named = [match for cause in causes if (match := re.search(r"translating node %(\w+)", str(cause)))]
    node = next((node for node in lowered.graph.nodes if named and node.name == named[-1][1]), None)
    if node is None:
        return ExportError(f"torch.onnx cannot translate the program: {_first_line(causes[-1])}")
    if "No ONNX function found" in str(causes[-1]) or "No decompositions registered" in str(causes[-1]):
        return ExportError(
            f"ONNX has no translation of {node.target}{source_line(node)}",
            advice="add an `_aten_*` function to `_ONNX_TRANSLATION_TABLE` (docs/extending.md)",
        )
    return ExportError(
        f"the translation of {node.target}{source_line(node)} failed: {_first_line(causes[-1])}",
        advice="add a translation of your own to `_ONNX_TRANSLATION_TABLE` (docs/extending.md) and report this case",
    )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


# ── Stage 5: ONNX IR fixes ──


def _finish_ir(model: onnx_ir.Model, finished: Finished, config: OnnxConfig, run: ExportRun) -> None:
    """Optimize, repair, and name."""
    from .onnx_names import drop_notes, name_nodes, name_values

    name_nodes(model)
    upstream = ONNX_DISABLE_OPTIMIZE.get(type(finished.prepared.model).__name__)
    if upstream is not None:
        run.note("warning", "optimizer", f"is off for this class because of {upstream}")
    elif config.optimize:
        _optimize(model)
    apply_ir_fixes(model, run)
    name_values(model, finished)
    drop_notes(model)


def _optimize(model: onnx_ir.Model) -> None:
    """Fold constants and apply onnxscript's rewrite rules, in place.

    What reads a weight is left to the runtime: folding it here would store the weight anew, under another name.
    """
    from onnxscript import optimizer

    weights = {id(value) for value in model.graph.initializers.values()}

    def should_fold(node: onnx_ir.Node) -> bool | None:
        return False if any(id(value) in weights for value in node.inputs) else None

    with without_output():
        optimizer.optimize_ir(model, should_fold=should_fold)


class OnnxExporter(DynamoExporter):
    """Exports to ONNX, to be run by ONNX Runtime."""

    export_format: ClassVar[str] = "onnx"
    backend: ClassVar[str] = "onnx"
    stages: ClassVar[tuple[str, ...]] = (
        "Torch patches",
        "ONNX patches",
        "FX node fixes",
        "ONNX translations",
        "ONNX IR fixes",
    )
    config_class: ClassVar[type[ExportConfig]] = OnnxConfig
    requires: ClassVar[tuple[str, ...]] = (
        *DynamoExporter.requires,
        "onnx>=1.23,<1.24",
        "onnxscript>=0.7.2,<0.8",
        "onnx-ir>=1.1,<1.2",
        "onnxruntime>=1.32,<1.33",
    )

    def run_stages(
        self, model: PreTrainedModel, sample_inputs: Mapping[str, Any], config: Any, run: ExportRun
    ) -> Finished:
        """Trace under the torch patches, then lower."""
        with ExitStack() as stack:
            with run.stage(self.stages[0]):
                stack.enter_context(patched("onnx", run, run.skipped))
            program, prepared, contract = self.trace(model, sample_inputs, config, run)
            finished = finish(program, prepared, contract, run)
            translations = translation_table(run)
            with run.stage(self.stages[1]):
                lowered = _decompose(program, translations, config, run)
            with run.stage(self.stages[2]):
                _fix_nodes(lowered, run)
            with run.stage(self.stages[3]):
                finished.program = _translate(lowered, translations, config)
            with run.stage(self.stages[4]):
                _finish_ir(finished.program, finished, config, run)
        finished.program.meta["external_data"] = config.external_data
        finished.rungs["exported program"] = run_program(program, prepared)
        finished.rungs["decomposed program"] = run_program(lowered, prepared)
        return finished
