# SPDX-License-Identifier: Apache-2.0
"""Families of models that the general rules cannot know: a few lines each."""

from __future__ import annotations
