# SPDX-License-Identifier: Apache-2.0
"""The version, alone in its file so that `floatwise --version` loads nothing else."""

__version__ = "0.1.0"
