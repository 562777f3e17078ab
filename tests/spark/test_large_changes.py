"""Changes that are too large for the driver stay in Spark, and a large view is recomputed by replacing its rows."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK, examples
from tests.internals import internals
from tests.storage.model import play

import freshview
from freshview import Warehouse
from freshview.algebra.nodes import WEIGHT
from freshview.delta.condense import Expected
from freshview.delta.signed import net
from freshview.errors import ViewUnusable
from freshview.refresh import cost, execute, job_input
from freshview.refresh.condense import condensed_in_spark
from freshview.refresh.deltas import changes
from freshview.refresh.span import Span
from freshview.relation.delta import INSERT
from freshview.relation.schema import Schema
from freshview.spark import engine, signed
from freshview.spark.signed import cancelled
from freshview.storage import segments


@pytest.fixture
def lwh(swh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """A warehouse to which everything is large."""
    monkeypatch.setattr(cost, "DRIVER_CELLS", 0)
    monkeypatch.setattr(execute, "OVERLAY_ROWS", 0)
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    return swh


def bag(wh: Warehouse, text: str, **options: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(repr, row)) for row in wh.sql(text, **options).collect())


# -- replacement -----------------------------------------------------------------------------------


def _recomputed_view(wh: Warehouse, rows: int = 40) -> None:
    wh.sql("CREATE TABLE t (id BIGINT, g INT, x DOUBLE, PRIMARY KEY (id))")
    wh.sql(f"INSERT INTO t SELECT id, CAST(id % 3 AS INT), id / 7 FROM range({rows})")
    wh.sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='full') AS SELECT id, g, x FROM t WHERE g < 2")


def test_a_large_view_is_replaced_and_its_older_versions_stay(lwh: Warehouse) -> None:
    """Law: after a replacement the view is its definition; before it, what it was; and main holds the new rows."""
    _recomputed_view(lwh)
    first, old = internals(lwh).newest_csn(), bag(lwh, "SELECT * FROM v")
    lwh.sql("UPDATE t SET g = 2 WHERE id < 10")
    (job,) = lwh.maintain(["v"])
    assert (job.strategy, job.replaced) == ("full", "no view reads it")
    assert lwh.check("v").ok
    assert bag(lwh, "SELECT * FROM v", as_of=first) == old
    main = internals(lwh).main("v")
    assert main is not None
    assert (main.csn, main.rows) == (job.to_csn, job.view_rows)
    assert internals(lwh).state("v").segments == ()
    lwh.sql("DELETE FROM t")
    (job,) = lwh.maintain(["v"])
    assert (job.view_rows, job.replaced) == (0, "no view reads it")
    assert lwh.check("v").ok
    assert bag(lwh, "SELECT * FROM v") == Counter()
    lwh.sql("INSERT INTO t VALUES (1, 1, -0.0), (2, 1, 0.0)")
    lwh.maintain(["v"])
    assert lwh.check("v").ok
    lwh.sql("CHECKPOINT v")
    assert lwh.check("v").ok
    assert bag(lwh, "SELECT * FROM v", as_of=first) == old


def test_views_above_a_replaced_view_get_its_difference_or_recompute(
    lwh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a view above is right after a replacement below, whether it takes the difference or computes anew."""
    _recomputed_view(lwh)
    lwh.sql("CREATE MATERIALIZED VIEW sums AS SELECT g, count(*) n FROM v GROUP BY g")
    lwh.sql("CREATE MATERIALIZED VIEW kept TBLPROPERTIES ('refresh'='incremental') AS SELECT id, x FROM v WHERE g = 1")
    lwh.sql("UPDATE t SET g = 2 WHERE id < 10")
    jobs = {job.view: job for job in lwh.maintain()}
    assert (jobs["v"].strategy, jobs["v"].replaced) == ("full", "")  # comparing few rows takes no time
    assert jobs["v"].view_rows == 7
    assert jobs["kept"].strategy == "incremental"
    monkeypatch.setattr(cost, "CANCELLED", 10**9)
    lwh.sql("UPDATE t SET g = 1 WHERE id < 5")
    jobs = {job.view: job for job in lwh.maintain()}
    assert jobs["v"].replaced == "recomputing sums, kept takes less time than comparing the rows"
    assert jobs["kept"].strategy == "incremental"
    assert [lwh.check(view).ok for view in ("v", "sums", "kept")] == [True] * 3
    lwh.sql("REFRESH MATERIALIZED VIEW v FULL")
    assert [lwh.check(view).ok for view in ("v", "sums", "kept")] == [True] * 3


