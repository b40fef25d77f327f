# SPDX-License-Identifier: Apache-2.0
"""Names of `patch_targets` at a second place."""

from patch_targets import plain, untouched

__all__ = ["plain", "untouched"]
