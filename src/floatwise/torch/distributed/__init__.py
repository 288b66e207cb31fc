# SPDX-License-Identifier: Apache-2.0
"""A plan on several processes: what is sent, what is summed, and who decides."""
