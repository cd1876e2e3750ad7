"""Marked passages of Markdown documents.

    <!-- recomputed: EXPRESSION -->text<!-- end -->    the text must be what the expression returns (`expressions.py`)
    <!-- recorded: REASON -->text<!-- end -->          the text holds numbers that cannot be computed again

A passage is a few words or several lines. Comments do not show on a rendered page.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from mistrnn.errors import UsageError

OPENING = re.compile(r"<!-- (recomputed|recorded): (.*?) -->", re.DOTALL)
CLOSING = "<!-- end -->"
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n?)+", re.MULTILINE)


@dataclass(frozen=True)
class Passage:
    """A marked passage."""

    kind: str
    """recomputed or recorded"""
    about: str
    """The expression, or the reason."""
    text: str
    begin: int
    """Where the text begins in the document."""
    line: int

    @property
    def end(self) -> int:
        """Where the text ends in the document."""
        return self.begin + len(self.text)


def passages(document: str, name: str) -> list[Passage]:
    """Return the marked passages of a document in order; `name` stands in errors."""
    hidden = FENCE.sub(_blank, document)
    found: list[Passage] = []
    place = 0
    while opening := OPENING.search(hidden, place):
        line = document.count("\n", 0, opening.start()) + 1
        end = document.find(CLOSING, opening.end())
        following = OPENING.search(hidden, opening.end())
        if end < 0 or (following and following.start() < end):
            raise UsageError(f"{name}, line {line}: expected {CLOSING!r} after this mark, before the next one.")
        about = " ".join(opening[2].split())
        found.append(Passage(opening[1], about, document[opening.end() : end], opening.end(), line))
        place = end + len(CLOSING)
    if hidden.find(CLOSING, place) >= 0:
        line = document.count("\n", 0, hidden.find(CLOSING, place)) + 1
        raise UsageError(f"{name}, line {line}: expected a mark before {CLOSING!r}.")
    return found


def rewritten(document: str, found: list[Passage], text_of: Callable[[Passage], str]) -> str:
    """Return a document with other texts in its passages."""
    for passage in reversed(found):
        document = document[: passage.begin] + text_of(passage) + document[passage.end :]
    return document


def framed(passage: Passage, text: str) -> str:
    """Return a text with the blank lines around it that the passage has."""
    stripped = passage.text.strip()
    if stripped:
        head, _, tail = passage.text.partition(stripped)
        return head + text + tail
    return f"\n\n{text}\n\n" if "\n" in text or "\n" in passage.text else text


def unmarked_tables(document: str, found: list[Passage]) -> list[int]:
    """Return the first lines of tables that hold digits outside of all passages."""
    lines = []
    for whole in TABLE.finditer(FENCE.sub(_blank, document)):
        inside = any(p.begin <= whole.end() and whole.start() <= p.end for p in found)
        if not inside and any(char.isdigit() for char in whole[0]):
            lines.append(document.count("\n", 0, whole.start()) + 1)
    return lines


def _blank(code: re.Match[str]) -> str:
    """Return as many lines of as many blanks."""
    return "\n".join(" " * len(line) for line in code[0].split("\n"))
