"""A text written back with every operator in brackets has one reading only: the parser's."""

from __future__ import annotations

import pytest
import sqlglot

from freshview.sql.brackets import bracketed


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("SELECT a = b < c FROM t", "SELECT (a = (b < c)) FROM t"),
        ("SELECT a & 3 || 1 FROM t", "SELECT ((a & 3) || 1) FROM t"),
        ("SELECT a + b * c FROM t", "SELECT (a + (b * c)) FROM t"),
        ("SELECT a FROM t WHERE NOT a = 1 OR b AND c", "SELECT a FROM t WHERE ((NOT (a = 1)) OR (b AND c))"),
        ("SELECT a LIKE 'x' ESCAPE '/' AND b FROM t", "SELECT ((a LIKE 'x' ESCAPE '/') AND b) FROM t"),
        ("SELECT a FROM t JOIN u ON t.k = u.k", "SELECT a FROM t JOIN u ON (t.k = u.k)"),
        ("SELECT transform(a, x -> x + 1) FROM t", "SELECT TRANSFORM(a, x -> (x + 1)) FROM t"),
        ("SELECT s.A, m.K FROM t", "SELECT s.A, m.K FROM t"),
        (
            "SELECT a FROM t QUALIFY rank() OVER (PARTITION BY b ORDER BY c) = 1",
            "SELECT a FROM t QUALIFY (RANK() OVER (PARTITION BY b ORDER BY c) = 1)",
        ),
    ],
)
def test_every_operator_stands_in_brackets(text: str, written: str) -> None:
    assert bracketed(text) == written


def test_a_bracketed_text_reads_as_it_was_read() -> None:
    text = "SELECT a + b * -c AS x FROM t WHERE a BETWEEN 1 AND 2 + 3 AND NOT b IN (1, 2) OR c IS NOT NULL"
    again = sqlglot.parse_one(bracketed(text), read="spark")
    for bracket in list(again.find_all(sqlglot.exp.Paren)):
        bracket.replace(bracket.this)
    assert again == sqlglot.parse_one(text, read="spark")
