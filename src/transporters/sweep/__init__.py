# SPDX-License-Identifier: Apache-2.0
"""The zoo on every backend: each case exported and verified in a process of its own, results in lines of JSON."""
