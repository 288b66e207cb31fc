# SPDX-License-Identifier: Apache-2.0
"""Which values occur in float32 training: an observer on the tap, and the recording it makes."""

from __future__ import annotations

from floatwise.probe.recording import Recording, Site, Stall, load_recording, save_recording

__all__ = ["Recording", "Site", "Stall", "load_recording", "save_recording"]
