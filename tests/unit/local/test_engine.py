"""How the embedded engine runs a plan: on which database, and within which bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest
from sqlglot import exp

from freshview.algebra.nodes import Filter, Join, Node, Project, Scan, Table, column
from freshview.errors import Cancelled
from freshview.interruption import Interruption
from freshview.local import engine as engine_module
from freshview.local.engine import LocalEngine, LocalError
from freshview.local.plans import LocalPlan, translated
from freshview.relation.types import DataType
from freshview.sql.lowering import lower

BIGINT = DataType("bigint")
MANY = 200_000


def _plan(node: Node) -> LocalPlan:
    return translated(node, lambda scan: {stored: BIGINT for stored, _ in scan.fields})


def _numbers(count: int) -> pa.Table:
    return pa.table({"a": pa.array(range(count), pa.int64()), "b": pa.array([7] * count, pa.int64())})


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    made = LocalEngine()
    yield made
    made.close()


def _product() -> LocalPlan:
    """Every row with every row."""
    left, right = (Scan(Table("t"), (("a", f"a{i}"), ("b", f"b{i}"))) for i in (1, 2))
    return _plan(Join(left, right, "inner", None))


def test_a_result_that_is_too_large_is_left_to_spark(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MOST_RESULT", 10 << 20)
    assert engine.run(_product(), lambda _: _numbers(100)).num_rows == 10_000
    with pytest.raises(LocalError, match="10 MiB"):
        engine.run(_product(), lambda _: _numbers(2000))
    assert engine.run(_product(), lambda _: _numbers(3)).num_rows == 9


def test_a_plan_that_needs_more_memory_than_it_may_have_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows between operators are bounded, and not moved to the disk."""
    monkeypatch.setattr(engine_module, "MOST_MEMORY", 20 << 20)
    grouped = _plan(lower("SELECT a1, count(*) AS n FROM t GROUP BY a1", {"t": ("a1",)}).node)
    for small in (0, 10 * MANY):
        bounded = LocalEngine(small)
        with pytest.raises(LocalError, match=r"[Mm]emory"):
            bounded.run(grouped, lambda _: _numbers(10 * MANY).select(["a"]).rename_columns(["a1"]))
        bounded.close()


def test_small_plans_run_on_one_thread(engine: LocalEngine) -> None:
    plan = _plan(Project(Scan(Table("t"), (("a", "a1"),)), (("x", column("a1")),)))
    for rows in (10, engine_module.SMALL, engine_module.SMALL + 1):
        assert engine.run(plan, lambda _, rows=rows: _numbers(rows)).num_rows == rows  # type: ignore[misc]
    threads = {
        is_small: database.execute("SELECT current_setting('threads')").fetchall()[0][0]
        for is_small, database in engine._databases.items()
    }
    assert threads[True] == 1
    assert set(threads) == {True, False}


def test_columns_under_other_names_are_no_query_of_their_own(engine: LocalEngine) -> None:
    """Also in another order, twice, or some of them; what reads them finds each in its place."""
    scan = Scan(Table("t"), (("a", "a1"), ("b", "b1")))
    swapped = Project(scan, (("x", column("b1")), ("y", column("a1")), ("z", column("a1"))))
    is_two = exp.EQ(this=column("y"), expression=exp.Literal.number(2))
    plan = _plan(Project(Filter(swapped, is_two), tuple((name, column(name)) for name in ("z", "x", "y"))))
    assert plan.text.count(" AS (") == 1
    found = engine.run(plan, lambda _: _numbers(5))
    assert found.to_pylist() == [{"z": 2, "x": 7, "y": 2}]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT COUNT(DISTINCT CAST(3000000000 AS DECIMAL(5, 1))) AS a FROM t WHERE k < 0",
        "SELECT k + CAST(3000000000 AS INT) AS a FROM t WHERE k < 0",
        "SELECT k FROM t WHERE k < 0 AND (2147483647 + 1 = k)",
        "SELECT CASE WHEN k < 0 THEN CAST(300 AS TINYINT) ELSE 1 END AS a FROM t",
    ],
)
def test_a_constant_that_cannot_be_computed_is_sparks_even_if_no_row_needs_it(engine: LocalEngine, text: str) -> None:
    """Spark computes constants before it reads rows, and fails."""
    plan = _plan(lower(text, {"t": ("k",)}).node)
    for _ in range(2):
        with pytest.raises(LocalError):
            engine.run(plan, lambda _: _numbers(3).select(["a"]).rename_columns(["k"]))


def test_constants_that_can_be_computed_are_tried_once(engine: LocalEngine) -> None:
    plan = _plan(lower("SELECT k + CAST(7 AS BIGINT) AS a FROM t WHERE k < 1 + 1", {"t": ("k",)}).node)
    assert len(plan.constants) == 2
    for _ in range(2):
        found = engine.run(plan, lambda _: _numbers(3).select(["a"]).rename_columns(["k"]))
        assert sorted(found.column(0).to_pylist()) == [7, 8]
    assert list(engine._sound) == [plan.constants]


@pytest.mark.parametrize("small", [0, 10 * MANY])
def test_a_value_that_is_not_proven_is_left_to_spark_also_behind_many_rows(small: int) -> None:
    """An error behind the first rows of a result comes from the reader of the result, as another exception."""
    large = LocalEngine(small)
    with pytest.raises(LocalError, match="IntDiv"):
        large.run(
            _plan(lower(f"SELECT 7 DIV (k - {2 * MANY - 1}) AS q FROM t", {"t": ("k",)}).node),
            lambda _: _numbers(2 * MANY).select(["a"]).rename_columns(["k"]),
        )
    large.close()


