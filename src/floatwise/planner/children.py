# SPDX-License-Identifier: Apache-2.0
"""Which modules run as children, by the framework that a script trains with."""

from __future__ import annotations

__all__ = ["RECORDING_CHILDREN", "TRAINING_CHILDREN"]

#: Record a script in float32.
RECORDING_CHILDREN = {
    "torch": "floatwise.probe.child",
    "keras": "floatwise.probe.keras_child",
    "jax": "floatwise.probe.jax_child",
}
#: Train a script under a plan, one timed iteration after the other.
TRAINING_CHILDREN = {
    "torch": "floatwise.torch.script.child",
    "keras": "floatwise.keras.script.child",
    "jax": "floatwise.jax.script.child",
}
