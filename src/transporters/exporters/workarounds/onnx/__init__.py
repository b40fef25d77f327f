# SPDX-License-Identifier: Apache-2.0
"""What ONNX cannot express or ONNX Runtime gets wrong, in the order of application."""

from __future__ import annotations

from importlib.util import find_spec

from . import asserts, attention, complexes, numbers, optimizer, promotion, registries, splitting

__all__ = ["asserts", "attention", "complexes", "numbers", "optimizer", "promotion", "registries", "splitting"]

# Translations are written in onnxscript, which only the onnx extra brings; without it there is nothing to translate to.
if find_spec("onnxscript") is not None:
    from . import ir, translations

    __all__ += ["ir", "translations"]
