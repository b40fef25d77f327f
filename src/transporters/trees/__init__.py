# SPDX-License-Identifier: Apache-2.0
"""Nested inputs and outputs: the only package that walks them."""
