# SPDX-License-Identifier: Apache-2.0
"""What an extender imports: the registry's decorators and look-ups, in one place."""

from __future__ import annotations

from .registry import (
    Repro,
    Workaround,
    find_workaround,
    list_workarounds,
    register_fx_node_fix,
    register_fx_program_fix,
    register_patch,
    unregister,
)

__all__ = [
    "Repro",
    "Workaround",
    "find_workaround",
    "list_workarounds",
    "register_fx_node_fix",
    "register_fx_program_fix",
    "register_patch",
    "unregister",
]
