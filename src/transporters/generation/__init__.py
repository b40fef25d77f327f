# SPDX-License-Identifier: Apache-2.0
"""Text generation: a decoder as one graph with its cache, and the loop that runs it."""
