"""Random statements on a keyed table and a bag answer as DuckDB does, which shares no code with us."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import freshview
from freshview import Warehouse
from freshview.errors import DuplicateKey, FreshviewError, NotNullViolation

_SETTINGS = settings(
    max_examples=10,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),  # a smaller example is not worth minutes of Spark
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

_number = st.integers(-2, 6)
_text = st.sampled_from(["'x'", "'y'", "'it''s'", "''", "'é'", "NULL"])
_maybe = st.one_of(_number.map(str), st.just("NULL"))


def _conditions(table: str) -> st.SearchStrategy[str]:
    """Conditions that mean the same in Spark and DuckDB, over the columns that both tables have."""
    key = "k" if table == "t" else "a"
    leaf = st.one_of(
        st.builds("{} > {}".format, st.sampled_from(["a", key]), _number),
        st.builds(f"{key} = {{}}".format, _number),
        st.builds(f"{key} IN ({{}}, {{}}, {{}})".format, _number, _number, _number),
        st.builds(f"{table}.{key} IN ({{}}, {{}}) AND a IS NOT NULL".format, _number, _number),
        st.builds("a IN ({}, NULL)".format, _number),
        st.builds("a NOT IN ({}, {})".format, _number, _maybe),
        st.builds("a BETWEEN {} AND {}".format, _number, _number),
        st.builds("s IN ('x', {}) AND {} < a".format, _text, _number),
        st.builds(f"a IN ({{}}, {{}}) AND {key} + 1 > {{}}".format, _number, _number, _number),
        st.builds(f"a >= {{}} AND a IN (SELECT {key} FROM {table})".format, _number),
        st.builds("s = {}".format, _text),
        st.builds("s <> {}".format, _text),
        st.sampled_from(
            [
                "a IS NULL",
                "s IS NOT DISTINCT FROM NULL",
                "a IN (SELECT a FROM b)",
                "a NOT IN (SELECT a FROM b)",
                "a NOT IN (SELECT a FROM b WHERE a IS NOT NULL)",
                "a = (SELECT max(a) FROM t)",
                "(SELECT count(*) FROM b) > 2",
                f"EXISTS (SELECT 1 FROM b AS o WHERE o.a = {table}.{key})",
                f"NOT EXISTS (SELECT 1 FROM t AS o WHERE o.k = {table}.{key} + 1)",
                f"EXISTS (SELECT 1 FROM t AS o WHERE o.a > {table}.a AND o.s = {table}.s)",
                "CASE WHEN a IS NULL THEN s = 'x' WHEN a > 1 THEN TRUE ELSE NULL END",
            ]
        ),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            inner.map("NOT ({})".format),
            st.builds("({}) AND ({})".format, inner, inner),
            st.builds("({}) OR ({})".format, inner, inner),
        ),
        max_leaves=3,
    )


def _assignments(table: str) -> st.SearchStrategy[str]:
    key = "k" if table == "t" else "a"
    new_a = st.one_of(
        _maybe.map("a = {}".format),
        st.sampled_from(
            [
                f"a = {key} + 1",
                "a = -a",
                f"a = (SELECT max(o.a) FROM b AS o WHERE o.a < {table}.{key})",
                "a = (SELECT count(*) FROM t)",
                "a = CASE WHEN s IS NULL THEN NULL WHEN a > 2 THEN 0 ELSE a END",
            ]
        ),
    )
    new_s = st.one_of(
        _text.map("s = {}".format), st.sampled_from(["s = s || '!'", "s = CASE a WHEN 1 THEN 'one' ELSE s END"])
    )
    new_k = st.sampled_from(["k = k + 1", "k = k + 10", "k = -k", "k = 5", "k = a", "k = CASE WHEN a > 2 THEN 9 END"])
    singles = [new_a, new_s, st.builds("{}, {}".format, new_a, new_s)]
    if table == "t":
        singles += [new_k, st.builds("{}, {}".format, new_k, new_a)]
    return st.one_of(*singles)


def _inserts() -> st.SearchStrategy[str]:
    keyed_row = st.builds("({}, {}, {})".format, _number, _maybe, _text)
    bag_row = st.builds("({}, {})".format, _maybe, _text)
    return st.one_of(
        st.lists(keyed_row, min_size=1, max_size=3).map(lambda r: f"INSERT INTO t VALUES {', '.join(r)}"),
        st.builds("INSERT INTO t (s, k) VALUES ({}, {})".format, _text, _maybe),
        st.builds("INSERT INTO t SELECT k + 20, a, s FROM t WHERE {}".format, _conditions("t")),
        st.builds("INSERT INTO t SELECT DISTINCT a + 40, a, NULL FROM b WHERE {}".format, _conditions("b")),
        st.lists(bag_row, min_size=1, max_size=3).map(lambda r: f"INSERT INTO b VALUES {', '.join(r)}"),
        st.builds("INSERT INTO b SELECT k, s FROM t WHERE {}".format, _conditions("t")),
        st.just("INSERT INTO b SELECT a, s FROM b WHERE (SELECT count(*) FROM b) < 20"),
        st.just("INSERT INTO b SELECT a, s FROM t UNION ALL SELECT a, s FROM t"),
    )


def _statements() -> st.SearchStrategy[str]:
    table = st.sampled_from(["t", "b"])
    updates = table.flatmap(
        lambda t: st.builds("UPDATE {} SET {} WHERE {}".format, st.just(t), _assignments(t), _conditions(t))
    )
    whole = table.flatmap(lambda t: st.builds("UPDATE {} SET {}".format, st.just(t), _assignments(t)))
    deletes = table.flatmap(lambda t: st.builds("DELETE FROM {} WHERE {}".format, st.just(t), _conditions(t)))
    return st.one_of(updates, whole, deletes, _inserts())


class _Oracle:
    """Copies of the tables in DuckDB, without constraints; `run` reports which statements break them."""

    def __init__(self) -> None:
        self.db = duckdb.connect()
        self.db.execute("CREATE TABLE t (k INTEGER, a INTEGER, s VARCHAR)")
        self.db.execute("CREATE TABLE b (a INTEGER, s VARCHAR)")

    def run(self, statement: str) -> type[FreshviewError] | None:
        """The error to expect; the statement counts only if there is none."""
        before = {t: self.db.execute(f"SELECT * FROM {t}").fetchall() for t in ("t", "b")}
        self.db.execute(statement)
        keys = [k for (k,) in self.db.execute("SELECT k FROM t").fetchall()]
        expected: type[FreshviewError] | None = None
        if None in keys:
            expected = NotNullViolation
        elif len(set(keys)) < len(keys):
            expected = DuplicateKey
        if expected is not None:
            self.restore(before)
        return expected

    def restore(self, contents: dict[str, list[tuple[Any, ...]]]) -> None:
        for table, rows in contents.items():
            self.db.execute(f"DELETE FROM {table}")
            if rows:
                self.db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def contents(self) -> dict[str, list[tuple[Any, ...]]]:
        return {t: self.db.execute(f"SELECT * FROM {t}").fetchall() for t in ("t", "b")}


def _expect(run: Any, statement: str, oracle: _Oracle) -> None:
    expected = oracle.run(statement)
    if expected is None:
        run(statement)
    else:
        with pytest.raises((NotNullViolation, DuplicateKey)):
            run(statement)


def _compare(run: Any, oracle: _Oracle, after: object) -> None:
    for table, rows in oracle.contents().items():
        ours = Counter(tuple(r) for r in run(f"SELECT * FROM {table}").collect())
        assert ours == Counter(rows), f"{table} after {after}"


_ACTS = st.lists(
    st.one_of(
        _statements().map(lambda s: [s]),
        _statements().map(lambda s: [s]),
        st.sampled_from([["CHECKPOINT t"], ["CHECKPOINT b"]]),
        st.tuples(
            st.lists(_statements(), min_size=2, max_size=3), st.sampled_from(["COMMIT", "COMMIT", "ROLLBACK"])
        ).map(lambda pair: [*pair[0], pair[1]]),
    ),
    min_size=3,
    max_size=5,
)


@_SETTINGS
@given(acts=_ACTS)
def test_statements_answer_as_duckdb(spark: SparkSession, acts: list[list[str]]) -> None:
    """Single statements and transactions, checkpoints in between, failing ones without a trace."""
    oracle = _Oracle()
    first = [
        "INSERT INTO t VALUES (1, 1, 'x'), (2, NULL, 'y'), (3, 3, NULL), (4, 2, '')",
        "INSERT INTO b VALUES (1, 'x'), (1, 'x'), (2, NULL), (NULL, 'y')",
    ]
    with tempfile.TemporaryDirectory() as folder, freshview.connect(Path(folder) / "w", spark=spark) as wh:
        wh.sql("CREATE TABLE t (k INT PRIMARY KEY, a INT, s STRING)")
        wh.sql("CREATE TABLE b (a INT, s STRING)")
        for act in [[s] for s in first] + acts:
            if act[0].startswith("CHECKPOINT"):
                wh.sql(act[0])
            elif len(act) == 1:
                _expect(wh.sql, act[0], oracle)
            else:
                _transaction(wh, act, oracle)
            if act[0] not in first:
                _compare(wh.sql, oracle, act)


def _transaction(wh: Warehouse, act: list[str], oracle: _Oracle) -> None:
    *statements, ending = act
    before = oracle.contents()
    tx = wh.transaction()
    for statement in statements:
        _expect(tx.sql, statement, oracle)
    _compare(tx.sql, oracle, act)
    if ending == "COMMIT":
        tx.commit()
    else:
        tx.rollback()
        oracle.restore(before)
