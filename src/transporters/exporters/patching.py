# SPDX-License-Identifier: Apache-2.0
"""The drivers that put workarounds in force: patches for the length of a block, fixes once.

Patches are process-wide attribute swaps, so one re-entrant lock is held while any is in force, and a replacement acts
only in the thread that installed it: another thread that happens to run the same code meets the original.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .. import versions
from ..errors import RegistryError, TransportersError
from .registry import Workaround, active
from .run import ExportRun

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

_LOCK = threading.RLock()
_RUNS: list[tuple[ExportRun, tuple[str, ...]]] = []  # with ids switched off; innermost last; guarded by _LOCK
_IN_FORCE: set[str] = set()  # ids of patches that an outer export has installed; guarded by _LOCK
_ABSENT = object()
_Modules = list[tuple[str, ModuleType, int]]  # name, module, how many names it has: tells one that has grown


@contextmanager
def patched(backend: str, run: ExportRun, skip: tuple[str, ...] = ()) -> Iterator[None]:
    """Put every patch of ``backend`` in force, and take each out again, also when the block raises.

    What stood in ``vars(owner)`` is put back; where nothing stood (an inherited method) the attribute is deleted. In a
    nested export a patch that is in force already is not installed a second time.

    Raises:
        RegistryError: When a path does not resolve although its package is installed, or cannot be replaced, or a
            factory fails.
    """
    with _LOCK, ExitStack() as stack:
        _RUNS.append((run, skip))
        stack.callback(_RUNS.pop)
        under: dict[tuple[str, int], _Modules] = {}
        for workaround in active(backend, "patch", skip):
            if workaround.id in _IN_FORCE:
                continue
            places: dict[tuple[int, str], tuple[str, Any]] = {}  # two patterns, or two names of a class, mean one place
            for path in workaround.paths:
                for owner, name in targets(workaround, path, under):
                    places.setdefault((id(owner), name), (path, owner))
            for (_, name), (path, owner) in places.items():
                _install(workaround, path, owner, name, stack)
            _IN_FORCE.add(workaround.id)
            stack.callback(_IN_FORCE.discard, workaround.id)
        yield


def fix_nodes(backend: str, graph_module: GraphModule, run: ExportRun, skip: tuple[str, ...] = ()) -> bool:
    """Run the node fixes of ``backend`` over a graph and its subgraphs; True when something changed."""
    fixes = list(active(backend, "fx_node_fix", skip))
    if not fixes:
        return False
    for_all = [w for w in fixes if not w.ops]
    by_op: dict[Any, list[Workaround]] = {}
    for workaround in fixes:
        for op in workaround.ops:
            by_op.setdefault(op, []).append(workaround)
    changed = False
    for module in graph_module.modules():
        if hasattr(module, "graph"):
            changed |= _fix_graph(module, by_op, for_all, run)  # type: ignore[arg-type]
    return changed


def fix_program(backend: str, program: ExportedProgram, run: ExportRun, skip: tuple[str, ...] = ()) -> bool:
    """Run the program fixes of ``backend`` in order; True when something changed."""
    changed = False
    for workaround in active(backend, "fx_program_fix", skip):
        if _call(workaround, "the program", program):
            run.fire(workaround.id)
            changed = True
    return changed


def resolve(workaround: Workaround, path: str) -> tuple[Any, str] | None:
    """The owner and attribute name behind a dotted path, or None when the path cannot matter here.

    It cannot matter when the package is absent, and for a model's module that nobody has imported: importing several
    hundred of those to patch code that no live object can run would cost seconds.

    Raises:
        RegistryError: When the package is there but the path is not.
    """
    parts = path.split(".")
    package = parts[0]
    try:
        owner: Any = importlib.import_module(package)
    except ImportError as error:
        if error.name == package:
            return None
        raise RegistryError(
            f"{package} is installed but cannot be imported: {error}",
            backend=workaround.backend,
            workaround=workaround.id,
            advice=f"repair the package (pip install --force-reinstall {package})",
        ) from error
    for depth, part in enumerate(parts[1:-1], start=1):
        dotted = ".".join(parts[: depth + 1])
        if dotted in sys.modules:
            owner = sys.modules[dotted]
            continue
        if depth == 3 and dotted.startswith("transformers.models.") and importlib.util.find_spec(dotted) is not None:
            return None
        found = getattr(owner, part, _ABSENT)
        if found is _ABSENT:
            try:
                found = importlib.import_module(dotted)
            except ImportError:
                raise _unresolved(workaround, path, dotted) from None
        owner = found
    if getattr(owner, parts[-1], _ABSENT) is _ABSENT:
        raise _unresolved(workaround, path, path)
    return owner, parts[-1]


def targets(
    workaround: Workaround, path: str, under: dict[tuple[str, int], _Modules] | None = None
) -> list[tuple[Any, str]]:
    """Owner and attribute name of everything a path means: one thing, or with ``*`` in it, all that is loaded.

    A pattern such as ``transformers.models.*.modeling_*.*VisionAttention.forward`` names a kind of code that many
    models carry a copy of. It matches loaded modules only, and classes only where they are defined.

    Args:
        workaround: Whose path it is.
        path: Dotted.
        under: What calls before, a moment ago, found loaded; this one adds to it. Thousands of modules may be.
    """
    if "*" not in path:
        resolved = resolve(workaround, path)
        return [resolved] if resolved else []
    key = path[: path.index("*")], len(sys.modules)
    under = {} if under is None else under
    modules = under[key] if key in under else under.setdefault(key, _under(key[0]))
    return [place for module in modules for place in _fitting(path, *module)]


def _under(prefix: str) -> _Modules:
    """Loaded modules that may fit a pattern that begins so: of most modules nothing costlier is asked."""
    return [
        (name, module, len(vars(module)))
        for name, module in list(sys.modules.items())
        if (name.startswith(prefix) or prefix.startswith(name)) and isinstance(module, ModuleType)
    ]


@functools.cache
def _fitting(path: str, module_name: str, module: ModuleType, size: int) -> list[tuple[Any, str]]:
    """What a pattern means in a loaded module of ``size`` names."""
    parts, pieces = path.split("."), module_name.split(".")
    rest = parts[len(pieces) :]
    if len(rest) not in (1, 2) or not all(map(fnmatch.fnmatchcase, pieces, parts)):
        return []
    owners: list[Any] = [module]
    if len(rest) == 2:
        named = fnmatch.filter(_defined(module, size), rest[0])
        owners = [owner for name in named if (owner := vars(module).get(name)) is not None]
    return [(owner, rest[-1]) for owner in owners if rest[-1] in vars(owner)]


@functools.cache
def _defined(module: ModuleType, size: int) -> list[str]:
    """Names of what a loaded module defines itself. ``size``, how many names it has, tells one that has grown."""
    return [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]


def _install(workaround: Workaround, path: str, owner: Any, name: str, stack: ExitStack) -> None:
    standing = vars(owner).get(name, _ABSENT)
    raw = standing if standing is not _ABSENT else _inherited(owner, name)
    wrapper: Callable[[Any], Any] = type(raw) if isinstance(raw, (staticmethod, classmethod)) else _unchanged
    original = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
    made = _call(workaround, path, original)
    if made is None and callable(original):
        raise RegistryError(
            f"the factory gave None in place of {path}",
            backend=workaround.backend,
            workaround=workaround.id,
            advice="return the replacement, or the original to leave it as it is",
        )
    replacement = _counted(workaround.id, original, made, stack)
    try:
        setattr(owner, name, wrapper(replacement))
    except (AttributeError, TypeError) as error:
        raise RegistryError(
            f"{path} cannot be replaced: {error}",
            backend=workaround.backend,
            workaround=workaround.id,
            advice="patch the Python-level attribute that callers look up instead",
        ) from error
    stack.callback(_restore, owner, name, standing)


def _restore(owner: Any, name: str, standing: Any) -> None:
    if standing is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, standing)


def _inherited(owner: Any, name: str) -> Any:
    for base in getattr(owner, "__mro__", ())[1:]:
        if name in vars(base):
            return vars(base)[name]
    return getattr(owner, name)


def _counted(workaround_id: str, original: Any, replacement: Any, stack: ExitStack) -> Any:
    """Count calls in the innermost run, until ``stack`` closes.

    The original answers other threads, runs that switched the patch off, calls that the replacement answers with
    `NotImplemented`, and callers that kept the replacement for longer than it was in force.
    """
    if replacement is original:
        return original
    if not callable(replacement) or isinstance(replacement, type):
        _RUNS[-1][0].fire(workaround_id)
        return replacement
    owners = [threading.get_ident()]
    stack.callback(owners.clear)

    @functools.wraps(replacement)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() not in owners or workaround_id in _RUNS[-1][1]:
            return original(*args, **kwargs)
        result = replacement(*args, **kwargs)
        if result is NotImplemented:
            return original(*args, **kwargs)
        _RUNS[-1][0].fire(workaround_id)
        return result

    return counted


def _call(workaround: Workaround, where: str, *args: Any) -> Any:
    """What a factory or a fix gives; its errors leave with its name and where it was at work."""
    try:
        return workaround.function(*args)
    except TransportersError as error:
        error.workaround = error.workaround or workaround.id
        raise
    except Exception as error:
        raise RegistryError(
            f"failed on {where}: {type(error).__name__}: {error}",
            backend=workaround.backend,
            workaround=workaround.id,
            advice=f'to export without it: skip_workarounds=["{workaround.id}"]',
        ) from error


def _fix_graph(
    graph_module: GraphModule, by_op: dict[Any, list[Workaround]], for_all: list[Workaround], run: ExportRun
) -> bool:
    changed = False
    for node in list(graph_module.graph.nodes):
        for workaround in (*by_op.get(_target(node), ()), *for_all):
            if node._erased:
                break
            if _call(workaround, f"node {node.name}", graph_module, node):
                run.fire(workaround.id)
                changed = True
    if changed:
        graph_module.graph.lint()
        graph_module.recompile()
    return changed


def _target(node: Node) -> Any:
    return node.target if node.op == "call_function" else node.op


def _unresolved(workaround: Workaround, path: str, missing: str) -> RegistryError:
    package = path.split(".")[0]
    version = versions.installed(package)
    return RegistryError(
        f"{missing} does not exist in the installed {package} {version or '(version unknown)'}, "
        f"so the patch of {path} cannot be applied",
        backend=workaround.backend,
        workaround=workaround.id,
        advice=f'correct the path, set needed="{package}<…", or skip it with skip_workarounds=["{workaround.id}"]',
    )


def _unchanged(value: Any) -> Any:
    return value
