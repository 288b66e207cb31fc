# SPDX-License-Identifier: Apache-2.0
"""How configurations are written: a file per form, each with parsing (lines kept) and writing."""

from __future__ import annotations

from floatwise.exporters.forms.form import FORMS, Form, form_of_file

__all__ = ["FORMS", "Form", "form_of_file"]
