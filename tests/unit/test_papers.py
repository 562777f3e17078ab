"""docs/papers.md cannot drift: what it names exists, and the tests that it cites depend on the functions it names."""

from __future__ import annotations

import ast
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
_FUNCTIONS = re.compile(r"`([\w/]+\.py)` \((`[\w.]+`(?:, `[\w.]+`)*)")


@dataclass(frozen=True)
class Row:
    """A row of the page, with the functions that it names in brackets, each after its module, and its tests."""

    part: str
    built: str
    functions: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    @property
    def test(self) -> str:
        return self.tests[0]

    @property
    def proof(self) -> tuple[str, str, str]:
        """What the mutation check of a commit runs for this row: other rows may have the same."""
        return (*self.functions[0], self.test)


def _row(line: str) -> Row:
    row = _ROW.fullmatch(line)
    assert row is not None, line
    named = [(m[1], f) for m in _FUNCTIONS.finditer(row["modules"]) for f in re.findall(r"`([\w.]+)`", m[2])]
    tests = re.findall(r"`(tests/[^`]+)`", row["tests"])
    assert named, line
    assert tests, line
    return Row(row["part"], row["built"], tuple(named), tuple(tests))


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


def _definitions(path: Path) -> set[str]:
    """The functions of a module, and the methods of its classes as Class.method."""
    body = ast.parse(path.read_text()).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    return {node.name for node in body if isinstance(node, ast.FunctionDef)} | {
        f"{owner.name}.{node.name}" for owner in classes for node in owner.body if isinstance(node, ast.FunctionDef)
    }


def test_every_function_that_is_named_is_defined_there() -> None:
    """An inherited method is named with the class that defines it: only there it can be emptied."""
    for row in ROWS:
        for module, function in row.functions:
            assert function in _definitions(ROOT / "src" / "freshview" / module), f"{row.part}: {module} {function}"


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
        return fails_without(*row.proof)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SAMPLE, pool.map(fails, SAMPLE), strict=True))


@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row.part)
def test_the_cited_test_fails_when_the_named_function_is_emptied(row: Row, failing: dict[Row, bool]) -> None:
    """A sample; `make soak` tries all rows, with all their tests and functions (tests/soak/test_papers_soak.py)."""
    assert failing[row]
