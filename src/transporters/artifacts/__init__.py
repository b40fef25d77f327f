# SPDX-License-Identifier: Apache-2.0
"""Artifacts: a program in a folder, with a manifest that says all that is known of it."""
