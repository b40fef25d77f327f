# SPDX-License-Identifier: Apache-2.0
"""Imported for its effect, once, where processes are forked from: loads torch, Transformers and all model modules."""

from __future__ import annotations

import gc
import logging

import torch

from .. import zoo
from . import single

__all__ = ["single"]

torch.set_num_threads(1)  # a pool of threads does not survive a fork
logging.disable(logging.WARNING)
zoo.classes()
gc.collect()
gc.set_threshold(100_000, 50, 100)  # an export makes millions of small objects and hardly a cycle
gc.freeze()  # what is loaded stays on pages that all processes share
