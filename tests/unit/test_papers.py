"""docs/papers.md cannot drift: what it names exists, and the tests that it cites depend on the functions it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.emptied import fails_without

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


_ROW = re.compile(r"\| (?P<part>§[^|]+) \| [^|]+ \| (?P<built>[^|]+) \| (?P<modules>[^|]+) \| (?P<tests>[^|]+) \|")
_FUNCTION = re.compile(r"`([\w/]+\.py)` \(`([\w.]+)`")


@dataclass(frozen=True)
class Row:
    """A row of the page, with its first function and its first test."""

    part: str
    built: str
    module: str
    function: str
    test: str

    @property
    def needs_spark(self) -> bool:
        return not self.test.startswith(("tests/unit", "tests/catalog", "tests/storage"))


def _row(line: str) -> Row:
    row = _ROW.fullmatch(line)
    assert row is not None, line
    function, test = _FUNCTION.search(row["modules"]), re.search(r"`(tests/[^`]+)`", row["tests"])
    assert function is not None, line
    assert test is not None, line
    return Row(row["part"], row["built"], function[1], function[2], test[1])


LAZY_AND_DEFER = TEXT.partition("## View maintenance using partial deltas")[0]
ROWS = [_row(line) for line in LAZY_AND_DEFER.splitlines() if line.startswith("| §")]
SAMPLE = [row for row in ROWS if row.test.startswith("tests/unit/schedule")][::3]


def test_every_row_has_a_test_or_says_what_is_missing() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| §")]
    assert len(rows) > len(ROWS)
    for row in rows:
        assert "`tests/" in row or "not yet" in row, row


def test_every_row_says_how_it_is_built() -> None:
    assert len(ROWS) > 50
    assert len({(row.part, row.test) for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert re.match(r"whole\b|(weaker|other way): \w", row.built), row.part


@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row.part)
def test_the_cited_test_fails_when_the_named_function_is_emptied(row: Row) -> None:
    """A sample; `make soak` tries all rows (tests/soak/test_papers_soak.py)."""
    assert fails_without(row.module, row.function, row.test)
