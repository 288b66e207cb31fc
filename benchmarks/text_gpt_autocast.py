# SPDX-License-Identifier: Apache-2.0
"""`examples/text_gpt.py` with autocast written by hand: the forward pass and the loss in one region."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import text_gpt


class AutocastGPT(text_gpt.GPT):  # type: ignore[misc]
    """The model, called inside `torch.autocast`."""

    def __call__(self, *args: object) -> object:
        """Opens the region around the model and its loss, as the training loop would."""
        with torch.autocast("cpu", torch.bfloat16):
            return super().__call__(*args)


text_gpt.GPT = AutocastGPT

if __name__ == "__main__":
    text_gpt.main()
