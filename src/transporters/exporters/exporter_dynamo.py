# SPDX-License-Identifier: Apache-2.0
"""From a Transformers model to a `torch.export.ExportedProgram`.

One patch stage and four helpers stand around `torch.export.export`, in this order:

1. **Forward signature**: ``model.forward`` gets one parameter per input for the length of the trace, so that nothing
   is packed into a ``**kwargs`` bundle.
2. **Model patches**: code that cannot be traced is swapped for an equal that can; flash and flex attention for SDPA.
3. **Pytree registration**: every cache and container becomes known to torch, so that it can be an input or an output.
4. **Dynamic shapes**: each axis is made symbolic or static as the configuration says, and the model is traced.
5. **State cleanup**: attributes and tables that the trace left behind on the model are put back, state that the
   program would carry from one call to the next without need is taken out, and the shape contract is drawn up.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.fx.experimental import _config as fx_config

from ..trees import pytrees
from ..trees.containers import _flatten_to_context, _unflatten_from_context
from . import contract, dynamic_shapes, guards
from .base import Exporter, Finished
from .configs import DynamoConfig, ExportConfig
from .patching import fix_nodes, fix_program, patched
from .preflight import preflight
from .prepare import Prepared, prepare
from .run import ExportRun
from .shapes import ShapeContract
from .traced import Traced, finish, note_graph_findings
from .tracing import preserved_state, traceable_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["_STATEFUL_CACHE_ATTRS", "DynamoExporter", "_flatten_to_context", "_unflatten_from_context"]


# ── Stage 1: Forward signature ──


@contextmanager
def _flat_signature(model: torch.nn.Module, names: tuple[str, ...], constants: Mapping[str, Any]) -> Iterator[None]:
    """Give ``model.forward`` one parameter per input, with ``constants`` bound."""
    standing = model.__dict__.get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        # Looked up by each call: a patch of the class's own forward comes into force later than this.
        original = standing or inspect.getattr_static(type(model), "forward").__get__(model)
        return pytrees.in_field_order(original(**{**constants, **dict(zip(names, args)), **kwargs}))

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    model.__dict__["forward"] = forward
    try:
        yield
    finally:
        if standing is None:
            del model.__dict__["forward"]
        else:
            model.__dict__["forward"] = standing


# ── Stage 2: Model patches ──


def _patch_model(model: torch.nn.Module, backend: str, run: ExportRun, stack: ExitStack) -> None:
    """Put the patches in force until ``stack`` closes, and the attention where the trace can follow it."""
    stack.enter_context(patched(backend, run, run.skipped))
    stack.enter_context(traceable_attention(model, run))


# ── Stage 3: Pytree registration ──


def _register_containers(prepared: Prepared) -> None:
    """Make every container that the model may take or return known to torch."""
    pytrees.register_model_containers(prepared.model, prepared.inputs)


# ── Stage 4: Dynamic shapes ──


def _trace(prepared: Prepared, config: DynamoConfig, run: ExportRun) -> Traced:
    """Trace the model with the axes that the configuration asks for.

    A sample can sit on a special point (an image that shrinks to a single window), and the guards of its trace then
    admit little else. When they refuse inputs of twice the size, which eager takes, those are traced instead.
    """
    wanted = dynamic_shapes.request(prepared, config)
    inputs = dynamic_shapes.enlarge(prepared, wanted, run)
    program = _solved(prepared.model, inputs, wanted)
    for larger in dynamic_shapes.doubled(prepared, wanted):
        if isinstance(program, ExportedProgram) and not _refuses(program, larger):
            break
        if not prepared.eager_takes(larger):
            continue
        second = _solved(prepared.model, larger, wanted)
        if isinstance(second, ExportedProgram) and not _refuses(second, inputs):
            run.note("info", "sample", "traced at twice its size, because its own size is a special case for the model")
            return Traced(second, larger, wanted)
        break
    if isinstance(program, NotImplementedError):
        raise program
    return Traced(program, inputs, wanted)


def _solved(
    model: torch.nn.Module, inputs: dict[str, Any], wanted: dynamic_shapes.ShapeRequest
) -> ExportedProgram | NotImplementedError:
    """A program; or the error, when sympy cannot solve which sizes the trace of a special point admits."""
    try:
        return _export(model, inputs, wanted)
    except NotImplementedError as error:
        return error


def _refuses(program: ExportedProgram, inputs: dict[str, Any]) -> bool:
    """Whether a guard that stays in the program forbids these sizes."""
    standing = [guard for guard in program._guards_code if not guards.forbids_only_small_sizes(guard)]
    return bool(guards.violated(standing, dynamic_shapes.shapes(inputs)))


def _export(model: torch.nn.Module, inputs: dict[str, Any], wanted: dynamic_shapes.ShapeRequest) -> ExportedProgram:
    # Sizes 0 and 1 are no special cases unless the model's own code asks: a symbol that starts at 2 narrows every size
    # computed from it, until a program refuses the images that shrink to one patch.
    with fx_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        return torch.export.export(model, (), inputs, dynamic_shapes=wanted.spec(inputs), strict=False)


# ── Stage 5: State cleanup ──

#: Attributes in which a model keeps tensors from one forward pass for the next. They are empty while the trace runs, so
#: that no earlier call ends up as a constant of the program; what they held before is put back after it.
_STATEFUL_CACHE_ATTRS = ["rope_deltas"]


@contextmanager
def _clean_state(model: torch.nn.Module) -> Iterator[None]:
    """Empty `_STATEFUL_CACHE_ATTRS` for the trace, then put back all that a forward pass sets on the model."""
    with preserved_state(model):
        for module in model.modules():
            for name in _STATEFUL_CACHE_ATTRS:
                if isinstance(module.__dict__.get(name), torch.Tensor):
                    module.__dict__[name] = None
        yield


def _clean_program(traced: Traced, prepared: Prepared, config: DynamoConfig, run: ExportRun) -> ShapeContract:
    """Take needless state out of the program, and draw up its shape contract."""
    fix_program("dynamo", traced.program, run, run.skipped)
    fix_nodes("dynamo", traced.program.graph_module, run, run.skipped)
    shape_contract = contract.build(traced.program, prepared, traced.inputs, traced.wanted)
    contract.check(shape_contract, traced.wanted, config)
    for axis in shape_contract.axes:
        if axis.dynamic and axis.reason.endswith(contract.NARROWED):
            run.note("warning", axis.label, f"the program takes sizes from {axis.minimum} up; {axis.reason}")
    note_graph_findings(traced.program, traced.inputs, run)
    for guard in guards.restrictions(traced.program._guards_code, shape_contract, prepared.labels):
        run.note("warning", "shapes", f"the program takes only sizes with {guard}")
    return shape_contract


class DynamoExporter(Exporter):
    """Exports with `torch.export`. Every other exporter starts from its program."""

    export_format: ClassVar[str] = "torch"
    backend: ClassVar[str] = "dynamo"
    stages: ClassVar[tuple[str, ...]] = (
        "Forward signature",
        "Model patches",
        "Pytree registration",
        "Dynamic shapes",
        "State cleanup",
    )
    config_class: ClassVar[type[ExportConfig]] = DynamoConfig
    requires: ClassVar[tuple[str, ...]] = ("torch>=2.13,<2.14", "transformers>=5.24,<5.25")

    def run_stages(
        self, model: PreTrainedModel, sample_inputs: Mapping[str, Any], config: DynamoConfig, run: ExportRun
    ) -> Finished:
        """Trace, and hand the program over as it is."""
        return finish(*self.trace(model, sample_inputs, config, run), run)

    def trace(
        self, model: PreTrainedModel, sample_inputs: Mapping[str, Any], config: DynamoConfig, run: ExportRun
    ) -> tuple[ExportedProgram, Prepared, ShapeContract]:
        """Prepare the inputs, then the five stages; what they put on the model is taken off, whatever happens."""
        with run.stage("Prepare"):
            prepared = prepare(model, sample_inputs, run)
            preflight(prepared, run)
        with torch.no_grad(), _clean_state(model), ExitStack() as stack:
            with run.stage(DynamoExporter.stages[0]):
                stack.enter_context(_flat_signature(model, tuple(prepared.inputs), prepared.constants))
            with run.stage(DynamoExporter.stages[1]):
                _patch_model(model, "dynamo", run, stack)
            with run.stage(DynamoExporter.stages[2]):
                _register_containers(prepared)
            with run.stage(DynamoExporter.stages[3]):
                traced = _trace(prepared, config, run)
        with run.stage(DynamoExporter.stages[4]):
            shape_contract = _clean_program(traced, prepared, config, run)
        return traced.program, prepared, shape_contract
