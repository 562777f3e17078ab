"""The warehouse: the façade that wires catalog, storage, transactions and Spark together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from freshview.catalog.engine import Database, sqlite_url
from freshview.catalog.records import Relation, RelationState
from freshview.catalog.reports import Reports
from freshview.catalog.views import Job
from freshview.catalog.writer import Catalog
from freshview.display import Explanation, Jobs, Shown, Table, Told
from freshview.errors import (
    AlreadyExists,
    FreshviewError,
    InvalidStatement,
    StorageUnavailable,
    WriteConflict,
)
from freshview.events import Events
from freshview.interruption import Interruption
from freshview.maintenance.advice import apply_advice, is_auto
from freshview.maintenance.background import DUE_BYTES, DUE_SEGMENTS, Loop, heartbeat_loop
from freshview.maintenance.checkpoint import Checkpointer, choose
from freshview.maintenance.invariants import Invariant
from freshview.maintenance.manager import (
    BACKGROUND_ROWS,
    BUSY_LOAD,
    POLICIES,
    Activity,
    Candidate,
    Manager,
    machine_load,
    with_lower,
)
from freshview.maintenance.notice import look
from freshview.maintenance.policies import is_deferred
from freshview.maintenance.relevance import Matching
from freshview.maintenance.vacuum import RETENTION, vacuum
from freshview.maintenance.views import Freshness, ViewKeeper
from freshview.pairing import pair
from freshview.relation.schema import Schema
from freshview.session import UserTransaction
from freshview.sql.binding import TableRef, bind
from freshview.sql.parser import parse
from freshview.sql.predicates import asked_of
from freshview.sql.statements import (
    AddColumns,
    AlterView,
    Checkpoint,
    CreateTable,
    CreateView,
    Delete,
    Describe,
    DropTable,
    DropView,
    ExplainRefresh,
    Insert,
    Merge,
    Query,
    RefreshView,
    RenameColumn,
    RenameTable,
    Show,
    Statement,
    Update,
    Vacuum,
)
from freshview.standing import Status, standing
from freshview.storage.external import describe, external_schema, open_external
from freshview.storage.files import storage_errors
from freshview.storage.store import Storage
from freshview.transactions.dml import Statements
from freshview.transactions.reading import ReadContext, to_micros
from freshview.transactions.transaction import Outcome, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from freshview.spark.engine import SparkEngine

_BACKGROUND_SECONDS = 2.0
_ADVICE_SECONDS = 60.0  # between two looks at the modes of views that were left to the advice
_RETRIES = 5  # of a statement that commits by itself and lost a race
_SHOWN_ROWS = 10  # of those that a report on a check prints


@dataclass(frozen=True, repr=False)
class CheckReport(Shown):
    """The answer of check(): whether all is as it should be, and what is not.

    It prints as a report, and a notebook shows the rows as tables.

    >>> report = freshview.CheckReport("totals", False, [{"region": "north", "total": 10}], [], missing_rows=1)
    >>> report.ok
    False
    >>> print(report)
    totals: NOT OK, 1 row missing, 0 too many
    missing, the first 1:
      region  total
      north      10
    """

    name: str
    ok: bool
    missing: list[dict[str, Any]]  # the first of them
    extra: list[dict[str, Any]]
    missing_rows: int = 0  # how many there are
    extra_rows: int = 0
    invariants: tuple[Invariant, ...] = ()  # of a view, where they were asked for

    def _told(self) -> Told:
        rows = f"{self.missing_rows} row{'' if self.missing_rows == 1 else 's'} missing, {self.extra_rows} too many"
        parts = (("missing", self.missing[:_SHOWN_ROWS]), ("too many", self.extra[:_SHOWN_ROWS]))
        tables = [Table.of(found, f"{title}, the first {len(found)}") for title, found in parts if found]
        return Told(f"{self.name}: {'ok' if self.ok else 'NOT OK'}, {rows}", tables, list(map(str, self.invariants)))


class Warehouse:
    """A folder of tables and materialized views, with snapshot-isolated transactions. `freshview.connect` opens one.

    A warehouse is a context manager: leaving the block closes it. It is safe to use from several threads; each
    transaction belongs to the thread that began it.

    >>> with freshview.connect(folder) as wh:
    ...     wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
    ...     [table.name for table in wh.status().tables]
    Outcome(rows=0, csn=1)
    ['orders']

    Attributes: `path`, the folder; `events`, which tells listeners what happens (see `Events`).
    """

    def __init__(
        self,
        path: str | Path,
        catalog: str | None = None,
        spark: SparkSession | None = None,
        background: bool = False,
        policy: str = "oldest",
        busy_load: float = BUSY_LOAD,
    ) -> None:
        if policy not in POLICIES:
            raise InvalidStatement(f"policy {policy!r}", "is not known", f"Use one of {', '.join(POLICIES)}.")
        self.path = Path(path).absolute()
        self.events = Events()
        with storage_errors(f"warehouse {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise StorageUnavailable(
                    f"warehouse {self.path}", "the folder is read-only", "Choose a writable folder."
                )
        database = Database(catalog if catalog is not None else sqlite_url(self.path / "catalog.db"))
        self._storage = Storage(self.path, self.events)
        pair(self.path, database)
        self._catalog = Catalog(database)
        self._session = spark
        self._busy_load = busy_load
        self._lost: dict[int, FreshviewError] = {}  # external tables that could not be looked at last time
        self._engine: SparkEngine | None = None
        self._engine_lock = threading.Lock()
        self._checkpointer = Checkpointer(self._catalog, self._storage, self.events, self.engine)
        self._keeper = ViewKeeper(self._catalog, self._storage, self.events, self.engine)
        self._heartbeat = heartbeat_loop(self._catalog.heartbeat, self.events)
        self._activity = Activity()
        self._advice_due = time.monotonic() + _ADVICE_SECONDS
        self._background: Loop | None = None
        self._managing: Loop | None = None
        self._manager: Manager | None = None
        if background:
            self._manager = Manager(
                self._keeper.candidates, self._maintain_one, self._is_busy, self.events,
                policy=POLICIES[policy], now=self._catalog.now,
            )  # fmt: skip
            self._background = Loop("freshview-background", _BACKGROUND_SECONDS, self._background_step, self.events)
            self._managing = Loop("freshview-manager", _BACKGROUND_SECONDS, self._manager.turn, self.events)

    # -- the public surface ------------------------------------------------------------------------

    def sql(self, text: str, *, freshness: Freshness = None, as_of: int | datetime | None = None) -> Any:
        """Run one statement.

        SELECT, SHOW, DESCRIBE and EXPLAIN give a Spark DataFrame; DDL and DML an Outcome.
        `freshness` is 'fresh', 'any', or how old what views show may be (a timedelta); left out, views are fresh, and
        deferred ones as of their last refresh. `as_of` (a CSN or a time) reads all tables and views as they were then.

        >>> wh = freshview.connect(folder)
        >>> wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, region STRING, amount INT)")
        Outcome(rows=0, csn=1)
        >>> wh.sql("INSERT INTO orders VALUES (1, 'north', 10), (2, 'south', 20)")
        Outcome(rows=2, csn=2)
        >>> view = wh.sql(
        ...     "CREATE MATERIALIZED VIEW totals AS SELECT region, sum(amount) AS total FROM orders GROUP BY region"
        ... )
        >>> wh.sql("UPDATE orders SET amount = 30 WHERE id = 1").rows
        1

        The update did not touch the view. What is stored of it can be read as it is; a query that does not ask for
        that gets the view up to date:

        >>> [tuple(row) for row in wh.sql("SELECT * FROM totals ORDER BY region", freshness="any").collect()]
        [('north', 10), ('south', 20)]
        >>> wh.sql("SELECT * FROM totals ORDER BY region").show()
        +------+-----+
        |region|total|
        +------+-----+
        | north|   30|
        | south|   20|
        +------+-----+
        <BLANKLINE>

        The past, by CSN, and no older than five minutes:

        >>> wh.sql("SELECT sum(amount) AS total FROM orders", as_of=2).collect()
        [Row(total=30)]
        >>> wh.sql("SELECT sum(total) AS total FROM totals", freshness=timedelta(minutes=5)).collect()
        [Row(total=50)]
        """
        if not (freshness in (None, "fresh", "any") or isinstance(freshness, timedelta)):
            raise InvalidStatement(f"freshness {freshness!r}", "is not known", "Use 'fresh', 'any' or a timedelta.")
        statement = parse(text)
        with self._activity.working():
            return self._run(statement, freshness, as_of)

    def _run(self, statement: Statement, freshness: Freshness, as_of: int | datetime | None) -> Any:
        match statement:
            case Query() | Show() | Describe() | ExplainRefresh():
                return self._read(statement, as_of=as_of, freshness=freshness)
            case _ if as_of is not None:
                raise InvalidStatement("as_of", "only queries read the past", "Leave as_of out.")
            case Insert() | Update() | Delete() | Merge():
                return self._autocommit(statement)
            case RefreshView():
                return self._refresh(self._view(statement.name), statement.how)
            case Checkpoint():
                self._make_way()
                report = self._checkpointer.run(self._catalog.relation(statement.name))
                return Outcome(report.rows, report.csn)
            case Vacuum():
                hours = statement.retain_hours
                return self.vacuum(RETENTION if hours is None else timedelta(hours=hours))
            case _:
                return self._define(statement)

    def refresh(self, view: str, *, full: bool = False) -> Outcome:
        """Bring a view up to date now, all of it anew if `full`; rows that changed, and the CSN it shows.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> view = wh.sql("CREATE MATERIALIZED VIEW large AS SELECT id, amount FROM orders WHERE amount > 10")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20)")
        >>> outcome = wh.refresh("large")
        >>> outcome.rows, outcome.csn == insert.csn
        (1, True)
        """
        with self._activity.working():
            return self._refresh(self._view(view), "full" if full else "")

    def propagate(self, view: str) -> Outcome:
        """Compute what the log changes of a deferred view, and keep it aside: readers notice nothing.

        See `partial_refresh` for an example.
        """
        with self._activity.working():
            return self._refresh(self._view(view), "propagate")

    def partial_refresh(self, view: str) -> Outcome:
        """Have a deferred view show what was propagated: at once, however much it is.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> view = wh.sql(
        ...     "CREATE MATERIALIZED VIEW large TBLPROPERTIES ('maintenance'='deferred') "
        ...     "AS SELECT id, amount FROM orders WHERE amount > 10"
        ... )
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20)")
        >>> wh.propagate("large").rows
        1
        >>> wh.sql("SELECT * FROM large").collect()
        []
        >>> wh.partial_refresh("large").rows
        1
        >>> wh.sql("SELECT * FROM large").collect()
        [Row(id=2, amount=20)]
        """
        with self._activity.working():
            return self._refresh(self._view(view), "partial")

    def _refresh(self, view: Relation, how: str) -> Outcome:
        deferred = self._keeper.deferred
        if how == "partial":
            return Outcome(*deferred.partial_refresh(view))
        self._notice()
        self._make_way([view.name])
        if how == "propagate":
            jobs = deferred.propagate(view)
        elif how == "full":
            jobs = [self._keeper.refresh(view)]
            if is_deferred(view):
                deferred.refresh(view)
        elif is_deferred(view):
            return Outcome(*deferred.refresh(view))
        else:
            jobs = self._keeper.bring(view, self._catalog.snapshot())
        return Outcome(sum(j.view_rows for j in jobs), self._keeper.frontier(view))

    def transaction(self) -> UserTransaction:
        """Begin a transaction on the newest snapshot; use it in a `with` block.

        Leaving the block commits; an exception rolls back, and goes on.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE accounts (id INT PRIMARY KEY, money INT)")
        >>> with wh.transaction() as tx:
        ...     tx.insert("accounts", [{"id": 1, "money": 100}, {"id": 2, "money": 0}])
        ...     tx.sql("UPDATE accounts SET money = 70 WHERE id = 1")
        ...     tx.upsert("accounts", [{"id": 2, "money": 30}])
        Outcome(rows=2, csn=None)
        Outcome(rows=1, csn=None)
        Outcome(rows=1, csn=None)
        >>> wh.sql("SELECT * FROM accounts ORDER BY id").collect()
        [Row(id=1, money=70), Row(id=2, money=30)]
        >>> tx.csn == wh.status().csn
        True
        """
        self._notice()
        company = partial(self._keeper.inside, make_way=self._make_way)
        core = Transaction(self._catalog, self._storage, self.events, company)
        self._activity.began(lambda: core.is_open)
        reading = ReadContext(self._catalog, core.snapshot, core)
        lost = dict(self._lost)
        statements = Statements(
            core, reading, self._storage, self._foreground_engine,
            lambda ref: self._frame(ref, reading, core, None, lost), self._make_way,
        )  # fmt: skip
        return UserTransaction(
            core, statements, lambda s, tx: self._read(s, transaction=tx), self._after_commit, self._activity.working
        )

    def maintain(self, views: list[str] | None = None) -> list[Job]:
        """Bring these views (default: all) up to date now; the jobs that ran, which show themselves as a table.

        Deferred views are refreshed if they are named; else they are propagated, and show what they showed.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> view = wh.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS total FROM orders")
        >>> first, second = [wh.sql(f"INSERT INTO orders VALUES ({i}, 10)") for i in (1, 2)]
        >>> wh.status().views[0].pending_tasks
        2
        >>> (job,) = wh.maintain()
        >>> job.view, job.tasks, job.to_csn == second.csn
        ('total', 2, True)
        >>> wh.maintain()
        no maintenance jobs
        """
        with self._activity.working():
            self._notice()
            csn = self._catalog.snapshot()
            relations = self._catalog.relations()
            found = [r for r in relations if r.kind == "view"] if views is None else map(self._view, views)
            lower_first = sorted(found, key=lambda r: r.id)  # what a view reads is older than the view
            self._make_way(view.name for view in lower_first)
            named = views is not None
            return Jobs(job for view in lower_first for job in self._keeper.maintain(view, csn, named=named))

    def history(self, view: str | None = None) -> list[Job]:
        """Past maintenance jobs, of one view or of all, oldest first; they show themselves as a table.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> view = wh.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS total FROM orders")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20)")
        >>> jobs = wh.maintain()
        >>> [(job.view, job.tasks, job.delta_rows, job.error) for job in wh.history("total")]
        [('total', 1, 2, None)]
        """
        return Jobs(self._keeper.history(self._view(view) if view is not None else None))

    def explain(self, view: str) -> Explanation:
        """How a view is stored and maintained, and the query that a refresh runs: a text, which shows itself as it is.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> view = wh.sql("CREATE MATERIALIZED VIEW large AS SELECT id, amount FROM orders WHERE amount > 10")
        >>> wh.explain("large")
        view large
          frontier: CSN 1
          ...
          maintained: incrementally
          operators:
            project orders.id, orders.amount  <- linear: row by row, applied to the change
              filter orders.amount > 10  <- linear: row by row, applied to the change
                scan orders  <- source: its net change since the frontier
          ...
        """
        return Explanation(self._keeper.explain(self._view(view)))

    def vacuum(self, retention: timedelta = RETENTION) -> Outcome:
        """Remove versions older than the retention and files nobody needs.

        The outcome tells how many files were removed (`rows`) and the oldest CSN that can still be read (`csn`). What
        an open transaction, a view or a running query needs is kept, whatever the retention.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10)")
        >>> wh.vacuum()
        Outcome(rows=0, csn=0)
        >>> wh.vacuum(retention=timedelta(0)).csn == insert.csn
        True
        >>> wh.sql("SELECT * FROM orders", as_of=1)
        Traceback (most recent call last):
            ...
        freshview.errors.SnapshotExpired: ...
        """
        report = vacuum(self._catalog, self._storage, self.events, retention)
        return Outcome(report.files, report.horizon)

    def status(self) -> Status:
        """Where the warehouse stands: tables, views, and who keeps old versions; starts no Spark.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20)")
        >>> status = wh.status()
        >>> status.csn, [(table.name, table.pending_rows) for table in status.tables]
        (2, [('orders', 2)])
        """
        return standing(self.path, self._catalog)

    def check(self, name: str, *, invariant: bool = False) -> CheckReport:
        """Is what is stored right?

        A view is compared, as a bag, with its definition at its frontier: `missing` and `extra` rows, a hundred of each
        at most, and how many there are. Of a table the declared key and NOT NULL columns are verified: `extra` shows
        offending rows. With `invariant`, what a view's mode promises is checked too: `invariants` tells of each.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> view = wh.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS total FROM orders")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20)")
        >>> report = wh.check("total")
        >>> report.ok, report.missing, report.extra
        (True, [], [])
        >>> report
        total: ok, 0 rows missing, 0 too many
        """
        with self._activity.working():
            self._make_way()
            return self._check(name, invariant)

    def _check(self, name: str, invariant: bool) -> CheckReport:
        self._notice()
        relation = self._catalog.relation(name)
        if relation.kind == "view":
            found = self._keeper.difference(relation)
            missing, surplus = list(found.missing), list(found.extra)
            promised = tuple(self._keeper.invariants(relation)) if invariant else ()
            ok = not found.missing_rows and not found.extra_rows and all(i.ok for i in promised)
            return CheckReport(relation.name, ok, missing, surplus, found.missing_rows, found.extra_rows, promised)
        if invariant:
            raise InvalidStatement(f"{relation.kind} {relation.name}", "only views have invariants", "Name a view.")
        frame = self.engine().scan(self._catalog.state(relation, self._catalog.snapshot()))
        extra = self.engine().offending(frame, relation.schema, f"table {relation.name}")
        return CheckReport(relation.name, not extra, [], extra, 0, len(extra))

    def close(self) -> None:
        """Give up pins and leases, stop threads: a job in progress is cancelled, and stays pending.

        A Spark session that was found or made stays, and so do the results that were read.

        >>> wh = freshview.connect(folder)
        >>> wh.close()
        """
        if self._manager is not None:
            self._manager.stop()
        for loop in (self._managing, self._background, self._heartbeat):
            if loop is not None:
                loop.stop()
        self._note_uses()
        self._keeper.close()
        if self._engine is not None:
            self._engine.close()
        self._catalog.leave()
        self._catalog.database.close()

    def __enter__(self) -> Warehouse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def engine(self) -> SparkEngine:
        """Spark, started at the first call."""
        with self._engine_lock:
            if self._engine is None:
                from freshview.spark.engine import SparkEngine
                from freshview.spark.session import obtain_session

                self._engine = SparkEngine(self._session or obtain_session(), self._storage)
            return self._engine

    # -- reading -----------------------------------------------------------------------------------

    def _read(
        self,
        statement: Statement,
        *,
        transaction: Transaction | None = None,
        as_of: int | datetime | None = None,
        freshness: Freshness = None,
    ) -> DataFrame:
        if isinstance(statement, Query):
            return self._query(statement.text, transaction, as_of, freshness)
        if isinstance(statement, ExplainRefresh):
            lines = [(line,) for line in self.explain(statement.name).splitlines()]
            return self.engine().session.createDataFrame(lines, "plan STRING")
        from freshview import listing

        assert isinstance(statement, Show | Describe)
        answer = (
            listing.show(self._catalog, statement)
            if isinstance(statement, Show)
            else listing.describe(self._catalog, statement)
        )
        schema = ", ".join(f"{c} STRING" for c in answer.columns)
        return self.engine().session.createDataFrame(answer.rows, schema)

    def _query(
        self,
        text: str,
        transaction: Transaction | None,
        as_of: int | datetime | None,
        freshness: Freshness = None,
    ) -> DataFrame:
        if transaction is not None:
            return self._bound(text, ReadContext(self._catalog, transaction.snapshot, transaction), transaction)
        self._notice()
        csn = self._catalog.csn_at(to_micros(as_of)) if isinstance(as_of, datetime) else as_of
        pin = self._catalog.begin("query", at=csn)
        try:
            past = as_of is not None  # what was then, and nothing else
            return self._bound(text, ReadContext(self._catalog, pin.csn), freshness="fresh" if past else freshness)
        finally:
            self._catalog.release(pin)

    def _bound(
        self,
        text: str,
        reading: ReadContext,
        transaction: Transaction | None = None,
        freshness: Freshness = None,
    ) -> DataFrame:
        def is_ours(name: str) -> bool:
            if reading.knows(name):
                return True
            if self._session is None and self._engine is None:
                reading.require(name)  # no session yet, so nobody can have made a temporary view
            return False

        bound = bind(text, is_ours)
        self._make_way((ref.name for ref in bound.tables.values()) if freshness != "any" else ())
        engine = self.engine()
        lost = dict(self._lost)
        frames = {
            placeholder: self._frame(ref, reading, transaction, freshness, lost, partial(asked_of, text, ref.name))
            for placeholder, ref in bound.tables.items()
        }
        return engine.query(bound.text, frames, f"query {text}")

    def _frame(
        self,
        ref: TableRef,
        reading: ReadContext,
        transaction: Transaction | None,
        freshness: Freshness,
        lost: Mapping[int, FreshviewError],
        matching: Matching | None = None,
    ) -> DataFrame:
        """What a table or view is to a query or statement; those that cannot be told of are an error."""
        engine = self.engine()
        state = reading.state(ref, engine.time_zone)
        is_view = state.relation.kind == "view"
        if lost and freshness != "any" and not (ref.version or ref.timestamp):
            for relation_id in self._keeper.bases(state.relation) if is_view else [state.relation.id]:
                if relation_id in lost:
                    raise lost[relation_id]
        if not is_view:
            return engine.scan(state)
        past = bool(ref.version or ref.timestamp)
        return self._view_frame(state, transaction, "fresh" if past else freshness, matching)

    def _view_frame(
        self,
        state: RelationState,
        transaction: Transaction | None,
        freshness: Freshness,
        matching: Matching | None,
    ) -> DataFrame:
        """A view as a query sees it; inside a transaction that wrote its tables, with those writes, unless it is
        deferred."""
        view = state.relation
        if transaction is not None and freshness is None:
            inside: DataFrame | None = self._keeper.read_inside(view, transaction)
            if inside is not None:
                return inside
        self._activity.used(view.id, time.time_ns() // 1000)
        stored: DataFrame = self._keeper.read(view, state.csn, freshness=freshness, matching=matching)
        return stored

    def _view(self, name: str) -> Relation:
        relation = self._catalog.relation(name)
        if relation.kind != "view":
            raise InvalidStatement(f"{relation.kind} {relation.name}", "is not a materialized view", "Name a view.")
        return relation

    def _notice(self) -> None:
        """What others wrote to external tables becomes commits, before a snapshot is chosen.

        A table that cannot be looked at is an error for those who read it, not for all.
        """
        external = self._catalog.externals()
        self._lost = look(self._catalog, self.events, external).failed if external else {}

    # -- writing -----------------------------------------------------------------------------------

    def _autocommit(self, statement: Insert | Update | Delete | Merge) -> Outcome:
        """One statement as a transaction; run again, on a newer snapshot, if it lost a race."""
        for attempt in range(_RETRIES):
            transaction = self.transaction()
            try:
                with transaction:
                    rows = transaction.run(statement).rows
                return Outcome(rows, transaction.csn)
            except WriteConflict:
                if attempt == _RETRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _after_commit(self, transaction: Transaction) -> None:
        """Files of a bulk load become part of main at once where that costs next to nothing."""
        for relation in transaction.loaded:
            try:
                if choose(self._catalog.state(relation, self._catalog.snapshot())) == "adopt":
                    self._checkpointer.run(relation)
            except FreshviewError as error:  # the commit stands; the next checkpoint tries again
                self.events.emit("checkpoint.failed", relation=relation.name, error=str(error))

    # -- definitions -------------------------------------------------------------------------------

    def _define(self, statement: Statement) -> Outcome:
        match statement:
            case CreateTable():
                return self._create(statement)
            case CreateView():
                self._make_way(_names_in(statement.query))
                try:
                    rows, csn = self._keeper.create(statement)
                    return Outcome(rows, csn)
                except AlreadyExists:
                    if statement.if_not_exists:
                        return Outcome(0, self._catalog.snapshot())
                    raise
            case AlterView():
                return Outcome(0, self._keeper.set_properties(self._view(statement.name), dict(statement.properties)))
            case DropTable() | DropView():
                return self._drop(statement)
            case RenameTable():
                return Outcome(0, self._catalog.rename(statement.name, statement.new_name))
            case AddColumns():
                self._require_own(statement.name)
                return Outcome(0, self._catalog.alter(statement.name, lambda s: s.with_columns(statement.columns)))
            case RenameColumn():
                self._keeper.require_unused(self._require_own(statement.name))
                return Outcome(
                    0, self._catalog.alter(statement.name, lambda s: s.with_renamed(statement.old, statement.new))
                )
        raise InvalidStatement(f"statement {statement}", "cannot run here", "See the SQL reference.")

    def _drop(self, statement: DropTable | DropView) -> Outcome:
        if statement.if_exists and self._catalog.find(statement.name) is None:
            return Outcome(0, self._catalog.snapshot())
        if isinstance(statement, DropView):
            return Outcome(0, self._keeper.drop(statement.name, cascade=statement.cascade))
        relation = self._catalog.relation(statement.name)
        if relation.kind == "view":
            raise InvalidStatement(f"view {relation.name}", "is not a table", "Use DROP MATERIALIZED VIEW.")
        self._keeper.require_unused(relation, cascade=statement.cascade)
        return Outcome(0, self._catalog.drop(statement.name))

    def _create(self, statement: CreateTable) -> Outcome:
        try:
            if statement.location is not None:
                return self._create_external(statement)
            if statement.query is not None:
                return self._create_from_query(statement)
            assert statement.schema is not None
            _, csn = self._catalog.create(
                statement.name, "table", statement.schema, properties=dict(statement.properties)
            )
            return Outcome(0, csn)
        except AlreadyExists:
            if statement.if_not_exists:
                return Outcome(0, self._catalog.snapshot())
            raise

    def _create_external(self, statement: CreateTable) -> Outcome:
        assert statement.location is not None
        location = statement.location if "://" in statement.location else str(Path(statement.location).absolute())
        table = open_external(location)
        schema = external_schema(table, statement.key)
        key = tuple(schema.column(k).name for k in statement.key)
        _, csn = self._catalog.create(
            statement.name,
            "external",
            Schema(schema.columns, key),
            location=location,
            properties=dict(statement.properties),
            main=describe(table),
        )
        return Outcome(0, csn)

    def _create_from_query(self, statement: CreateTable) -> Outcome:
        """CREATE TABLE … AS SELECT: the table appears with its rows, or not at all."""
        assert statement.query is not None
        self._catalog.require_free(statement.name)
        with self.transaction() as transaction:
            frame = transaction.sql(statement.query)
            schema = self.engine().schema_of(frame, ())
            key = tuple(schema.column(k).name for k in statement.key)
            transaction.create(statement.name, Schema(schema.columns, key), dict(statement.properties))
            rows = transaction.insert(statement.name, frame).rows
        return Outcome(rows, transaction.csn)

    def _require_own(self, name: str) -> Relation:
        relation = self._catalog.relation(name)
        if relation.kind != "table":
            raise InvalidStatement(
                f"{relation.kind} {relation.name}", "its columns are not ours to change", "Change its source."
            )
        return relation

    # -- upkeep ------------------------------------------------------------------------------------

    def _background_step(self) -> None:
        self._notice()
        for relation_id, (segments, _, size) in self._catalog.backlog().items():
            if segments >= DUE_SEGMENTS or size >= DUE_BYTES:
                relation = self._catalog.relation_by_id(relation_id)
                if relation is not None:
                    self._checkpointer.run(relation)
        self._note_uses()
        self._keeper.advance()
        self._keeper.deferred.keep_schedule()
        self._follow_advice()

    def _follow_advice(self) -> None:
        """Change the modes of views that were left to the advice, once in a while."""
        if time.monotonic() < self._advice_due:
            return
        self._advice_due = time.monotonic() + _ADVICE_SECONDS
        if any(r.kind == "view" and is_auto(r) for r in self._catalog.relations()):
            apply_advice(Reports(self._catalog).views(), self._keeper.set_eager, self.events)

    def _note_uses(self) -> None:
        if uses := self._activity.take_uses():
            self._keeper.note_uses(uses)

    def _is_busy(self) -> bool:
        return self._activity.is_busy() or machine_load() > self._busy_load

    def _maintain_one(self, chosen: Candidate, interruption: Interruption) -> bool:
        """One bounded job of a view, at low priority; False if somebody else is at it."""
        view = self._catalog.relation_by_id(chosen.view_id)
        if view is None:
            return True
        with self.engine().background(interruption):
            done = self._keeper.step(view, self._catalog.snapshot(), most_rows=BACKGROUND_ROWS) is not None
        if is_deferred(view):
            self._keeper.deferred.keep_schedule()
        return done

    def _make_way(self, names: Iterable[str] = ()) -> None:
        """A statement that needs Spark begins; the manager's job gives way, unless it is for a view that is named."""
        if self._manager is None or not self._manager.is_running:
            return
        views = {r.id: r for r in self._catalog.relations() if r.kind == "view"}
        named = [r.id for r in map(self._catalog.find, names) if r is not None]
        self._manager.give_way(with_lower(named, views))

    def _foreground_engine(self) -> SparkEngine:
        """Spark, for a statement of the user's."""
        self._make_way()
        return self.engine()


