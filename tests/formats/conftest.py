# SPDX-License-Identifier: Apache-2.0
"""float32 bit patterns where rounding goes wrong first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from floatwise.formats import Format

FloatPatterns = Callable[[Format], st.SearchStrategy[NDArray[np.float32]]]

# 64 examples of this many patterns are 2**20.
PATTERNS_PER_EXAMPLE = 1 << 14
PATCHES = 16


def special_words(fmt: Format) -> list[int]:
    """The words of zero, the infinities, NaN, and every fact of the format: its edges and ties."""
    facts = [
        0.0,
        np.inf,
        fmt.max,
        fmt.smallest_normal,
        fmt.smallest_normal * (1 - fmt.epsilon / 2),
        fmt.smallest_subnormal,
        fmt.smallest_subnormal * 1.5,
        fmt.flush_threshold,
        fmt.overflow_threshold,
        1.0 + fmt.epsilon / 2,
        1.0 + fmt.epsilon * 1.5,
    ]
    with np.errstate(over="ignore"):
        words = np.array(facts).astype(np.float32).view(np.uint32).tolist()
    # A quiet and a signalling NaN, and the largest and smallest float32 subnormal.
    return [*words, 0x7FC00000, 0x7F800001, 0x007FFFFF, 0x00000001]


@pytest.fixture(scope="session")
def float32_patterns() -> FloatPatterns:
    """For a format, arrays of 2**14 patterns: patches around drawn words, at drawn strides, of both signs."""

    def patterns(fmt: Format) -> st.SearchStrategy[NDArray[np.float32]]:
        base = st.integers(0, 2**32 - 1) | st.sampled_from(special_words(fmt))
        # Strides up to the format's ulp in words make patches of ties and of whole binades.
        stride = st.integers(0, 24).map(lambda shift: 1 << shift)
        flip = st.sampled_from([0, 1 << 31])
        patch = st.tuples(base, stride, flip)
        return st.lists(patch, min_size=PATCHES, max_size=PATCHES).map(_expand)

    return patterns


def _expand(patches: list[tuple[int, int, int]]) -> NDArray[np.float32]:
    size = PATTERNS_PER_EXAMPLE // PATCHES
    steps = np.arange(-size // 2, size // 2)
    words = [((base + stride * steps) ^ flip) & 0xFFFFFFFF for base, stride, flip in patches]
    return np.concatenate(words).astype(np.uint32).view(np.float32)
