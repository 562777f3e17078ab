"""Background jobs on Spark: of low priority, cancelled when a statement needs Spark, and done all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.internals import internals
from tests.spark.sessions import on_a_quiet_machine

import freshview
from freshview import Warehouse
from freshview.catalog.frontiers import Job
from freshview.errors import Cancelled
from freshview.events import Event, Events
from freshview.interruption import Interruption
from freshview.spark.background import POOL, POOLS
from freshview.spark.engine import SparkEngine
from freshview.storage.store import Storage

# -- on Spark itself -------------------------------------------------------------------------------

ACTIONS: dict[str, Callable[[SparkEngine, DataFrame], object]] = {
    "collect": lambda e, f: e.collect(f, [pa.field("s", pa.int64())], "query"),
    "arrow": lambda e, f: e.arrow(f, "query"),
    "computed": lambda e, f: e.computed(f, "query"),
    "write": lambda e, f: e.write(f, 1, "bulk", "query"),
}


def _endless(engine: SparkEngine) -> DataFrame:
    return engine.session.range(10**15).selectExpr("sum(id % 7) AS s")


def _endless_broadcast(engine: SparkEngine) -> DataFrame:
    """What is broadcast is what takes for ever."""
    return engine.session.range(10).crossJoin(_endless(engine).hint("broadcast")).selectExpr("s")


def _seconds_long(engine: SparkEngine) -> DataFrame:
    return engine.session.range(2 * 10**6).selectExpr("max(sha2(CAST(id AS STRING), 256)) AS s")


class Doing(threading.Thread):
    """A thread that does something and tells how it ended."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._action = action
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._action()
        except Exception as error:
            self.result = error

    def outcome(self) -> object:
        self.join(120)
        assert not self.is_alive(), "it goes on and on"
        return self.result


def _until(condition: Callable[[], object], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)


def _is_running(spark: SparkSession) -> bool:
    return bool(spark.sparkContext.statusTracker().getActiveJobsIds())


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> Iterator[SparkEngine]:
    _until(lambda: not _is_running(spark))
    engine = SparkEngine(spark, Storage(tmp_path, Events()))
    yield engine
    engine.close()


@pytest.mark.parametrize("frame", [_endless, _endless_broadcast])
@pytest.mark.parametrize("small", [True])
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_a_job_in_another_session_is_cancelled_and_says_so(
    engine: SparkEngine,
    action: Callable[[SparkEngine, DataFrame], object],
    small: bool,
    frame: Callable[[SparkEngine], DataFrame],
) -> None:
    """Law: the tag belongs to the thread, whichever session it uses."""
    interruption = Interruption()
    sibling = engine.sibling({}, small=small)

    def job() -> object:
        with interruption.here(), engine.background(interruption):
            return action(sibling, frame(sibling))

    doing = Doing(job)
    _until(lambda: _is_running(engine.session))
    interruption.request()
    assert isinstance(doing.outcome(), Cancelled)
    _until(lambda: not _is_running(engine.session))
    sibling.close()


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("frame", [_endless, _endless_broadcast])
def test_what_somebody_else_cancels_is_cancelled_too(
    engine: SparkEngine,
    action: Callable[[SparkEngine, DataFrame], object],
    frame: Callable[[SparkEngine], DataFrame],
) -> None:
    """Law: Spark's own words for it are understood, so that it counts as a failure that passes."""
    doing = Doing(lambda: action(engine, frame(engine)))
    _until(lambda: _is_running(engine.session))
    engine.session.sparkContext.cancelAllJobs()
    assert type(doing.outcome()) is Cancelled


@pytest.mark.parametrize("delay", [0, 0.03, 0.2])
def test_whenever_it_is_asked_to_stop_it_stops(engine: SparkEngine, delay: float) -> None:
    """Law: also before its first query, between two of them, and while one is planned."""
    interruption = Interruption()

    def job() -> object:
        with interruption.here(), engine.background(interruption):
            for n in range(3):
                engine.arrow(engine.session.range(10 + n), "query")
            return engine.arrow(_endless(engine), "query")

    doing = Doing(job)
    time.sleep(delay)
    interruption.request()
    assert isinstance(doing.outcome(), Cancelled)


