# SPDX-License-Identifier: Apache-2.0
"""Exporters: from a model to a program, stage by stage; and the registry of workarounds."""
