# SPDX-License-Identifier: Apache-2.0
"""Runners: run a saved program in its own runtime."""