def _names_in(query: str) -> Iterator[str]:
    """The relations that a query names."""
    for ref in bind(query, lambda _: True).tables.values():
        yield ref.name


def connect(
    path: str | Path = "warehouse",
    catalog: str | None = None,
    spark: SparkSession | None = None,
    background: bool = False,
    policy: str = "oldest",
    busy_load: float = BUSY_LOAD,
) -> Warehouse:
    """Open a warehouse, making it if there is none.

    `catalog` is a database URL (default: SQLite in the folder); `spark` a session to use (default:
    one is found or started when first needed); `background` starts upkeep and the maintenance manager, whose
    `policy` is 'oldest' (first), 'use' (what queries are expected to ask for first) or 'size' (the largest first). It
    sleeps while more than `busy_load` processes per core want to run.

    A session that is given keeps its settings, its temporary views and its catalog, and is never stopped. Queries may
    name its temporary views beside the warehouse's tables, and their results are DataFrames of that session:

    >>> wh = freshview.connect(folder, spark=spark)
    >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, region STRING)")
    >>> insert = wh.sql("INSERT INTO orders VALUES (1, 'n'), (2, 's')")
    >>> regions = spark.createDataFrame([("n", "north"), ("s", "south")], "region STRING, name STRING")
    >>> wh.sql("SELECT * FROM orders").join(regions, "region").select("id", "name").orderBy("id").collect()
    [Row(id=1, name='north'), Row(id=2, name='south')]
    >>> wh.close()

    A warehouse is a context manager too, and safe to use from several threads.
    """
    return Warehouse(path, catalog, spark, background, policy, busy_load)
