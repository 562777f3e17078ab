"""Every row of docs/papers.md: the tests that it cites depend on the functions that it names."""

from __future__ import annotations

from functools import cache

import pytest
from tests.emptied import fails_without
from tests.unit.test_papers import ROWS, Row

_fails = cache(fails_without)  # rows share functions and tests


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.part)
def test_the_first_test_fails_when_the_first_function_is_emptied(row: Row) -> None:
    assert _fails(*row.proof)


@pytest.mark.parametrize(
    ("row", "test"),
    [(row, test) for row in ROWS for test in row.tests],
    ids=lambda given: given.part if isinstance(given, Row) else given,
)
def test_every_cited_test_fails_when_one_of_the_named_functions_is_emptied(row: Row, test: str) -> None:
    assert any(_fails(*function, test) for function in row.functions)


@pytest.mark.parametrize(
    ("row", "function"),
    [(row, function) for row in ROWS for function in row.functions],
    ids=lambda given: given.part if isinstance(given, Row) else given[1],
)
def test_one_of_the_cited_tests_fails_when_a_named_function_is_emptied(row: Row, function: tuple[str, str]) -> None:
    assert any(_fails(*function, test) for test in row.tests)
