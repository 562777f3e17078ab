"""Every row of docs/papers.md: its first test fails when its first function is emptied."""

from __future__ import annotations

import pytest
from tests.emptied import fails_without
from tests.unit.test_papers import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.part)
def test_the_cited_test_fails_when_the_named_function_is_emptied(row: Row) -> None:
    assert fails_without(row.module, row.function, row.test)
