# SPDX-License-Identifier: Apache-2.0
"""Complete training projects: what they need to know, what is chosen for it, and their files."""

from __future__ import annotations

from floatwise.scaffold.answers import Answers
from floatwise.scaffold.choices import Choices, choose
from floatwise.scaffold.frameworks import FRAMEWORKS, combinations
from floatwise.scaffold.project import write_project
from floatwise.scaffold.render import render

__all__ = ["FRAMEWORKS", "Answers", "Choices", "choose", "combinations", "render", "write_project"]
