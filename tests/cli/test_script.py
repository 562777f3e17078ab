"""Scripts are cut at semicolons, and at nothing that only looks like one."""

from __future__ import annotations

import pytest

from freshview.errors import InvalidStatement
from freshview.sql.script import is_complete, statements


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", []),
        (" ;; -- nothing\n ; /* ; */", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;\nSELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';' ; SELECT \"a;b\"", ["SELECT ';'", 'SELECT "a;b"']),
        ("SELECT `a;``b` FROM t; SELECT 2", ["SELECT `a;``b` FROM t", "SELECT 2"]),
        (r"SELECT 'it\'s; fine'; SELECT 2", [r"SELECT 'it\'s; fine'", "SELECT 2"]),
        (r"SELECT r'a\'; SELECT 2", [r"SELECT r'a\'", "SELECT 2"]),
        ("SELECT 1 -- not; here\n; SELECT 2", ["SELECT 1 -- not; here", "SELECT 2"]),
        ("/* a; /* b; */ c; */ SELECT 1; SELECT 2", ["/* a; /* b; */ c; */ SELECT 1", "SELECT 2"]),
        ("SHOW TABLES LIKE 'a;b'; EXPLAIN SELECT ';'", ["SHOW TABLES LIKE 'a;b'", "EXPLAIN SELECT ';'"]),
        ("BEGIN; COMMIT;", ["BEGIN", "COMMIT"]),
        ("SELECT 'é;ü'; SELECT '日本;'", ["SELECT 'é;ü'", "SELECT '日本;'"]),
    ],
)
def test_statements_are_cut_apart_word_for_word(script: str, expected: list[str]) -> None:
    assert statements(script) == expected


@pytest.mark.parametrize("script", ["SELECT 'a; SELECT 2", "SELECT `a", 'SELECT "a', "SELECT 1 /* a;"])
def test_an_open_quote_is_told(script: str) -> None:
    with pytest.raises(InvalidStatement, match="script: "):
        statements(script)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- said", True),
        ("SELECT 1; SELECT 2", False),
        ("SELECT ';", False),
        ("SELECT ';'", False),
        ("SELECT 1 /* ;", False),
        ("-- only a comment", True),
        ("", True),
    ],
)
def test_a_statement_is_complete_at_its_semicolon(text: str, expected: bool) -> None:
    assert is_complete(text) is expected
