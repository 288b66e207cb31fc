# SPDX-License-Identifier: Apache-2.0
"""The words of a shell script with their lines, as far as flags need them: nothing is expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["UnclosedQuotation", "shell_words"]

_GAP = re.compile(r"(?:[ \t\r\n()&;|]|\\\r?\n)+")  # what separates words
_COMMENT = re.compile(r"#[^\n]*")
# A run without a quotation, a gap or a heredoc; a backslash takes the next character with it.
_PLAIN = re.compile(r"(?:[^\s'\"\\()&;|<]|\\(?!\r?\n)[\s\S]|<(?!<)|<<<|\\\Z)+")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\[\s\S])*)"')
_SINGLE = re.compile(r"'([^']*)'")
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
_HAS_FLAG = re.compile(r"(?:^|\s)--\w")
_DEEPEST = 8  # quotations within quotations, as of `bash -c "sh -c '…'"`; convention


class UnclosedQuotation(ValueError):
    """A quotation that does not end.

    Attributes:
      line: Line of its beginning, from 1.
    """

    def __init__(self, line: int) -> None:
        self.line = line
        super().__init__(line)


def shell_words(text: str) -> list[tuple[int, str]]:
    """Returns the words of a script, each with its line from 1.

    A quotation that holds flags gives their words, unless it is the value of a flag (`--name="…"`).

    Raises:
      UnclosedQuotation: A quotation does not end.
    """
    return list(_Words(text, 1, 0).all())


class _Words:
    def __init__(self, text: str, line: int, depth: int) -> None:
        self.text, self.line, self.depth = text, line, depth
        self.at = 0
        self.heredocs: list[str] = []

    def all(self) -> Iterator[tuple[int, str]]:
        while self.at < len(self.text):
            if gap := _GAP.match(self.text, self.at):
                yield from self._over(gap.group())
            elif comment := _COMMENT.match(self.text, self.at):
                self._step(comment.group())
            else:
                yield from self._word()

    def _step(self, piece: str) -> None:
        self.at += len(piece)
        self.line += piece.count("\n")

    def _over(self, gap: str) -> Iterator[tuple[int, str]]:
        if not self.heredocs or "\n" not in gap:
            self._step(gap)
            return
        self._step(gap[: gap.index("\n") + 1])
        while self.heredocs:
            yield from self._body(self.heredocs.pop(0))

    def _body(self, end: str) -> Iterator[tuple[int, str]]:
        """Yields the words of a heredoc, in which an apostrophe is no quotation."""
        while self.at < len(self.text):
            after = self.text.find("\n", self.at) + 1 or len(self.text)
            row = self.text[self.at : after]
            is_end = row.strip() == end
            if not is_end:
                yield from ((self.line, word) for word in row.rstrip().removesuffix("\\").split())
            self._step(row)
            if is_end:
                return

    def _word(self) -> Iterator[tuple[int, str]]:
        first, word = self.line, ""
        inner: list[tuple[int, str]] = []
        while self.at < len(self.text) and not _GAP.match(self.text, self.at):
            char = self.text[self.at]
            if char in "\"'":
                found = (_DOUBLE if char == '"' else _SINGLE).match(self.text, self.at)
                if not found:
                    raise UnclosedQuotation(self.line)
                if _HAS_FLAG.search(found[1]) and not word.startswith("--") and self.depth < _DEEPEST:
                    inner += _Words(found[1], self.line, self.depth + 1).all()
                word += found[1] if char == "'" else re.sub(r'\\(["\\$`])', r"\1", found[1])
                self._step(found.group())
            elif heredoc := _HEREDOC.match(self.text, self.at):
                self.heredocs.append(heredoc[2])
                self._step(heredoc.group())
            elif plain := _PLAIN.match(self.text, self.at):
                word += re.sub(r"\\(.)", r"\1", plain.group())
                self._step(plain.group())
            else:
                word += char
                self._step(char)
        if inner:
            yield from inner
        elif word:
            yield first, word
