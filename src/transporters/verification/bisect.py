# SPDX-License-Identifier: Apache-2.0
"""Where a mismatch begins: the first rung between eager and the runtime that deviates, then the first submodule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from ..exporters.tracing import preserved_state, seeded
from . import compare
from .report import Bisection, BisectionStep
from .variations import Case

if TYPE_CHECKING:
    from ..artifacts.exported import ExportedModel
    from .verify import Eager


def bisect(exported: ExportedModel, eager: Eager, case: Case, expected: Any, noise: dict[str, float]) -> Bisection:
    """Climb from eager to the runtime and stop at the first rung whose outputs are not eager's.

    Args:
        exported: The artifact; its ``rungs`` are the stages that can be run on their own.
        eager: The reference.
        case: The inputs of the mismatch.
        expected: Eager's outputs for them.
        noise: Eager's own noise for them.
    """
    rungs = {"eager": eager, **exported.rungs, f"{exported.export_format} runtime": lambda i: exported(**i)}
    steps: list[BisectionStep] = []
    for name, run in rungs.items():
        steps.append(_step(name, run, case, expected, noise))
        if not steps[-1].passed:
            break
    first = next((step.name for step in steps if not step.passed), "")
    submodule = ""
    if isinstance(exported.program, ExportedProgram) and first.endswith("runtime"):
        submodule = first_submodule(exported, eager, case)
    return Bisection(case.name, tuple(steps), first, submodule)


def first_submodule(exported: ExportedModel, eager: Eager, case: Case) -> str:
    """Dotted name of the first submodule whose output in the program is not eager's; empty when none is found."""
    wanted = _eager_outputs(eager, case.inputs)
    given = _program_outputs(exported, case.inputs)
    for name, value in given.items():
        other = wanted.get(name)
        if not name or other is None or other.shape != value.shape or not value.is_floating_point():
            continue
        (check,) = compare.compare({"output": value}, {"output": other})
        if not check.passed:
            return name
    return ""


def _step(name: str, run: Any, case: Case, expected: Any, noise: dict[str, float]) -> BisectionStep:
    try:
        with seeded():
            checks = compare.compare(run(case.inputs), expected, noise)
    except Exception as error:  # noqa: BLE001  a rung that cannot run is the answer that is looked for
        return BisectionStep(name, False, detail=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    wrong = [check for check in checks if not check.passed]
    errors = [check.max_abs for check in checks if check.max_abs is not None]
    detail = f"{wrong[0].name}: {wrong[0].detail}" if wrong else ""
    return BisectionStep(name, not wrong, max(errors, default=None), detail)


def _eager_outputs(eager: Eager, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Output of every submodule's last call in an eager run, where it is a tensor or starts with one."""
    found: dict[str, torch.Tensor] = {}
    hooks = []
    with preserved_state(eager.model):
        for name, module in eager.model.named_modules():
            hooks.append(module.register_forward_hook(_keep(found, name)))
        try:
            eager(inputs)
        finally:
            for hook in hooks:
                hook.remove()
    return found


def _keep(found: dict[str, torch.Tensor], name: str) -> Any:
    def hook(_: torch.nn.Module, __: Any, output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(first, torch.Tensor):
            found[name] = first.detach().clone()

    return hook


def _program_outputs(exported: ExportedModel, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What each submodule's last call produces in the program's graph, in the order in which they end."""
    found: dict[str, torch.Tensor] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, torch.Tensor) and n.op == "call_function":
                # A module's output is what is computed last under it, by itself or by a submodule.
                for name, _ in reversed((n.meta.get("nn_module_stack") or {}).values()):
                    found.pop(name, None)
                    found[name] = value
            return value

    module = exported.program.module()
    flat = torch.utils._pytree.tree_leaves(exported.complete_inputs(inputs))
    with torch.no_grad(), seeded():
        Recorder(module).run(*flat)
    return found
