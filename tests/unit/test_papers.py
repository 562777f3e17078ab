"""docs/papers.md cannot drift: what it names exists, and the tests that it cites depend on the functions it names."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
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
    def proof(self) -> tuple[str, str, str]:
        """What the mutation check of this row runs: other rows may have the same."""
        return self.module, self.function, self.test


def _row(line: str) -> Row:
    row = _ROW.fullmatch(line)
    assert row is not None, line
    function, test = _FUNCTION.search(row["modules"]), re.search(r"`(tests/[^`]+)`", row["tests"])
    assert function is not None, line
    assert test is not None, line
    return Row(row["part"], row["built"], function[1], function[2], test[1])


LAZY_AND_DEFER = TEXT.partition("## View maintenance using partial deltas")[0]
ROWS = [_row(line) for line in LAZY_AND_DEFER.splitlines() if line.startswith("| §")]
DEFER = len([line for line in LAZY_AND_DEFER.partition("## Algorithms for def")[0].splitlines() if line[:3] == "| §"])
FOLDERS = ("tests/unit/schedule/", "tests/unit/", "tests/catalog/")


def _sampled(rows: list[Row], others: list[Row]) -> list[Row]:
    """A row for each folder: one whose first test is a single one there, from the middle of the page, and not the same
    function and test as one of the others."""
    found: dict[str, list[Row]] = {}
    taken = {row.proof for row in others}
    for row in rows:
        folder = next((f for f in FOLDERS if row.test.startswith(f)), None)
        if folder is not None and "::" in row.test and row.proof not in taken:
            found.setdefault(folder, []).append(row)
    return [of_folder[len(of_folder) // 2] for of_folder in found.values()]


PAPERS = (ROWS[:DEFER], ROWS[DEFER:])
SAMPLE = _sampled(PAPERS[0], [])
SAMPLE += _sampled(PAPERS[1], SAMPLE)


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


def test_the_sample_has_rows_of_both_papers_and_of_tests_with_and_without_a_catalog() -> None:
    papers = [{next(f for f in FOLDERS if r.test.startswith(f)) for r in SAMPLE if r in part} for part in PAPERS]
    assert papers == [set(FOLDERS), {"tests/unit/", "tests/catalog/"}]
    assert len({row.proof for row in SAMPLE}) == len(SAMPLE)


@pytest.fixture(scope="module")
def failing() -> dict[Row, bool]:
    """Whether the test of each row of the sample fails without its function; two at a time."""

    def fails(row: Row) -> bool:
        return fails_without(row.module, row.function, row.test)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SAMPLE, pool.map(fails, SAMPLE), strict=True))


@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row.part)
def test_the_cited_test_fails_when_the_named_function_is_emptied(row: Row, failing: dict[Row, bool]) -> None:
    """A sample; `make soak` tries all rows (tests/soak/test_papers_soak.py)."""
    assert failing[row]
