# SPDX-License-Identifier: Apache-2.0
"""Which versions are installed, and whether a requirement string holds for them. Imports nothing heavy."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement

#: Packages whose versions go into every manifest and report.
REPORTED = (
    "transporters",
    "torch",
    "transformers",
    "safetensors",
    "onnx",
    "onnxscript",
    "onnx-ir",
    "onnxruntime",
    "executorch",
    "torchao",
)


@cache
def installed(package: str) -> str | None:
    """Version of an installed distribution, or None when it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def holds(requirement: str) -> bool:
    """Whether a requirement such as ``"onnxscript>=0.5"`` holds here. An absent package never holds.

    Local build tags (``2.13.0+cpu``) and pre-releases count as their public version.

    Raises:
        packaging.requirements.InvalidRequirement: If the string is not a PEP 508 requirement.
    """
    parsed = Requirement(requirement)
    version = installed(parsed.name)
    return version is not None and parsed.specifier.contains(version.split("+")[0], prereleases=True)


def report() -> dict[str, str]:
    """Versions of the packages that decide an export's outcome, plus Python's."""
    found = {name: version for name in REPORTED if (version := installed(name))}
    return {"python": platform.python_version(), **found}
