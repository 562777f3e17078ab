"""Rows that are fetched by value: values that look alike when they are shortened are still told apart."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import apart, rows

from freshview import Warehouse
from freshview.catalog.records import RelationState
from freshview.storage.reader import StateReader

_HEAD = "x" * 300  # longer than any shortened text of a value
_TWO_JOINS = (
    "SELECT o.id, a.label AS sender, b.label AS receiver FROM o JOIN n a ON o.src = a.name JOIN n b ON o.dst = b.name"
)


@pytest.fixture
def world(swh: Warehouse) -> Warehouse:
    """Orders between places whose names differ in their last letters only; checkpointed, so that rows are fetched."""
    swh.sql("CREATE TABLE n (name STRING, label STRING, PRIMARY KEY (name))")
    swh.sql("CREATE TABLE o (id INT, src STRING, dst STRING, PRIMARY KEY (id))")
    swh.sql(f"INSERT INTO n SELECT concat('{_HEAD}', id), concat('place ', id) FROM range(40)")
    swh.sql(f"INSERT INTO o SELECT id, concat('{_HEAD}', id), concat('{_HEAD}', id + 1) FROM range(10)")
    swh.sql("CHECKPOINT n")
    swh.sql("CHECKPOINT o")
    return swh


def _expected(spark: SparkSession, wh: Warehouse, query: str) -> list[tuple[object, ...]]:
    session = apart(spark)
    for table in ("n", "o"):
        session.createDataFrame(wh.sql(f"SELECT * FROM {table}").toArrow()).createOrReplaceTempView(table)
    return sorted((tuple(r) for r in session.sql(query).collect()), key=repr)


def test_two_joins_to_one_table_on_long_strings(world: Warehouse, spark: SparkSession) -> None:
    world.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh' = 'incremental') AS {_TWO_JOINS}")
    world.sql(f"INSERT INTO o VALUES (100, '{_HEAD}20', '{_HEAD}31'), (101, '{_HEAD}21', '{_HEAD}20')")
    assert rows(world, "SELECT * FROM v") == _expected(spark, world, _TWO_JOINS)
    world.sql(f"UPDATE o SET dst = '{_HEAD}33' WHERE id = 100")
    world.sql(f"UPDATE n SET label = 'moved' WHERE name = '{_HEAD}20'")
    assert rows(world, "SELECT * FROM v") == _expected(spark, world, _TWO_JOINS)


def test_a_view_over_a_view_on_long_strings(world: Warehouse, spark: SparkSession) -> None:
    """The view below is maintained in the same job, and its rows are fetched by value as a table's are."""
    world.sql(f"CREATE MATERIALIZED VIEW v AS {_TWO_JOINS}")
    world.sql(
        "CREATE MATERIALIZED VIEW w TBLPROPERTIES ('refresh' = 'incremental') AS "
        "SELECT v.id, a.name AS at, b.name AS to FROM v JOIN n a ON v.sender = a.label JOIN n b ON v.receiver = b.label"
    )
    world.sql(f"INSERT INTO o VALUES (100, '{_HEAD}20', '{_HEAD}31')")
    world.sql(f"DELETE FROM o WHERE src = '{_HEAD}3'")
    below = f"WITH v AS ({_TWO_JOINS}) "
    text = (
        "SELECT v.id, a.name AS at, b.name AS to FROM v JOIN n a ON v.sender = a.label JOIN n b ON v.receiver = b.label"
    )
    assert rows(world, "SELECT * FROM w") == _expected(spark, world, below + text)


def test_values_that_differ_far_in_are_fetched_apart(world: Warehouse, spark: SparkSession) -> None:
    """Two sets of long strings with equal sizes, beginnings and ends are told apart by a letter in the middle."""
    query = (
        "SELECT a.label AS x, b.label AS y FROM o JOIN n a ON o.src = a.name JOIN n b ON o.dst = b.name WHERE o.id > 50"
    )
    world.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh' = 'incremental') AS {query}")
    one, two = (f"{_HEAD}{letter}{_HEAD}" for letter in "ab")
    world.sql(f"INSERT INTO n VALUES ('{one}', 'one'), ('{two}', 'two')")
    world.sql("CHECKPOINT n")
    assert rows(world, "SELECT * FROM v") == []
    world.sql(f"INSERT INTO o VALUES (60, '{one}', '{two}')")
    assert rows(world, "SELECT * FROM v") == [("one", "two")] == _expected(spark, world, query)


def test_views_that_wait_for_one_change_share_its_lookups(
    world: Warehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three views look up the same rows in other columns: maintained together they read them twice at most."""
    texts = {
        "v1": "SELECT o.id, a.label FROM o JOIN n a ON o.src = a.name",
        "v2": "SELECT o.id, a.name FROM o JOIN n a ON o.src = a.name",
        "v3": "SELECT o.id, upper(a.label) AS label, a.name FROM o JOIN n a ON o.src = a.name",
    }
    for name, text in texts.items():
        world.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh' = 'incremental') AS {text}")
    read: list[str] = []
    matching = StateReader._matching

    def counted(self: StateReader, state: RelationState, *rest: Any) -> Any:
        read.append(state.relation.name)
        return matching(self, state, *rest)

    monkeypatch.setattr(StateReader, "_matching", counted)
    world.sql(f"INSERT INTO o VALUES (100, '{_HEAD}20', '{_HEAD}31')")
    for name in texts:
        world.maintain([name])
    apart_reads = read.count("n")
    assert apart_reads == 3
    read.clear()
    world.sql(f"INSERT INTO o VALUES (101, '{_HEAD}21', '{_HEAD}31')")
    assert len(world.maintain()) == 3
    assert 1 <= read.count("n") <= 2
    for name, text in texts.items():
        assert rows(world, f"SELECT * FROM {name}") == _expected(spark, world, text)
