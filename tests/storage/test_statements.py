"""Statements that a lookup answers change the rows that DuckDB changes, which shares no code with us.

A statement that would need Spark is not run here: `tests/spark/test_dml_oracle.py` runs those too.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.errors import DuplicateKey
from freshview.relation.delta import DELETE, DELETE_KEY
from freshview.storage import checkpoint as checkpoint_module
from freshview.storage import index, segments
from freshview.storage import reader as reader_module
from freshview.transactions import row_lookup

TABLES = {
    "t": "k INT, j STRING, v BIGINT, d DATE, x DOUBLE",  # keyed by (k, j)
    "b": "k TINYINT, j STRING, d DATE",
    "w": "k INT, i SMALLINT, j STRING",  # keyed by (k, i), of a fixed width: its rows are deleted by key
}
KEYS = {"t": "k, j", "w": "k, i"}
POOLS: dict[str, list[str]] = {
    "k": ["-1", "0", "1", "2", "3", "7"],
    "i": ["-1", "0", "1", "2"],
    "j": ["''", "'a'", "'A'", "'a '", "'b'", "'é'"],
    "v": ["-9223372036854775807", "-1", "0", "1", "2", "9223372036854775807"],
    "d": ["DATE'1969-12-31'", "DATE'2020-01-01'", "DATE'2020-02-29'", "DATE'9999-12-31'"],
    "x": ["0", "1.5"],
}


Query = Callable[[int, int, str], pa.Table]


class Asked(Exception):
    """Spark was asked for."""


def refuse(_: Warehouse) -> None:
    raise Asked


def names(table: str) -> list[str]:
    return [c.split()[0] for c in TABLES[table].split(", ")]


def some(column: str) -> st.SearchStrategy[str]:
    return st.sampled_from(POOLS[column])


def comparisons(column: str) -> st.SearchStrategy[str]:
    one, few = some(column), st.lists(st.one_of(some(column), st.just("NULL")), min_size=1, max_size=30)
    return st.one_of(
        st.builds(f"{column} = {{}}".format, one),
        st.builds(f"{column} {{}} {{}}".format, st.sampled_from(["<", "<=", ">", ">="]), one),
        st.builds(f"{{}} >= {column}".format, one),
        st.builds(f"{column} BETWEEN {{}} AND {{}}".format, one, one),
        few.map(lambda v: f"{column} IN ({', '.join(v)})"),
    )


def conditions(table: str) -> st.SearchStrategy[str]:
    columns = [n for n in names(table) if n != "x"]
    one = st.sampled_from(columns).flatmap(comparisons)
    return st.lists(one, min_size=1, max_size=3).map(" AND ".join)


def rows(table: str) -> st.SearchStrategy[str]:
    required = KEYS.get(table, "").split(", ")
    cells = [some(n) if n in required else st.one_of(some(n), st.just("NULL")) for n in names(table)]
    return st.lists(st.tuples(*cells).map(lambda c: f"({', '.join(c)})"), min_size=1, max_size=8).map(", ".join)


def assignments(table: str) -> st.SearchStrategy[str]:
    return st.sampled_from(names(table)).flatmap(lambda n: some(n).map(f"{n} = {{}}".format))


def statements() -> st.SearchStrategy[str]:
    table = st.sampled_from(list(TABLES))
    return st.one_of(
        table.flatmap(lambda t: rows(t).map(f"INSERT INTO {t} VALUES {{}}".format)),
        table.flatmap(lambda t: conditions(t).map(f"DELETE FROM {t} WHERE {{}}".format)),
        table.flatmap(lambda t: st.builds(f"UPDATE {t} SET {{}} WHERE {{}}".format, assignments(t), conditions(t))),
    )


class Oracle:
    """Copies of the tables in DuckDB, without constraints."""

    def __init__(self) -> None:
        self.db = duckdb.connect()
        for table, columns in TABLES.items():
            self.db.execute(f"CREATE TABLE {table} ({columns.replace('STRING', 'VARCHAR')})")

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self.db.execute(f"SELECT * FROM {table}").fetchall()

    def run(self, statement: str) -> bool:
        """Run a statement; False if it would break a key, and then it changes nothing."""
        self.db.execute("BEGIN")
        self.db.execute(statement)
        found = [self.db.execute(f"SELECT {key} FROM {table}").fetchall() for table, key in KEYS.items()]
        kept = all(len(set(keys)) == len(keys) for keys in found)
        self.db.execute("COMMIT" if kept else "ROLLBACK")
        return kept


def compare(found: pa.Table, oracle: Oracle, table: str, after: str) -> None:
    assert Counter(tuple(r.values()) for r in found.to_pylist()) == Counter(oracle.rows(table)), after


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_statements_change_the_rows_that_duckdb_changes(data: st.DataObject) -> None:
    """Over main and segments, in memory and in files; alone and in transactions, failing ones without a trace."""
    oracle = Oracle()
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        freshview.connect(Path(folder) / "w") as wh,
    ):
        patch.setattr(Warehouse, "engine", refuse)
        patch.setattr(checkpoint_module, "_MERGE_SHARE", data.draw(st.sampled_from([0.0, 5.0]), label="merge share"))
        patch.setattr(index, "FEWEST", data.draw(st.sampled_from([0, 20]), label="fewest values of an index"))
        patch.setattr(reader_module, "OVERLAY_ROWS", data.draw(st.sampled_from([5, 200_000]), label="overlay"))
        internals(wh).keep_in_memory(data.draw(st.sampled_from([0, 1 << 20]), label="memory"))
        wh.sql(f"CREATE TABLE t ({TABLES['t']}, PRIMARY KEY (k, j))")
        wh.sql(f"CREATE TABLE b ({TABLES['b']})")
        wh.sql(f"CREATE TABLE w ({TABLES['w']}, PRIMARY KEY (k, i))")
        for _ in range(data.draw(st.integers(4, 12), label="acts")):
            patch.setattr(segments, "INLINE_BYTES", data.draw(st.sampled_from([0, 1 << 20]), label="inline"))
            act = data.draw(st.one_of(statements(), st.just("CHECKPOINT")), label="act")
            if act == "CHECKPOINT":
                for table in TABLES:
                    internals(wh).checkpoint(table)
                continue
            with wh.transaction() as tx:
                refused: Exception | None = None
                try:
                    tx.sql(act)
                except (Asked, DuplicateKey) as error:
                    refused = error
                if isinstance(refused, Asked):  # only by what is too large for the driver
                    assert reader_module.OVERLAY_ROWS == 5, act
                else:
                    assert oracle.run(act) == (refused is None), act
                for table in TABLES:
                    compare(internals(wh).rows_in(tx, table), oracle, table, act)
        for table in TABLES:
            compare(internals(wh).rows(table), oracle, table, "the end")


def test_a_key_that_the_transaction_deleted_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a DELETE are at hand: the check of an INSERT with their keys reads no file."""
    with freshview.connect(tmp_path / "w") as wh:
        wh.sql("CREATE TABLE t (k INT, j INT, v STRING, PRIMARY KEY (k, j))")
        with wh.transaction() as tx:
            tx.insert("t", [{"k": k, "j": j, "v": "old"} for k in range(50) for j in range(3)])
        wh.sql("CHECKPOINT t")
        asked: list[str] = []
        monkeypatch.setattr(internals(wh).storage.mains, "query", _counted(internals(wh).storage.mains.query, asked))
        internals(wh).keep_in_memory(0)
        with wh.transaction() as tx:
            assert tx.sql("DELETE FROM t WHERE k IN (3, 4, 5)").rows == 9
            assert len(asked) == 1
            tx.insert("t", [{"k": k, "j": j, "v": "new"} for k in (3, 5) for j in range(3)])
            assert len(asked) == 1
            with pytest.raises(DuplicateKey):
                tx.insert("t", [{"k": 3, "j": 1, "v": "again"}])
            assert len(asked) == 1
            with pytest.raises(DuplicateKey):
                tx.insert("t", [{"k": 4, "j": 0, "v": "new"}, {"k": 6, "j": 0, "v": "there already"}])
            assert len(asked) == 2
            assert "4" not in asked[1]
        assert internals(wh).rows("t").num_rows == 147


