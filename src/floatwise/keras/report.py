# SPDX-License-Identifier: Apache-2.0
"""What `apply` has set: each layer's policy and why, the optimizer, and what is worth knowing."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Applied", "LayerFormat"]


@dataclass(frozen=True)
class LayerFormat:
    """A layer and the policy it has now.

    Attributes:
      path: Names of layers from the model's child to the layer, joined with dots; empty for the model itself.
      layer: The layer's class.
      policy: Keras' name of the policy, such as `mixed_float16`.
      reason: Why it has this policy, in the current language.
    """

    path: str
    layer: str
    policy: str
    reason: str


@dataclass(frozen=True)
class Applied:
    """What has been set.

    Attributes:
      layers: Every layer but input layers, parents before children; the model is the first.
      optimizer: The optimizer as it is now, such as `LossScaleOptimizer(Adam)`; empty before `compile()`.
      remarks: What else was changed or could not be, one sentence each, in the current language.
    """

    layers: tuple[LayerFormat, ...]
    optimizer: str
    remarks: tuple[str, ...]

    def policy_of(self, path: str) -> str:
        """Returns the policy of the layer at `path`.

        Raises:
          KeyError: No layer has this path.
        """
        return next((layer.policy for layer in self.layers if layer.path == path), None) or _missing(path)

    def __str__(self) -> str:
        width = max((len(layer.path) for layer in self.layers), default=0)
        rows = [
            f"{layer.path or '(root)':{max(width, 6)}}  {layer.layer:24}  {layer.policy:15}  {layer.reason}"
            for layer in self.layers
        ]
        if self.optimizer:
            rows.append(self.optimizer)
        return "\n".join([*rows, *self.remarks])


def _missing(path: str) -> str:
    raise KeyError(path)
