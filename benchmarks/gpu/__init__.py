# SPDX-License-Identifier: Apache-2.0
"""Rehearsal, predictions, loss scaling and master weights against a real CUDA GPU; see README.md beside this."""