def test_rows_of_a_wide_table_are_deleted_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition on the key alone reads keys alone: the segment has no images, and the third statement reads no file.

    The number of rows is that of the rows that were there; a condition on another column reads whole rows.
    """
    monkeypatch.setattr(Warehouse, "engine", refuse)
    with freshview.connect(tmp_path / "w") as wh:
        wh.sql("CREATE TABLE t (k BIGINT, j INT, v STRING, PRIMARY KEY (k, j))")
        with wh.transaction() as tx:
            tx.insert("t", [{"k": k, "j": j, "v": f"{k} {j}"} for k in range(500) for j in range(4)])
        wh.sql("CHECKPOINT t")
        internals(wh).keep_in_memory(0)
        reads: list[str] = []
        monkeypatch.setattr(internals(wh).storage.mains, "query", _counted(internals(wh).storage.mains.query, reads))
        for i in range(4):
            listed = ", ".join(map(str, range(40 * i, 40 * i + 41)))  # the last key of each list is in the next one too
            asked = len(reads)
            assert wh.sql(f"DELETE FROM t WHERE k IN ({listed}) AND j IN (1, 2, 9)").rows == (82 if i == 0 else 80)
            assert len(reads) - asked == (1 if i == 0 else 0)
            rows = internals(wh).segment_rows(internals(wh).segments("t")[-1], "t")
            assert set(rows.column("_action").to_pylist()) == {DELETE_KEY}
            assert rows.column("v").null_count == rows.num_rows
        assert wh.sql("DELETE FROM t WHERE k = 499 AND v = '499 1'").rows == 1
        last = internals(wh).segment_rows(internals(wh).segments("t")[-1], "t").to_pylist()
        assert [(row["_action"], row["v"]) for row in last] == [(DELETE, "499 1")]
        gone = {(k, j) for k in range(161) for j in (1, 2)} | {(499, 1)}
        left = {(row["k"], row["j"]) for row in internals(wh).rows("t").to_pylist()}
        assert left == {(k, j) for k in range(500) for j in range(4)} - gone


def _counted(query: Query, asked: list[str]) -> Query:
    def counted(relation_id: int, version: int, sql: str) -> pa.Table:
        asked.append(sql)
        return query(relation_id, version, sql)

    return counted


def test_more_rows_than_a_lookup_takes_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Warehouse, "engine", refuse)
    monkeypatch.setattr(row_lookup, "_EXACT_ROWS", 10)
    with freshview.connect(tmp_path / "w") as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
        with wh.transaction() as tx:
            tx.insert("t", [{"k": k, "v": k % 2} for k in range(22)])
        with pytest.raises(Asked):
            wh.sql("DELETE FROM t WHERE v = 1")
        assert wh.sql("DELETE FROM t WHERE v = 1 AND k < 20").rows == 10
        assert sorted(internals(wh).rows("t").column("k").to_pylist()) == [*range(0, 20, 2), 20, 21]


def test_a_date_is_compared_as_a_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Warehouse, "engine", refuse)
    with freshview.connect(tmp_path / "w") as wh:
        wh.sql("CREATE TABLE t (d DATE, n INT)")
        with wh.transaction() as tx:
            tx.insert("t", [{"d": dt.date(2020, 1, day), "n": day} for day in range(1, 31)])
        wh.sql("CHECKPOINT t")
        listed = ", ".join(f"DATE'2020-01-{day:02}'" for day in range(1, 26))
        assert wh.sql(f"DELETE FROM t WHERE d IN ({listed}) AND n > 2").rows == 23
        assert wh.sql("UPDATE t SET n = 0 WHERE d > DATE'2020-01-29'").rows == 1
        assert sorted(internals(wh).rows("t").column("n").to_pylist()) == [0, 1, 2, 26, 27, 28, 29]
