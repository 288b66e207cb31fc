# SPDX-License-Identifier: Apache-2.0
"""How large the models are: width and depth by task and size, and the number of weights that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MODEL_SHAPES", "ModelShape"]


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A model of one task and size. Widths are multiples of 32, so that every matrix unit is fed fully.

    Attributes:
      width: Channels, or the width of the residual stream.
      depth: Number of blocks.
      heads: Attention heads, for text.
      extent: Tokens of context for text, pixels of an image's side for the user's own images, 0 for tables.
      batch: Examples per device and optimizer step.
      micro_batch: Examples per device and forward pass, when memory is not short.
      learning_rate: Of AdamW after warm-up: what trains the model of this width and depth without diverging in
        float32; larger models take smaller ones (as in arXiv 2005.14165, table 2.1).
      warmup_steps: Optimizer steps over which the learning rate rises.
    """

    width: int
    depth: int
    heads: int = 0
    extent: int = 0
    batch: int
    micro_batch: int
    learning_rate: float
    warmup_steps: int

    def parameters(self, task: str) -> int:
        """Returns the number of weights, for the packaged data of the task.

        Args:
          task: image (8 x 8 pixels, 1 channel, 10 classes), text (256 byte values) or tabular (30 columns, 2 classes).
        """
        w, d = self.width, self.depth
        if task == "text":
            blocks = d * (12 * w * w + 13 * w)  # two norms, attention's 3 + 1 matrices, the MLP's 4 + 4, their biases
            return 256 * w + self.extent * w + blocks + 2 * w + 256 * w
        if task == "image":
            blocks = d * (18 * w * w + 4 * w)  # two 3 x 3 convolutions and their two norms
            return 9 * w + 2 * w + blocks + w * 10 + 10
        blocks = d * (8 * w * w + 7 * w)  # a norm, a matrix to four times the width and one back, their biases
        return 30 * w + w + blocks + 2 * w + w * 2 + 2


MODEL_SHAPES: Mapping[tuple[str, str], ModelShape] = {
    ("image", "tiny"): ModelShape(
        width=32, depth=6, extent=32, batch=64, micro_batch=32, learning_rate=3e-3, warmup_steps=10
    ),
    ("image", "small"): ModelShape(
        width=128, depth=8, extent=64, batch=128, micro_batch=128, learning_rate=1e-3, warmup_steps=50
    ),
    ("image", "medium"): ModelShape(
        width=512, depth=20, extent=128, batch=128, micro_batch=64, learning_rate=5e-4, warmup_steps=200
    ),
    ("image", "large"): ModelShape(
        width=1536, depth=24, extent=224, batch=128, micro_batch=16, learning_rate=2e-4, warmup_steps=500
    ),
    ("text", "tiny"): ModelShape(
        width=64, depth=2, heads=2, extent=64, batch=16, micro_batch=8, learning_rate=3e-3, warmup_steps=10
    ),
    ("text", "small"): ModelShape(
        width=256, depth=6, heads=4, extent=256, batch=32, micro_batch=32, learning_rate=1e-3, warmup_steps=50
    ),
    ("text", "medium"): ModelShape(
        width=768, depth=12, heads=12, extent=1024, batch=32, micro_batch=8, learning_rate=6e-4, warmup_steps=200
    ),
    ("text", "large"): ModelShape(
        width=2048, depth=20, heads=16, extent=2048, batch=32, micro_batch=4, learning_rate=2e-4, warmup_steps=500
    ),
    ("tabular", "tiny"): ModelShape(width=64, depth=3, batch=64, micro_batch=32, learning_rate=3e-3, warmup_steps=10),
    ("tabular", "small"): ModelShape(
        width=256, depth=6, batch=256, micro_batch=256, learning_rate=1e-3, warmup_steps=50
    ),
    ("tabular", "medium"): ModelShape(
        width=1024, depth=12, batch=256, micro_batch=256, learning_rate=5e-4, warmup_steps=200
    ),
    ("tabular", "large"): ModelShape(
        width=2560, depth=20, batch=256, micro_batch=128, learning_rate=2e-4, warmup_steps=500
    ),
}
"""Shape by task and size."""
