# SPDX-License-Identifier: Apache-2.0
"""Errors that a user sees: each says where, what, and what to do next."""

from __future__ import annotations


class TransportersError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        message: What went wrong, in one sentence.
        backend: Backend name (``"dynamo"``, ``"onnx"``, …) when one is involved.
        stage: Stage that was running.
        workaround: Id of the workaround involved (``"onnx:_fix_sort_stable"``).
        advice: What to do next, in one sentence.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        backend: str | None = None,
        stage: str | None = None,
        workaround: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.backend = backend
        self.stage = stage
        self.workaround = workaround
        self.advice = advice

    def __str__(self) -> str:
        where = " · ".join(
            part for part in (self.backend, self.stage and f"stage {self.stage}", self.workaround) if part
        )
        text = f"[{where}] {self.message}" if where else self.message
        return f"{text}\n  → {self.advice}" if self.advice else text


class UsageError(TransportersError):
    """The caller asked for something that cannot be meant: wrong name, wrong type, missing file."""

    exit_code = 2


class ConfigError(UsageError):
    """An export configuration has an unknown key or an impossible value."""


class InputError(UsageError):
    """The sample inputs do not fit the model."""


class RegistryError(TransportersError):
    """A workaround cannot be registered or applied."""


class MissingBackendError(TransportersError):
    """A backend's package is absent or outside the supported range."""


class ExportError(TransportersError):
    """The export itself failed in the stage named."""


class FrozenAxisError(ExportError):
    """An axis that was asked to be dynamic came out static."""


class ArtifactError(TransportersError):
    """A saved artifact is missing, incomplete, or from a newer schema."""


class RunError(TransportersError):
    """The runtime refused or failed to run a program."""


class VerificationError(TransportersError):
    """The artifact's outputs are not those of eager PyTorch."""
