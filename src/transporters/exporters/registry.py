# SPDX-License-Identifier: Apache-2.0
"""The one registry of workarounds: reversible patches, and fixes of the traced graph or program.

A record is made by a decorator and kept in the order of registration, which is the order of application. The driver
that puts patches in force is `patched`; the drivers that run fixes are `fix_nodes` and `fix_program`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .. import versions
from ..errors import RegistryError, UsageError

if TYPE_CHECKING:
    import torch

Function = TypeVar("Function", bound=Callable[..., Any])

#: Workarounds registered for this name are in force in every exporter.
SHARED_BACKEND = "model"


@dataclass(frozen=True)
class Repro:
    """The smallest call that shows the fault a workaround cures: without it the export of the call fails or is wrong.

    Attributes:
        function: What is exported: a callable of tensors, or a `torch.nn.Module`.
        inputs: Makes the arguments, in order or by name, so that a wrong graph shows in the values.
        dynamic: Whether the fault needs symbolic sizes.
        builds: Whether ``function`` takes nothing and makes what is exported. Code of a model belongs into such a
            function, so that its module is imported when the fault is shown, and not with the workaround.
        most_calls: For a fault that costs time and not values: a dotted path, and how often the export may call it.
    """

    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...] | dict[str, Any]]
    dynamic: bool = False
    builds: bool = False
    most_calls: tuple[str, int] | None = None

    def module(self) -> torch.nn.Module:
        """What an exporter takes: the module, or one whose forward is the function."""
        import torch

        made = self.function() if self.builds else self.function
        if isinstance(made, torch.nn.Module):
            return made.eval()
        called: torch.nn.Module = type("Repro", (torch.nn.Module,), {"forward": staticmethod(made)})()
        return called.eval()

    def arguments(self, module: torch.nn.Module) -> dict[str, Any]:
        """New inputs for `module`, by name."""
        given = self.inputs()
        if isinstance(given, dict):
            return given
        names = [name for name in inspect.signature(type(module).forward).parameters if name != "self"]
        return dict(zip(names, given))


@dataclass(frozen=True)
class Workaround:
    """One registered patch or fix.

    Attributes:
        id: `<backend>:<function name>`, the name that `skip_workarounds` and the command line take.
        backend: Backend it is registered for; a dotted child includes its parent's workarounds.
        kind: "patch", "fx_node_fix", "fx_program_fix", "translation" or "ir_fix".
        function: The factory (patch) or the fix itself.
        paths: Dotted paths that a patch replaces.
        ops: Graph targets that a node fix wants to see (empty means every node), or that a translation translates.
        why: The fault, in one sentence.
        issue: An upstream issue's URL, "unreported" or "by-design".
        needed: Requirement string; where it does not hold the workaround is not applied.
        repro: The call that shows the fault.
    """

    id: str
    backend: str
    kind: str
    function: Callable[..., Any]
    paths: tuple[str, ...] = ()
    ops: tuple[Any, ...] = ()
    why: str = ""
    issue: str = ""
    needed: str = ""
    repro: Repro | None = None

    @property
    def doc(self) -> str:
        """The function's docstring, cleaned."""
        return inspect.getdoc(self.function) or ""


_BUILTIN = f"{__package__}.workarounds"
_WORKAROUNDS: dict[str, Workaround] = {}


def register_patch(
    backend: str,
    *dotted_paths: str,
    why: str = "",
    issue: str = "",
    needed: str = "",
    repro: Repro | None = None,
) -> Callable[[Function], Function]:
    """Register a patch factory for one or more dotted paths.

    The factory receives the original and returns the replacement, which is in force while an export of ``backend``
    runs. For a static- or classmethod the factory receives and returns the plain function; what stands in the class
    stays a static- or classmethod. A replacement may return `NotImplemented` to leave a call to the original; such a
    call does not count as firing. ``*`` in a path matches within loaded modules
    (`transporters.exporters.patching.targets`).

    Args:
        backend: "dynamo", "onnx", "executorch", a dotted child of one, or "model" for every exporter.
        dotted_paths: Import path of the attribute to replace, e.g. ``"torch.where"``.
        why: The fault, in one sentence.
        issue: Upstream issue's URL, "unreported" or "by-design".
        needed: Requirement string such as ``"transformers<5.26"``.
        repro: The call that shows the fault.

    Raises:
        RegistryError: When no path is given, or the backend has a patch for one of the paths already.
    """
    if not dotted_paths:
        raise RegistryError("a patch needs at least one dotted path", backend=backend)

    def decorate(function: Function) -> Function:
        for known in _WORKAROUNDS.values():
            if known.kind == "patch" and known.backend == backend and (taken := set(known.paths) & set(dotted_paths)):
                raise RegistryError(
                    f"{sorted(taken)[0]} is patched already by {known.id}",
                    backend=backend,
                    workaround=f"{backend}:{function.__name__}",
                    advice=f"extend that factory, or call unregister({known.id!r}) first",
                )
        register(backend, "patch", function, paths=dotted_paths, why=why, issue=issue, needed=needed, repro=repro)
        return function

    return decorate


