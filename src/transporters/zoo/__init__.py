# SPDX-License-Identifier: Apache-2.0
"""A tiny random model of every architecture that Transformers can build."""

from .building import build, build_with_inputs
from .classes import ZooClass, classes, find
from .shrinking import tiny_config

__all__ = ["ZooClass", "build", "build_with_inputs", "classes", "find", "tiny_config"]