def test_deferred_views_and_transactions_keep_differences(lwh: Warehouse) -> None:
    _recomputed_view(lwh)
    lwh.sql("ALTER MATERIALIZED VIEW v SET TBLPROPERTIES ('maintenance'='deferred')")
    lwh.sql("UPDATE t SET g = 2 WHERE id < 10")
    lwh.sql("REFRESH MATERIALIZED VIEW v")
    job = [j for j in lwh.history("v") if j.strategy == "full"][-1]
    assert (job.replaced, job.view_rows) == ("", 7)
    assert lwh.check("v", invariant=True).ok
    lwh.sql(
        "CREATE MATERIALIZED VIEW e TBLPROPERTIES ('maintenance'='eager') AS SELECT g, count(*) n FROM t GROUP BY g"
    )
    with lwh.transaction() as tx:
        tx.sql("UPDATE t SET g = g + 1")
        inside = Counter(tuple(row) for row in tx.sql("SELECT * FROM e").collect())
    assert inside == Counter(tuple(row) for row in lwh.sql("SELECT g, count(*) FROM t GROUP BY g").collect())
    assert lwh.check("e").ok


def test_a_result_in_which_no_rows_can_cancel_is_not_condensed(lwh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """LAZY §4.2, Figure 3(c). The view has equal rows, which are not the same row."""
    condensed: list[Schema] = []

    def counted(signed: Any, schema: Schema) -> Any:
        condensed.append(schema)
        return cancelled(signed, schema)

    monkeypatch.setattr(engine, "cancelled", counted)
    lwh.sql("CREATE TABLE t (id BIGINT, g INT, PRIMARY KEY (id))")
    lwh.sql("CREATE TABLE u (g INT, name STRING)")
    lwh.sql("INSERT INTO t SELECT id, id % 3 FROM range(20)")
    lwh.sql("INSERT INTO u VALUES (0, 'zero'), (1, 'one'), (1, 'one')")
    lwh.sql(
        "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS "
        "SELECT t.g, name FROM t JOIN u ON t.g = u.g"
    )
    with lwh.transaction() as tx:
        tx.sql("INSERT INTO t SELECT id, id % 3 FROM range(20, 50)")
        tx.sql("INSERT INTO u VALUES (1, 'one'), (2, 'two')")
    why = "no full condense of Δv: all changes add rows, so that no two rows of the result cancel"
    assert why in str(lwh.explain("v"))
    (job,) = lwh.maintain()
    assert (job.strategy, condensed) == ("incremental", [])
    assert job.view_rows == (17 + 17 * 3 + 16) - (7 + 7 * 2)
    assert lwh.check("v").ok
    lwh.sql("UPDATE t SET g = 1 WHERE id < 9")
    assert why not in str(lwh.explain("v"))
    (job,) = lwh.maintain()
    assert condensed
    assert lwh.check("v").ok


def test_a_large_change_by_one_statement_is_condensed_only_as_far_as_it_has_to_be(
    lwh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: refresh equals recompute, with the condense steps that EXPLAIN prints and no others."""
    ran: list[str] = []

    def noted(name: str, step: Callable[..., Any], *args: Any) -> Any:
        ran.append(name)
        return step(*args)

    for name in ("_by_key", "cancelled"):
        monkeypatch.setattr(signed, name, partial(noted, name, getattr(signed, name)))
    lwh.sql("CREATE TABLE t (id BIGINT, g INT, x INT, PRIMARY KEY (id))")
    lwh.sql("INSERT INTO t SELECT id, id % 3, id FROM range(20)")
    views = {"rows": "SELECT id, g FROM t WHERE g < 2", "counts": "SELECT g, count(*) n, max(id) m FROM t GROUP BY g"}
    for name, text in views.items():
        lwh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh'='incremental') AS {text}")
    one = "one statement wrote it, so that no key has a version in between"
    equal, by_key = "by whole rows of the columns used, below all joins", "partial, Δt by (id), then by whole rows"
    left_out = {"rows": f"no partial condense of Δt: {one}, and the full", "counts": f"partial, Δt {equal} ({one})"}
    deleted = "no partial condense of Δt: one statement wrote it, which only deletes rows"
    steps: list[tuple[list[str], dict[str, tuple[str, list[str]]]]] = [
        # x alone changes for some rows, which cancel; keys move to where other keys were
        (
            ["UPDATE t SET id = id + 1, g = if(id % 2 = 0, g + 1, g), x = -x WHERE id > 3"],
            {"rows": (left_out["rows"], []), "counts": (left_out["counts"], ["cancelled"])},
        ),
        (["DELETE FROM t WHERE id % 5 = 0"], dict.fromkeys(views, (deleted, []))),
        (
            ["UPDATE t SET g = 1 WHERE id < 9", "UPDATE t SET g = 2 WHERE id < 7"],
            dict.fromkeys(views, (by_key, ["_by_key", "cancelled"])),
        ),
    ]
    for statements, expected in steps:
        with lwh.transaction() as tx:
            for statement in statements:
                tx.sql(statement)
        for name, (line, condensed) in expected.items():
            assert line in str(lwh.explain(name))
            ran.clear()
            (job,) = lwh.maintain([name])
            assert (job.strategy, ran) == ("incremental", condensed)
            assert lwh.check(name).ok


@pytest.mark.parametrize("pays", [True, False])
def test_equal_rows_cancel_below_the_join_or_above_it(
    lwh: Warehouse, monkeypatch: pytest.MonkeyPatch, pays: bool
) -> None:
    """Law: refresh equals recompute, whichever is expected to pay; below the join it does for both (Figure 3(c))."""
    monkeypatch.setattr(Expected, "pays", property(lambda _: pays))
    ran: list[str] = []

    def noted(where: str, step: Callable[..., Any], *args: Any) -> Any:
        ran.append(where)
        return step(*args)

    for where, module, name in (
        ("key", signed, "_by_key"),
        ("below", signed, "cancelled"),
        ("above", engine, "cancelled"),
    ):
        monkeypatch.setattr(module, name, partial(noted, where, getattr(module, name)))
    lwh.sql("CREATE TABLE t (id BIGINT, g INT, x INT, y INT, PRIMARY KEY (id))")
    lwh.sql("CREATE TABLE d (g INT, name STRING, PRIMARY KEY (g))")
    lwh.sql("INSERT INTO t SELECT id, id % 3, id, id FROM range(20)")
    lwh.sql("INSERT INTO d VALUES (0, 'a'), (1, 'b'), (2, 'b'), (3, NULL)")
    text = "SELECT t.id, t.x, d.name FROM t JOIN d ON t.g = d.g"
    lwh.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS {text}")
    steps: list[tuple[list[str], int, list[str]]] = [  # statements, rows of the view's change, where
        # Of y alone the view sees nothing; of g only another name.
        (["UPDATE t SET y = -1, x = if(id < 5, -x, x)"], 8, []),
        (["UPDATE t SET x = 7 WHERE id < 9", "UPDATE t SET x = 8, g = 3 WHERE id < 4"], 16, ["key"]),
    ]
    for statements, rows, before in steps:
        with lwh.transaction() as tx:
            for statement in statements:
                tx.sql(statement)
        explained = str(lwh.explain("v"))
        assert ("no full condense of Δv: one source has changed" in explained) is pays
        ran.clear()
        (job,) = lwh.maintain(["v"])
        assert (job.strategy, job.view_rows, ran) == ("incremental", rows, [*before, "below" if pays else "above"])
        assert ("t" in job.condense) is pays, "what cancelled below the join is known to the next job"
        assert lwh.check("v").ok


# -- deltas ----------------------------------------------------------------------------------------


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(keyed=st.booleans(), data=st.data())
def test_the_delta_in_spark_is_the_delta_on_the_driver(spark: SparkSession, keyed: bool, data: st.DataObject) -> None:
    """Law: over any segments, in files or inline, both ways give the same signed bag, each row with a weight of ±1."""
    with (
        tempfile.TemporaryDirectory() as place,
        freshview.connect(Path(place) / "w", spark=spark) as wh,
        pytest.MonkeyPatch.context() as patch,
    ):
        model = play(wh, keyed, data, patch)
        rooms = internals(wh)
        table, csns = rooms.relation("t"), sorted(model.at)
        c0, c1 = sorted(data.draw(st.lists(st.sampled_from(csns), min_size=2, max_size=2), label="csns"))
        names = tuple(data.draw(st.lists(st.sampled_from(table.schema.names), min_size=1, unique=True)))
        span = Span.between(rooms.catalog, rooms.storage, c0, c1)
        found = span.segments(table)
        if not found:
            return
        grows = all(s.action == INSERT for s in found)
        states = (span.before(table), span.after(table))
        step = condensed_in_spark(table, found, grows=grows, is_linear=False)
        frame = wh.engine().changes(table, states, found, names, condense=step, grows=grows)
        here, there = changes(span, table, names).to_pylist(), [row.asDict() for row in frame.collect()]
        assert frame.columns == [*names, WEIGHT]
        assert Counter(tuple(map(repr, r.values())) for r in there) == Counter(
            tuple(map(repr, r.values())) for r in here
        )


def _not_here(*_: object) -> None:
    raise AssertionError("a large change is not computed on the driver")


def _net_of_nothing(signed: pa.Table, schema: Schema) -> pa.Table:
    return net(signed, schema) if not signed.num_rows else _not_here()


_DEFINITIONS = {
    "rows": "SELECT t.id, t.c, d.name, t.x FROM t JOIN d ON t.g = d.g WHERE t.id % 5 <> 0",
    "sums": "SELECT g, count(*) n, sum(id) s, max(id) m FROM t GROUP BY g",
    "groups": "SELECT g, sum(x) s FROM t GROUP BY g",
    "joined": "SELECT d.name, count(t.id) n FROM d LEFT JOIN t ON t.g = d.g GROUP BY d.name",
}


def test_large_changes_are_maintained_by_rules_in_spark(lwh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: refresh equals recompute, for inserts, updates, deletes and blind rows that never pass the driver."""
    lwh.sql("CREATE TABLE t (id BIGINT, g INT, x DOUBLE, c CHAR(3), PRIMARY KEY (id))")
    lwh.sql("CREATE TABLE d (g INT, name STRING)")
    lwh.sql("INSERT INTO t SELECT id, CAST(id % 4 AS INT), id / 7, CAST(id % 3 AS STRING) FROM range(40)")
    lwh.sql("INSERT INTO d VALUES (0, 'a'), (1, 'b'), (1, 'b'), (2, NULL)")
    definitions = {**_DEFINITIONS, "top": "SELECT n, count(*) c FROM sums GROUP BY n"}
    for name, definition in definitions.items():
        lwh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh'='incremental') AS {definition}")
    steps = [
        ["INSERT INTO t SELECT id, CAST(id % 4 AS INT), NULL, 'q' FROM range(100, 120)"],
        ["UPDATE t SET g = g + 1, x = -0.0 WHERE id % 2 = 0", "DELETE FROM d WHERE name = 'b' AND g = 1"],
        ["INSERT INTO d VALUES (1, 'b'), (3, 'c')", "DELETE FROM t WHERE id > 110 OR g = 4"],
        ["UPDATE t SET id = id + 1000 WHERE g = 1"],
    ]
    if not IS_SOAK:
        steps = [steps[0] + steps[1], steps[2] + steps[3]]
    for number, statements in enumerate(steps):
        with lwh.transaction() as tx:
            for statement in statements:
                tx.sql(statement)
            tx.upsert("t", [{"id": 7, "g": 2, "x": 1.5, "c": "z"}, {"id": 555, "g": 0, "x": 0.0, "c": None}])
            tx.delete("t", [3, 4])
        with monkeypatch.context() as patch:
            patch.setattr(job_input, "images", _not_here)
            patch.setattr(execute, "net", _net_of_nothing)
            jobs = lwh.maintain()
        assert {j.strategy for j in jobs} == {"incremental"}
        if IS_SOAK or number % 2:  # rows that are wrong after the others stay so
            assert {name: lwh.check(name).ok for name in definitions} == dict.fromkeys(definitions, True)


def test_a_large_change_with_a_column_that_the_view_does_not_know(lwh: Warehouse) -> None:
    lwh.sql("CREATE TABLE t (id BIGINT, g INT, PRIMARY KEY (id))")
    counts = "SELECT g, count(*) n FROM t GROUP BY g"
    lwh.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS {counts}")
    assert lwh.sql("SELECT * FROM v").collect() == []  # the definition is known from now on
    lwh.sql("ALTER TABLE t ADD COLUMN z INT")
    lwh.sql("INSERT INTO t SELECT id, CAST(id % 4 AS INT), 1 FROM range(20)")
    lwh.sql("UPDATE t SET z = 2, g = 9 WHERE id < 5")
    assert {j.strategy for j in lwh.maintain()} == {"incremental"}
    assert lwh.check("v").ok


def test_a_commit_that_was_seen_in_part_comes_before_later_ones(lwh: Warehouse) -> None:
    """Law: rows apply in the order of statements and commits, also where a view has seen a part of the first commit."""
    lwh.sql("CREATE TABLE t (id BIGINT, g INT, PRIMARY KEY (id))")
    lwh.sql("INSERT INTO t SELECT id, CAST(id % 4 AS INT) FROM range(20)")
    counts = "SELECT g, count(*) n FROM t GROUP BY g"
    lwh.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS {counts}")
    with lwh.transaction() as tx:
        tx.upsert("t", [{"id": 1, "g": 7}])
        tx.sql("SELECT * FROM v").collect()
        tx.upsert("t", [{"id": 1, "g": 8}, {"id": 30, "g": 8}])
    assert internals(lwh).views.catalog.position(internals(lwh).relation("v")).stmtsn > 0
    with lwh.transaction() as tx:
        tx.upsert("t", [{"id": 1, "g": 9}])
        tx.delete("t", [30])
    (job,) = lwh.maintain(["v"])
    assert job.strategy == "incremental"
    assert lwh.check("v").ok


@pytest.mark.parametrize("feed", [True, False], ids=["with a feed", "without"])
def test_large_changes_by_other_writers_stay_in_spark(lwh: Warehouse, tmp_path: Path, feed: bool) -> None:
    """Law: refresh equals recompute, for appends, updates and deletes of a table with partitions, one of them NULL."""
    location = str(tmp_path / "theirs")

    def rows(*ids: int) -> pa.Table:
        parts = pa.array([["a", None, "é b"][i % 3] for i in ids], pa.string())
        return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array([i / 8 for i in ids]), "p": parts})

    wanted = {"delta.enableChangeDataFeed": "true"} if feed else None
    write_deltalake(location, rows(*range(12)), partition_by=["p"], configuration=wanted)
    lwh.sql(f"CREATE TABLE e USING DELTA LOCATION '{location}'")
    definition = "SELECT p, count(*) n, max(id) m, min(x) least FROM e GROUP BY p"
    lwh.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS {definition}")
    steps: list[Callable[[], object]] = [
        lambda: write_deltalake(location, rows(20, 21, 22, 22), mode="append"),
        lambda: DeltaTable(location).update({"x": "-1.0"}, predicate="id > 20"),
        lambda: DeltaTable(location).delete("id = 11 OR id = 21"),
        lambda: DeltaTable(location).optimize.compact(),
        lambda: (write_deltalake(location, rows(30), mode="append"), DeltaTable(location).delete("id < 4")),
    ]
    for number, step in enumerate(steps):
        step()
        assert {job.strategy for job in lwh.maintain()} <= {"incremental"}
        if IS_SOAK or number in (1, 4):  # rows that are wrong after the others stay so
            assert lwh.check("v").ok
    assert all(job.strategy == "incremental" for job in lwh.history("v"))
    assert sum(job.delta_rows for job in lwh.history("v")) > 12


def test_a_large_change_that_gives_a_key_two_rows_fails(lwh: Warehouse) -> None:
    """A key that does not hold would be a fault of this program: nothing is stored by it."""
    lwh.sql("CREATE TABLE t (id BIGINT, g INT)")
    lwh.sql("INSERT INTO t SELECT id, CAST(id AS INT) FROM range(4)")
    lwh.sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS SELECT id, g FROM t")
    internals(lwh).catalog.alter("v", lambda schema: Schema(schema.columns, ("g",)))
    lwh.sql("INSERT INTO t VALUES (8, 9), (7, 9)")
    before = internals(lwh).frontier("v")
    job = internals(lwh).views.jobs
    with pytest.raises(ViewUnusable, match="two of its rows have the key \\(g=9\\)"):
        job.bring(internals(lwh).relation("v"), internals(lwh).newest_csn())
    assert internals(lwh).frontier("v") == before
