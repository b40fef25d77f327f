# SPDX-License-Identifier: Apache-2.0
"""What a finished program is made of, in a few lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..verification.summary import plural, size

#: Operations that a line names; the manifest has them all.
_NAMED = 8

#: Files of a program, also where a client wants them in a folder of their own.
_OWN = re.compile(r"(onnx/)?model\.")


def program_lines(described: Mapping[str, Any], files: Mapping[str, int]) -> list[str]:
    """Lines for people: the program's files and their sizes, its operations, and which runtime part runs them.

    Args:
        described: What the runner says of the program (the manifest's ``program``).
        files: File name to size in bytes, of the whole artifact.
    """
    own = {name: count for name, count in files.items() if _OWN.match(name) and name != "model.safetensors"}
    lines = [f"Program: {', '.join(f'{name} {size(count)}' for name, count in own.items())}"] if own else []
    if opset := described.get("opset"):
        lines.append("Opset: " + ", ".join(f"{domain} {version}" for domain, version in opset.items()))
    if operators := described.get("operators"):
        lines.append(f"Operations: {_histogram(operators)}")
    for provider, counts in described.get("providers", {}).items():
        lines.append(f"On {provider}: {_histogram(counts)}")
    return lines


def _histogram(counts: Mapping[str, int]) -> str:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{name} {count}" for name, count in ranked[:_NAMED])
    rest = len(ranked) - _NAMED
    return f"{plural(sum(counts.values()), 'node')}: {named}" + (
        f" and {plural(rest, 'other kind')}" if rest > 0 else ""
    )
