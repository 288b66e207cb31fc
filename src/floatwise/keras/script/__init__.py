# SPDX-License-Identifier: Apache-2.0
"""A plan applied to a Keras training script that knows nothing of it."""
