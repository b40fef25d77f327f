# SPDX-License-Identifier: Apache-2.0
"""From the caller's model and inputs to what a trace takes, without touching either.

Checks come first and name the argument at fault; the inputs are copied, cast to the model's dtype and moved to its
device; values that are not tensors become constants of the program.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError
from ..inputs import axes, resizing
from ..trees import pytrees
from .preparers import Preparer, preparers_for
from .run import ExportRun
from .tracing import preserved_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Arguments that only a loss needs. A program with a loss in it is a training graph.
LABELS = frozenset(
    {
        "labels",
        "label",
        "decoder_labels",
        "class_labels",
        "mask_labels",
        "next_sentence_label",
        "sentence_order_label",
        "start_positions",
        "end_positions",
        "future_values",
        "return_loss",
    }
)
_RENAMED = {"past_key_values": "cache", "cache_params": "cache"}
_MODALITIES = ("image_", "video_", "audio_")


@dataclass
class Prepared:
    """What the trace works on.

    Attributes:
        model: The caller's model, untouched.
        given: What the caller gave, as private copies in the model's dtype, on its device.
        inputs: ``given`` and what the preparers computed from it: the inputs of the program.
        constants: Forward argument to a value that is baked into the program.
        labels: Leaf name to one label per axis (`transporters.inputs.axes`).
        preparers: Those that computed further inputs, in order.
    """

    model: PreTrainedModel
    given: dict[str, Any]
    inputs: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    labels: axes.Labels = field(default_factory=dict)
    preparers: tuple[Preparer, ...] = ()

    def resized(self, new_sizes: Mapping[str, int]) -> dict[str, Any]:
        """The inputs at other sizes (`transporters.inputs.resizing`), those of the preparers computed anew."""
        resized = resizing.resize(self.given, axes.label_axes(self.given), new_sizes)
        return self.complete(resized)

    def complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the caller gave, with what the preparers compute from it."""
        inputs = dict(given)
        for preparer in self.preparers:
            inputs = preparer.before(self.model.config, type(self.model), inputs)
        return inputs

    def eager(self, inputs: Mapping[str, Any]) -> Any:
        """The eager model's outputs. The model is left as it was, and so are the inputs."""
        private = {name: pytrees.map_named(_clone, value) for name, value in inputs.items()}
        with torch.no_grad(), preserved_state(self.model):
            return self.model(**private, **self.constants)

    def eager_takes(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the eager model runs on these inputs."""
        try:
            self.eager(inputs)
        except Exception:  # noqa: BLE001  any error means that it does not
            return False
        return True


def prepare(model: PreTrainedModel, sample_inputs: Mapping[str, Any], run: ExportRun) -> Prepared:
    """Check the model and its inputs, and copy the inputs.

    Args:
        model: A model in evaluation mode.
        sample_inputs: Forward arguments by name, as the eager model takes them.
        run: Receives the preflight findings.

    Raises:
        InputError: A model in training mode, labels, an unknown argument, an integer argument given as float, or a
            container that cannot be taken apart. The message names the argument and says what to do.
    """
    _check_model(model)
    given = _named_arguments(model, sample_inputs, run)
    _note_shared_tensors(given, run)
    pytrees.register_model_containers(model, given)
    tensors = {name: value for name, value in given.items() if _is_input(value)}
    if not tensors:
        raise InputError(
            "the sample inputs hold no tensor", advice="pass the tensors that model.forward takes, by name"
        )
    constants = {name: value for name, value in given.items() if name not in tensors}
    copies = _copy(model, tensors, run)
    prepared = Prepared(model, copies, copies, constants, preparers=preparers_for(model, copies))
    prepared.inputs = prepared.complete(copies)
    prepared.labels = axes.label_axes(prepared.inputs)
    for name in sorted(set(prepared.inputs) - set(copies)):
        run.note("info", name, f"is computed from the other inputs before the program runs ({_names(prepared)})")
    return prepared


def copy_inputs(model_dtype: torch.dtype, device: torch.device, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Private copies of ``inputs``, floats in ``model_dtype``, on ``device``; containers are rebuilt, not shared.

    What a decoder takes back from its last step keeps the dtype in which it came out.
    """

    def cast(_: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        dtype = model_dtype if leaf.is_floating_point() else leaf.dtype
        return leaf.detach().to(device=device, dtype=dtype, copy=True)

    def move(_: str, leaf: Any) -> Any:
        return leaf.detach().to(device=device, copy=True) if isinstance(leaf, torch.Tensor) else leaf

    return {n: pytrees.map_named(move if n in axes.STEP_GROUPS else cast, value) for n, value in inputs.items()}


def forward_arguments(model: torch.nn.Module) -> tuple[tuple[str, ...], bool]:
    """Names that ``model.forward`` takes, and whether it takes any name (an untyped ``**kwargs``)."""
    names: list[str] = ["return_dict"]  # taken by a decorator, in no signature
    anything = False
    for parameter in inspect.signature(type(model).forward).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            typed = getattr(parameter.annotation, "__args__", (None,))[0]
            fields = getattr(typed, "__annotations__", None)
            names.extend(fields or ())
            anything = fields is None
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name != "self":
            names.append(parameter.name)
    return tuple(dict.fromkeys(names)), anything


def _taken_inside(model: torch.nn.Module, name: str) -> bool:
    """Whether ``**kwargs`` of ``model.forward`` may carry a name to a module inside of it that takes it."""
    signatures = (inspect.signature(type(module).forward).parameters for module in model.modules())
    bundled = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(type(model).forward).parameters.values())
    return bundled and any(name in parameters for parameters in signatures)


def _names(prepared: Prepared) -> str:
    return ", ".join(preparer.name for preparer in prepared.preparers)


def _clone(_: str, leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _check_model(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"a {type(model).__name__} is not a model",
            advice="pass a torch.nn.Module such as AutoModel.from_pretrained(…)",
        )
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if training:
        raise InputError(
            f"the model is in training mode ({training[0]} and {len(training) - 1} more modules)"
            if len(training) > 1
            else f"the model is in training mode ({training[0]})",
            advice="call model.eval() first: dropout and batch statistics do not belong in an exported program",
        )
    meta = next((name for name, p in model.named_parameters() if p.device.type == "meta"), None)
    if meta:
        raise InputError(
            f"parameter {meta} is on the meta device, so there are no weights to export",
            advice="load the model with its weights (from_pretrained without device_map='meta')",
        )


def _named_arguments(model: PreTrainedModel, sample_inputs: Mapping[str, Any], run: ExportRun) -> dict[str, Any]:
    if not isinstance(sample_inputs, Mapping):
        raise InputError(
            f"sample inputs are a {type(sample_inputs).__name__}, not a mapping from argument name to value",
            advice="pass a dict such as tokenizer(…, return_tensors='pt')",
        )
    names, anything = forward_arguments(model)
    given: dict[str, Any] = {}
    for name, value in sample_inputs.items():
        if value is None:
            continue
        if name in LABELS and not (name == "future_values" and getattr(model, "base_model", None) is model):
            raise InputError(
                f"the sample inputs hold {name!r}, which is there for a loss",
                advice=f"leave {name!r} out of the inputs",
            )
        if name in _RENAMED and _RENAMED[name] in names and name not in names:
            run.note("info", name, f"passed on as {_RENAMED[name]!r}, its name in this version of Transformers")
            name = _RENAMED[name]
        known = name in names or anything or name.startswith(_MODALITIES)
        if not known and not _taken_inside(model, name):
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            raise InputError(
                f"{type(model).__name__}.forward takes no argument {name!r}",
                advice=f"did you mean {near[0]!r}?" if near else f"it takes: {', '.join(names)}",
            )
        if isinstance(value, torch.Tensor) and value.is_floating_point() and name.endswith(("_ids", "input_ids")):
            raise InputError(
                f"{name} has dtype {str(value.dtype).removeprefix('torch.')}, but ids are integers",
                advice=f"pass {name}.long()",
            )
        given[name] = value
    return given


def _note_shared_tensors(given: Mapping[str, Any], run: ExportRun) -> None:
    seen: dict[int, str] = {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            if id(value) in seen:
                run.note("info", name, f"is the same tensor object as {seen[id(value)]}; the program keeps both inputs")
            seen.setdefault(id(value), name)


def _is_input(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return False
    return any(isinstance(leaf, torch.Tensor) for _, leaf in pytrees.named_leaves(value))


def _copy(model: torch.nn.Module, inputs: dict[str, Any], run: ExportRun) -> dict[str, Any]:
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    dtype = parameter.dtype if parameter is not None else torch.float32
    device = parameter.device if parameter is not None else torch.device("cpu")
    for name, leaf in pytrees.named_leaves(inputs):
        kept = name.partition(".")[0] in axes.STEP_GROUPS
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != dtype and not kept:
            run.note("info", name, f"cast from {leaf.dtype} to the model's {dtype}")
        if isinstance(leaf, torch.Tensor) and leaf.device != device:
            run.note("info", name, f"moved from {leaf.device} to the model's {device}")
    return copy_inputs(dtype, device, inputs)
