"""The workload of MQO §7.1 is what the paper says of it."""

from __future__ import annotations

import sqlglot
from sqlglot import exp

from freshview.bench.data import KEYS
from freshview.bench.workload import AGGREGATES, COPIED, JOINS, VIEWS


def test_ten_views_five_with_aggregates_read_eight_relations() -> None:
    trees = {name: sqlglot.parse_one(text, read="spark") for name, text in VIEWS.items()}
    assert len(trees) == 10
    assert {name for name, tree in trees.items() if tree.find(exp.Group)} == set(AGGREGATES)
    assert len(AGGREGATES) == len(JOINS) == 5
    assert {table.name for tree in trees.values() for table in tree.find_all(exp.Table)} == set(KEYS)


def test_most_views_have_selections_of_their_own() -> None:
    where = []
    for text in VIEWS.values():
        condition = sqlglot.parse_one(text, read="spark").find(exp.Where)
        assert condition is not None
        where.append({part.sql() for part in condition.this.flatten()})
    alone = [w - set().union(*(o for o in where if o is not w)) for w in where]
    assert sum(bool(a) for a in alone) >= 8


def test_copies_get_new_keys() -> None:
    assert all(KEYS[table].split(", ")[0] == key for table, key in COPIED.items())
