# SPDX-License-Identifier: Apache-2.0
"""Comparing a program with eager PyTorch, and showing what was found."""