def register_fx_node_fix(
    backend: str,
    *,
    ops: tuple[Any, ...] = (),
    why: str = "",
    issue: str = "",
    needed: str = "",
    repro: Repro | None = None,
) -> Callable[[Function], Function]:
    """Register ``fix(graph_module, node) -> bool``, which returns True only when it changed the graph.

    Args:
        backend: As for `register_patch`.
        ops: Node targets the fix wants; a node costs one dictionary access. Empty means every node.
        why: As for `register_patch`, like ``issue``, ``needed`` and ``repro``.
        issue: See ``why``.
        needed: See ``why``.
        repro: See ``why``.
    """

    def decorate(function: Function) -> Function:
        register(backend, "fx_node_fix", function, ops=ops, why=why, issue=issue, needed=needed, repro=repro)
        return function

    return decorate


def register_fx_program_fix(
    backend: str, *, why: str = "", issue: str = "", needed: str = "", repro: Repro | None = None
) -> Callable[[Function], Function]:
    """Register ``fix(exported_program) -> bool``, which changes the program in place and says whether it did."""

    def decorate(function: Function) -> Function:
        register(backend, "fx_program_fix", function, why=why, issue=issue, needed=needed, repro=repro)
        return function

    return decorate


def unregister(workaround_id: str) -> Workaround:
    """Take a workaround out of the registry and return it.

    Raises:
        UsageError: When no workaround has this id.
    """
    return _WORKAROUNDS.pop(find_workaround(workaround_id).id)


def lineage(backend: str) -> tuple[str, ...]:
    """Backends whose workarounds count for ``backend``: the shared one, then its parents, then itself."""
    if backend == SHARED_BACKEND:
        return (SHARED_BACKEND,)
    parts = backend.split(".")
    return (SHARED_BACKEND, *(".".join(parts[: i + 1]) for i in range(len(parts))))


def load_builtin(backend: str) -> None:
    """Import the workarounds that this package brings for ``backend`` and its lineage."""
    for name in lineage(backend):
        root = name.split(".")[0]  # a child's workarounds stand in its parent's folder
        if importlib.util.find_spec(f"{_BUILTIN}.{root}") is not None:
            importlib.import_module(f"{_BUILTIN}.{root}")


def list_workarounds(backend: str | None = None, kind: str | None = None) -> list[Workaround]:
    """Registered workarounds in order of application; with ``backend``, its lineage only."""
    for name in (backend,) if backend else ("model", "dynamo", "onnx", "executorch"):
        load_builtin(name)
    wanted = lineage(backend) if backend else None
    order = {name: i for i, name in enumerate(wanted or ())}
    found = [
        w for w in _WORKAROUNDS.values() if (wanted is None or w.backend in wanted) and (kind is None or w.kind == kind)
    ]
    return sorted(found, key=lambda w: order.get(w.backend, 0)) if wanted else found


def find_workaround(workaround_id: str) -> Workaround:
    """The workaround with this id.

    Raises:
        UsageError: When there is none; the message names the nearest ids.
    """
    if workaround_id not in _WORKAROUNDS:
        list_workarounds()
    if workaround_id not in _WORKAROUNDS:
        near = difflib.get_close_matches(workaround_id, _WORKAROUNDS, n=3, cutoff=0.4)
        raise UsageError(
            f"no workaround is called {workaround_id!r}",
            advice=f"did you mean {', '.join(near)}?" if near else "`transporters workarounds list` shows all ids",
        )
    return _WORKAROUNDS[workaround_id]


def active(backend: str, kind: str, skip: tuple[str, ...] = ()) -> Iterator[Workaround]:
    """Workarounds of a kind that apply to ``backend`` here and now: needed, and not switched off."""
    for workaround in list_workarounds(backend, kind):
        if workaround.id not in skip and (not workaround.needed or versions.holds(workaround.needed)):
            yield workaround


def register(backend: str, kind: str, function: Callable[..., Any], **facts: Any) -> None:
    """Add a workaround of any kind; the decorators call this.

    Raises:
        RegistryError: When the backend has a workaround of this name.
    """
    workaround_id = f"{backend}:{function.__name__}"
    if workaround_id in _WORKAROUNDS:
        raise RegistryError(
            f"{workaround_id} is registered already",
            backend=backend,
            workaround=workaround_id,
            advice="give the function another name, or call unregister() first",
        )
    _WORKAROUNDS[workaround_id] = Workaround(workaround_id, backend, kind, function, **facts)
