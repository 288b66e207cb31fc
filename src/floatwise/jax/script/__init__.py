# SPDX-License-Identifier: Apache-2.0
"""JAX training scripts from outside: every gradient they take, and what is differentiated, equation by equation."""

from __future__ import annotations
