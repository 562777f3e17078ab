"""Texts of trees, where the shape of a tree is unusual."""

from __future__ import annotations

import sqlglot
from sqlglot import exp

from freshview.algebra.nodes import Project, Scan, Table
from freshview.sql.rendering import render


def test_a_tree_without_columns_has_a_text() -> None:
    """Of some parts of a plan only the number of rows matters; a part that is computed first is a text of its own."""
    tree = Project(Scan(Table("t"), (("a", "a"),)), ())
    parsed = sqlglot.parse_one(render(tree, lambda scan: scan.relation), read="spark")
    assert isinstance(parsed, exp.Select)
    assert [e.sql() for e in parsed.expressions] == ["1"]
