# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests. Its folder is on the import path, so that they find ``tiny``."""
