"""Statements over looked-up rows change what they change over the whole table, by the way that Spark takes alone."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.internals import internals
from tests.spark.sessions import jobs_run

from freshview import Warehouse
from freshview.errors import InvalidStatement
from freshview.sql.pins import Pins
from freshview.transactions import dml as dml_module
from freshview.transactions import row_lookup

# {t} is the table. Conditions that a lookup answers whole, in part, by another table, or not at all.
STATEMENTS = (
    "DELETE FROM {t} WHERE k IN (1, 2) AND upper(s) = 'A'",
    "UPDATE {t} SET s = concat(s, j), v = k * 2 WHERE v BETWEEN 3 AND 6 AND x IS NOT NULL",
    "DELETE FROM {t} WHERE c = 'ab' AND k > 5",
    "UPDATE {t} AS a SET k = a.k + 100 WHERE a.d >= DATE'2020-01-09' AND a.d < DATE'2020-01-13' AND a.x > 1",
    "DELETE FROM {t} WHERE k IN (SELECT n FROM small WHERE n <> 12)",
    "UPDATE {t} SET v = (SELECT max(n) FROM small) WHERE v IN (SELECT n FROM small) AND j = 'b'",
    "UPDATE {t} SET x = 0 WHERE k >= 20 AND EXISTS (SELECT 1 FROM small WHERE n = {t}.k OR m = {t}.s)",
    "MERGE INTO {t} USING small ON {t}.k = small.n WHEN MATCHED AND j = 'a' THEN DELETE"
    " WHEN MATCHED THEN UPDATE SET s = small.m, v = n",
    "MERGE INTO {t} AS o USING small AS u ON o.k = u.n AND o.j = u.m"
    " WHEN MATCHED THEN UPDATE SET x = o.x + 1"
    " WHEN NOT MATCHED AND u.n < 100 THEN INSERT (k, j, s) VALUES (u.n, u.m, 'new')",
    "MERGE INTO {t} USING small ON {t}.k = small.n WHEN NOT MATCHED BY SOURCE AND k < 25 THEN DELETE",
)


@pytest.fixture
def two(swh: Warehouse) -> Warehouse:
    """The tables near and far with equal rows, in main and segments, and a small table."""
    swh.sql("CREATE TABLE small (n BIGINT, m STRING)")
    swh.sql("INSERT INTO small VALUES (12, 'a'), (15, 'b'), (18, 'a'), (99, 'b'), (NULL, 'a'), (4294967308, 'x')")
    for table in ("near", "far"):
        columns = "k INT, j STRING, v BIGINT, s STRING, d DATE, x DOUBLE, c CHAR(3)"
        swh.sql(f"CREATE TABLE {table} ({columns}, PRIMARY KEY (k, j))")
        rows = ", ".join(
            f"({n}, '{'ab'[n % 2]}', {n // 3}, {'NULL' if n % 5 == 0 else repr('aA'[n % 2])},"
            f" date_add(DATE'2020-01-01', {n}), {'NULL' if n % 7 == 0 else n / 2}, '{'ab' if n % 3 else 'xyz'}')"
            for n in range(28)
        )
        swh.sql(f"INSERT INTO {table} SELECT * FROM VALUES {rows}")
        swh.sql(f"CHECKPOINT {table}")
        swh.sql(f"INSERT INTO {table} (k, j, v) VALUES (50, 'b', 4), (51, 'b', 99)")
        swh.sql(f"DELETE FROM {table} WHERE k = 3")
    return swh


def contents(wh: Warehouse, table: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(repr, r.values())) for r in internals(wh).rows(table).to_pylist())


def test_lookups_change_what_the_whole_table_would(two: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a statement over the rows found = the statement over all rows; the counts of rows are equal too."""
    for statement in STATEMENTS:
        found = two.sql(statement.format(t="near")).rows
        with monkeypatch.context() as patch:
            patch.setattr(row_lookup, "pins", lambda *_: None)
            patch.setattr(row_lookup, "merge_pins", lambda *_: Pins(()))
            assert two.sql(statement.format(t="far")).rows == found, statement
        assert contents(two, "near") == contents(two, "far"), statement
        assert found, statement


def test_a_small_source_needs_a_few_rows_of_the_target(two: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows that match the source are read; a source row that matches twice is an error all the same."""
    seen: list[int] = []
    target = dml_module.Statements._target

    def counted(self: dml_module.Statements, relation: Any, near: Any) -> Any:
        seen.append(-1 if near is None else near.rows.num_rows)
        return target(self, relation, near)

    monkeypatch.setattr(dml_module.Statements, "_target", counted)
    merge = "MERGE INTO near USING small ON near.k = small.n WHEN MATCHED THEN UPDATE SET s = m"
    two.sql(merge)
    two.sql(merge.replace("near.k", "CAST(near.k AS BIGINT)"))
    monkeypatch.setattr(row_lookup, "LOCAL_ROWS", 2)
    two.sql(merge)
    assert seen == [3, -1, -1]
    two.sql("INSERT INTO small VALUES (12, 'twice')")
    with pytest.raises(InvalidStatement):
        two.sql(merge)


def test_conditions_on_any_column_run_no_job(two: Warehouse, spark: SparkSession) -> None:
    for statement in (STATEMENTS[0], STATEMENTS[1], STATEMENTS[3], "DELETE FROM {t} WHERE s = 'A'"):
        assert jobs_run(spark, partial(two.sql, statement.format(t="near"))) == 0, statement
