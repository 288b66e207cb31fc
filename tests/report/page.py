# SPDX-License-Identifier: Apache-2.0
"""What a browser would find on a page: tags that match, headings, text, references."""

from __future__ import annotations

from html.parser import HTMLParser

__all__ = ["Page"]

_VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})


class Page(HTMLParser):
    """A parsed page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """All text a reader sees."""
        return "".join(self.words)

    def attributes(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [value for _, attrs in self.tags for key, value in attrs.items() if key == name and value]