def test_others_are_not_cancelled_and_the_thread_is_as_before(engine: SparkEngine) -> None:
    interruption = Interruption()
    context = engine.session.sparkContext
    seen: list[object] = []

    def job() -> None:
        for stop in (False, True):
            with engine.background(interruption):
                seen.append((context.getLocalProperty("spark.scheduler.pool"), len(context.getJobTags())))
                if stop:
                    interruption.request()
            seen.append((context.getLocalProperty("spark.scheduler.pool"), len(context.getJobTags())))

    other = Doing(lambda: engine.arrow(_seconds_long(engine), "query").num_rows)
    _until(lambda: _is_running(engine.session))
    assert Doing(job).outcome() is None
    assert seen == [(POOL, 1), (None, 0)] * 2
    assert other.outcome() == 1


def test_a_job_that_a_statement_waits_for_leaves_the_pool_of_low_weight(engine: SparkEngine) -> None:
    """Law: from its next use of Spark on, it has the priority of the statement; its tag stays, for closing."""
    context = engine.session.sparkContext
    interruption = Interruption(gives_way=True)

    def job() -> list[object]:
        seen: list[object] = []
        with interruption.here(), engine.background(interruption):
            for _ in range(2):
                engine.arrow(engine.session.range(3), "query")
                seen.append((context.getLocalProperty("spark.scheduler.pool"), len(context.getJobTags())))
                interruption.raise_priority()
        return seen

    assert Doing(job).outcome() == [(POOL, 1), (None, 1)]


