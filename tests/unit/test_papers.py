"""docs/papers.md cannot drift: what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "papers.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) > 20
    for path, name in named:
        assert not name or f"\ndef {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
        assert (ROOT / path).exists(), path


def test_every_module_that_is_named_exists() -> None:
    for module in re.findall(r"`((?!tests/)[\w/]+\.py)`", TEXT):
        assert (ROOT / "src" / "freshview" / module).exists(), module


def test_every_row_has_a_test_or_says_what_is_missing() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| §")]
    assert rows
    for row in rows:
        assert "`tests/" in row or "not yet" in row, row
