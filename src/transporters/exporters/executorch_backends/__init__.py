# SPDX-License-Identifier: Apache-2.0
"""The delegates of ExecuTorch: a file for each, with the `prepare_for_*` that the exporter's first stage calls."""
