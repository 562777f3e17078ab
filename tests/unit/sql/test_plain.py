"""Queries that only choose rows and columns: which texts are taken apart, and into what."""

from __future__ import annotations

import pytest

from freshview.sql.plain import plain

COLUMNS = ("k", "v", "Name", "all", "x", "X")


@pytest.mark.parametrize(
    ("text", "name", "where", "items"),
    [
        ("SELECT * FROM t", "t", "", ("*",)),
        (" select k , t.v\nfrom t ", "t", "", ("k", "t.v")),
        ("SELECT NAME FROM V1 WHERE k > 1.5 AND V1.v = 'its'", "V1", "k > 1.5 AND V1.v = 'its'", ("NAME",)),
        ("SELECT * FROM t WHERE k IN (1, 2) OR v IS NULL", "t", "k IN (1, 2) OR v IS NULL", ("*",)),
    ],
)
def test_a_choice_of_rows_and_columns_is_taken_apart(text: str, name: str, where: str, items: tuple[str, ...]) -> None:
    found = plain(text, lambda: COLUMNS)
    assert found is not None
    assert (found.qualifier, found.where, found.items) == (name, where, items)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM t ORDER BY k",
        "SELECT * FROM t LIMIT 1",
        "SELECT * FROM t WHERE k > 1 ORDER BY k",
        "SELECT * FROM t WHERE k > 1 GROUP BY ALL",
        "SELECT * FROM t WHERE k IN (SELECT 1)",
        "SELECT * FROM t WHERE upper(v) = 'A'",  # a session may have a function of that name
        "SELECT * FROM t WHERE k > 1 -- more",
        "SELECT /*+ COALESCE(1) */ * FROM t",
        "SELECT * FROM t x",
        "SELECT * FROM t AS x",
        "SELECT * FROM a.t",
        "SELECT * FROM t VERSION AS OF 3",
        "SELECT * FROM t, u",
        "SELECT * FROM t JOIN u ON true",
        "SELECT * FROM t UNION ALL SELECT * FROM t",
        "SELECT k + 1 FROM t",
        "SELECT k AS a FROM t",
        "SELECT k a FROM t",
        "SELECT DISTINCT k FROM t",
        "SELECT all FROM t",
        "SELECT u.k FROM t",
        "SELECT z FROM t",
        "SELECT x FROM t",  # ambiguous
        "SELECT `k` FROM t",
        'SELECT "k" FROM t',
        "SELECT * FROM t;",
        "SELECT * FROM t WHERE v = '${x}'",
        "SELECT * FROM t WHERE v = '{x}'",
        "SELECT * FROM t WHERE k = :k",
        "SELECT * FROM t WHERE k = ?",
        "SELECT * FROM t WHERE true",
        "TABLE t",
        "EXPLAIN SELECT * FROM t",
    ],
)
def test_any_other_text_is_left_as_it_is(text: str) -> None:
    assert plain(text, lambda: COLUMNS) is None