@pytest.mark.parametrize("small", [0, 10 * MANY])
def test_a_plan_is_broken_off_when_its_work_is_asked_to_stop(small: int) -> None:
    """Law: within a second, as a cancellation: Spark does not compute the plan instead. The engine goes on."""
    large, work = LocalEngine(small), Interruption(gives_way=True)
    text = "SELECT count(*) AS n FROM (SELECT sum(l.a1 * r.a2) AS s FROM t l JOIN u r ON l.a1 <> r.a2 GROUP BY l.a1)"
    plan = _plan(lower(text, {"t": ("a1",), "u": ("a2",)}).node)
    rows = _numbers(MANY).select(["a"])

    def names(read: Node) -> pa.Table:
        assert isinstance(read, Scan)
        return rows.rename_columns([stored for stored, _ in read.fields])

    threading.Timer(0.5, work.request).start()
    begun = time.monotonic()
    with work.here(), pytest.raises(Cancelled):
        large.run(plan, names)
    assert time.monotonic() - begun < 5  # half a second before it was asked; the plan takes minutes
    with work.here(), pytest.raises(Cancelled):
        large.run(_product(), lambda _: _numbers(3))
    assert large.run(_product(), lambda _: _numbers(3)).num_rows == 9
    large.close()


_EXISTS = "SELECT x.a FROM t AS x WHERE EXISTS (SELECT 1 FROM t AS y WHERE x.a = y.a)"


@pytest.mark.parametrize("text", ["SELECT x.a FROM t AS x JOIN t AS y ON x.a = y.a", _EXISTS])
@pytest.mark.parametrize(
    ("kind", "width", "last"),
    [
        ("date", pa.int32(), 2**31 - 1),
        ("date", pa.int32(), 1 - 2**31),
        ("timestamp_ntz", pa.int64(), 2**63 - 1),
        ("timestamp_ntz", pa.int64(), 1 - 2**63),
    ],
)
def test_the_first_and_the_last_moment_are_joined_by_large_plans_too(
    kind: str, width: pa.DataType, last: int, text: str
) -> None:
    """DuckDB takes them for infinite ones."""
    type_ = DataType(kind)
    moments = pa.table({"a": pa.array([0, last], width).cast(type_.arrow)})
    plan = translated(lower(text, {"t": ("a",)}).node, lambda _: {"a": type_})
    for small in (engine_module.SMALL, 0):
        engine = LocalEngine(small)
        assert engine.run(plan, lambda _: moments).num_rows == 2
        engine.close()


# -- small plans that run again ------------------------------------------------------------------------------

_TWICE = "SELECT a, count(*) AS n FROM (SELECT a FROM t UNION ALL SELECT a FROM t WHERE a > 1) GROUP BY a"


def _given(values: Sequence[int | str], _: Node, type_: DataType = BIGINT) -> pa.Table:
    return pa.table({"a": pa.array(values, type_.arrow)})


def test_a_small_plan_is_planned_once_for_the_rows_of_all_its_runs(engine: LocalEngine) -> None:
    """Law: each run is over its own rows, as in an engine that has not run the plan; what a run has read is let go."""
    plan = _plan(lower(_TWICE, {"t": ("a",)}).node)
    kept = set()
    for values in ([1, 2, 2], [], [5], list(range(300)) * 20, [-(2**63), 2**63 - 1], [1, 2, 2]):
        fresh = LocalEngine(small=0)
        found, expected = (sorted(e.run(plan, partial(_given, values)).column(0).to_pylist()) for e in (engine, fresh))
        counts = engine.run(plan, partial(_given, values)).column(1).to_pylist()
        assert found == expected == sorted(set(values))
        assert sum(counts) == len(values) + sum(v > 1 for v in values)
        kept |= {id(one) for one in engine._small_plans.values()}
        (ready,) = engine._small_plans.values()
        assert ready.is_planned
        assert all(read.rows.num_rows == 0 for read in ready.inputs.values())
        fresh.close()
    assert len(kept) == 1


def test_a_small_plan_that_failed_is_planned_anew(engine: LocalEngine) -> None:
    plan = _plan(lower("SELECT 7 DIV (a - 3) AS q FROM t", {"t": ("a",)}).node)
    assert engine.run(plan, partial(_given, [10])).column(0).to_pylist() == [1]
    with pytest.raises(LocalError):
        engine.run(plan, partial(_given, [3]))
    assert not engine._small_plans
    assert engine.run(plan, partial(_given, [4])).column(0).to_pylist() == [7]


def test_threads_run_one_small_plan_at_once(engine: LocalEngine) -> None:
    plan = _plan(lower(_TWICE, {"t": ("a",)}).node)

    def run(n: int) -> list[int]:
        return sorted(engine.run(plan, partial(_given, [n, n + 1000])).column(0).to_pylist())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(200))) == [[n, n + 1000] for n in range(200)]


def test_rows_of_other_columns_are_planned_for_themselves(engine: LocalEngine) -> None:
    """One text may read columns of several types."""
    cases: list[tuple[DataType, list[int | str]]] = [(BIGINT, [1, 2]), (DataType("string"), ["a", "b"])]
    for type_, values in cases:
        plan = translated(lower("SELECT a FROM t", {"t": ("a",)}).node, partial(_types, type_))
        found = engine.run(plan, partial(_given, values, type_=type_)).column(0).to_pylist()
        assert sorted(found) == values
    assert len(engine._small_plans) == 2


def _types(type_: DataType, _: Scan) -> dict[str, DataType]:
    return {"a": type_}