def test_our_own_session_gives_statements_the_cores(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get("spark.scheduler.allocation.file") == f"file://{POOLS}"
    pools = {p.get("name"): int(p.findtext("weight", "1")) for p in ElementTree.parse(POOLS).getroot()}
    assert pools["default"] >= 100 * pools[POOL]


# -- the manager's jobs ----------------------------------------------------------------------------

_MANY = 1500  # rows of which all triples take minutes, those of a few no time; a task ends between pairs of one row


@pytest.fixture
def managed(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    """A warehouse with its manager on, a view that is cheap only over few rows, and a table beside."""
    on_a_quiet_machine(monkeypatch, 0.1)
    _until(lambda: not _is_running(spark))
    with freshview.connect(tmp_path / "warehouse", spark=spark, background=True) as wh:
        wh.sql("CREATE TABLE s (id INT, PRIMARY KEY (id))")
        wh.sql("CREATE TABLE beside (id INT, PRIMARY KEY (id))")
        wh.sql("INSERT INTO beside VALUES (1), (2)")
        wh.sql(
            "CREATE MATERIALIZED VIEW triples TBLPROPERTIES ('refresh'='full') AS SELECT count(*) n"
            " FROM s a CROSS JOIN s b CROSS JOIN s c WHERE (a.id * 7 + b.id * 3 + c.id) % 11 = 5"
        )
        wh.sql("CREATE MATERIALIZED VIEW above AS SELECT max(n) m FROM triples")
        yield wh


def _write(wh: Warehouse, rows: int) -> None:
    with wh.transaction() as tx:
        tx.upsert("s", [{"id": i} for i in range(rows)])


def _shrink(wh: Warehouse) -> None:
    with wh.transaction() as tx:
        tx.delete("s", list(range(12, _MANY)))


def _jobs(wh: Warehouse, how: str) -> list[Job]:
    return [j for j in wh.history("triples") if j.strategy == how]


def _settled(wh: Warehouse) -> None:
    _until(lambda: not internals(wh).waiting())
    expected = sum((7 * a + 3 * b + c) % 11 == 5 for a in range(12) for b in range(12) for c in range(12))
    assert wh.sql("SELECT n FROM triples", freshness="any").collect() == [(expected,)]
    assert wh.sql("SELECT m FROM above", freshness="any").collect() == [(expected,)]
    assert wh.check("triples").ok
    assert _jobs(wh, "failed") == []


def test_a_query_has_the_job_cancelled_and_the_view_is_right_afterwards(
    managed: Warehouse, spark: SparkSession
) -> None:
    """Law: blind writes cancel nothing; a query does, and what it cancelled is taken up again and comes out right."""
    _write(managed, _MANY)
    _until(lambda: _is_running(spark))
    running = internals(managed).running_job()
    _shrink(managed)
    managed.sql("INSERT INTO beside VALUES (3)")
    assert running is not None
    assert (internals(managed).running_job(), running.interruption.requested) == (running, False)
    assert _jobs(managed, "cancelled") == []

    assert managed.sql("SELECT count(*) FROM beside").collect() == [(3,)]
    _until(lambda: internals(managed).running_job() is not running)
    assert running.interruption.requested
    assert [j.error is not None for j in _jobs(managed, "cancelled")] == [True]
    _settled(managed)
    assert len(_jobs(managed, "cancelled")) == 1


def _inside(wh: Warehouse, query: str) -> object:
    with wh.transaction() as tx:
        return tx.sql(query).collect()


STATEMENTS: dict[str, Callable[[Warehouse], object]] = {
    "sql update": lambda wh: wh.sql("UPDATE beside SET id = id + 10 WHERE id % 2 = 1"),
    "insert select": lambda wh: wh.sql("INSERT INTO beside SELECT id + 50 FROM beside"),
    "query in a transaction": lambda wh: _inside(wh, "SELECT * FROM beside"),
    "create view": lambda wh: wh.sql("CREATE MATERIALIZED VIEW w AS SELECT count(*) n FROM beside"),
    "check": lambda wh: wh.check("beside"),
    "stale read": lambda wh: wh.sql("SELECT * FROM triples", freshness="any").collect(),
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_every_kind_of_statement_that_needs_spark_has_the_job_cancelled(
    managed: Warehouse, spark: SparkSession, statement: Callable[[Warehouse], object]
) -> None:
    _write(managed, _MANY)
    _until(lambda: _is_running(spark))
    _shrink(managed)
    statement(managed)
    _until(lambda: _jobs(managed, "cancelled"))
    _settled(managed)


READERS: dict[str, Callable[[Warehouse], object]] = {
    "query": lambda wh: wh.sql("SELECT n FROM triples").collect(),
    "query above": lambda wh: wh.sql("SELECT m FROM above").collect(),
    "in a transaction": lambda wh: _inside(wh, "SELECT n FROM triples"),
    "insert select": lambda wh: wh.sql("INSERT INTO beside SELECT CAST(n AS INT) + 100 FROM triples"),
    "refresh": lambda wh: wh.sql("REFRESH MATERIALIZED VIEW triples"),
    "create view": lambda wh: wh.sql("CREATE MATERIALIZED VIEW w AS SELECT n FROM triples"),
    "maintain": lambda wh: wh.maintain(["above"]),
}


@pytest.mark.parametrize("statement", READERS.values(), ids=READERS)
def test_a_statement_lets_the_job_that_it_waits_for_finish(
    managed: Warehouse, statement: Callable[[Warehouse], object]
) -> None:
    """Law: and what comes beside does not cancel it either."""
    computed, go_on = threading.Event(), threading.Event()

    def hold(event: Event) -> None:
        if event.name == "job.computed" and event.details["view"] == "triples" and not computed.is_set():
            computed.set()
            assert go_on.wait(120)

    managed.events.listen(hold)
    _write(managed, 12)
    assert computed.wait(120)
    running = internals(managed).running_job()
    assert running is not None
    doing = Doing(lambda: statement(managed))
    try:
        _until(lambda: running.awaited)
        assert managed.sql("SELECT count(*) FROM beside").collect() == [(2,)]
        assert not running.interruption.requested
    finally:
        go_on.set()
    assert not isinstance(doing.outcome(), Exception)
    _settled(managed)
    assert [(j.strategy, j.error) for j in managed.history("triples")] == [("full", None)]


def test_closing_does_not_wait_for_a_long_job(
    tmp_path: Path, spark: SparkSession, managed: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the job is cancelled, and its tasks are still there when the warehouse is opened again."""
    _write(managed, _MANY)
    _until(lambda: _is_running(spark))
    closing = Doing(managed.close)
    assert closing.outcome() is None
    _until(lambda: not _is_running(spark))
    monkeypatch.setattr(managed, "close", lambda: None)  # the fixture's turn comes later
    with freshview.connect(tmp_path / "warehouse", spark=spark) as wh:
        assert [j.strategy for j in wh.history("triples")] == ["cancelled"]
        assert len(internals(wh).waiting()) == 2
        _shrink(wh)
        wh.maintain()
        _settled(wh)
