# SPDX-License-Identifier: Apache-2.0
"""Fails by itself."""

model = None
1 / 0
