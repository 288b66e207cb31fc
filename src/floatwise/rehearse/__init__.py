# SPDX-License-Identifier: Apache-2.0
"""What CUDA mixed precision would do, computed on any machine."""
