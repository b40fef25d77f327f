# SPDX-License-Identifier: Apache-2.0
"""The workarounds this package brings: ``<backend>/…/<family>.py``, where the family is what is broken."""
