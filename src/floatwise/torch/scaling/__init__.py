# SPDX-License-Identifier: Apache-2.0
"""The loss scale of float16 training: how it moves, what was skipped, and why."""
