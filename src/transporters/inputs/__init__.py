# SPDX-License-Identifier: Apache-2.0
"""Models and what goes into them: loading, sample inputs, and the meaning of their axes."""
