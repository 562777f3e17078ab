"""Code blocks of Markdown pages: those that run, what they print, and what the page says they print.

A block marked `text` right after one that runs shows its output. There `…` stands for anything within a line (a time, a
path), and a line that holds nothing else for any number of lines. White space at the end of lines does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
_FENCE = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = "text"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line where it begins."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Step:
    """A block that runs, with the output that the page shows; None if it shows none."""

    block: Block
    shown: str | None


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page."""
    return [
        Block(found["language"].strip(), found["text"], page.count("\n", 0, found.start()) + 1)
        for found in _FENCE.finditer(page)
    ]


def steps(page: str, *languages: str) -> Iterator[Step]:
    """The blocks of these languages, each with the `text` block that follows it with nothing in between."""
    found = list(_FENCE.finditer(page))
    for block, match, after in zip(blocks(page), found, [*found[1:], None], strict=True):
        if block.language not in languages:
            continue
        follows = after is not None and after["language"].strip() == SHOWN
        adjacent = after is not None and not page[match.end() : after.start()].strip()
        yield Step(block, after["text"] if after is not None and follows and adjacent else None)


def as_shown(shown: str, printed: str) -> bool:
    """Whether what was printed is what a page shows."""
    pattern = ""
    for line in _lines(shown):
        parts = map(re.escape, line.split("…"))
        pattern += r"(?:.*\n)*" if line.strip() == "…" else r".*".join(parts) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(printed))) is not None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]
