"""The warehouse: a façade that wires catalog, storage, transactions, views and Spark together."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from freshview.catalog.frontiers import Job
from freshview.catalog.lineage import lower_first
from freshview.catalog.records import DIMENSION, Relation
from freshview.catalog.writer import Catalog
from freshview.cdc.notice import Watch
from freshview.cdc.remote import RemoteTables
from freshview.cdc.source import Source
from freshview.display import Explanation, Jobs
from freshview.errors import InvalidStatement, WriteConflict
from freshview.events import Events
from freshview.flows.capture import capture
from freshview.flows.definitions import FlowDefinitions
from freshview.flows.dump_differences import DumpDifference
from freshview.flows.opened import Opener
from freshview.flows.polling import Poller
from freshview.flows.refreshing import Flows
from freshview.optimizer.prices import Prices
from freshview.schedule.activity import BUSY_LOAD
from freshview.schedule.upkeep import WORKERS, Upkeep, Wishes
from freshview.sql.parser import parse
from freshview.sql.statements import (
    AlterSource,
    Checkpoint,
    CreateFlow,
    CreateSource,
    Delete,
    Describe,
    DropFlow,
    DropRemoteTable,
    DropSource,
    ExplainFlow,
    ExplainOptimize,
    ExplainRefresh,
    Insert,
    Merge,
    Quarantine,
    Query,
    RefreshFlow,
    RefreshView,
    Show,
    Statement,
    Update,
    Vacuum,
)
from freshview.storage.checkpoint import Checkpointer
from freshview.storage.store import Storage
from freshview.storage.vacuum import RETENTION, checked, hours_retained, vacuum
from freshview.transactions.dml import Statements
from freshview.transactions.reading import ReadContext
from freshview.transactions.transaction import Outcome, Transaction
from freshview.transactions.user_transaction import UserTransaction
from freshview.views.dimensions import DimensionViews
from freshview.views.reading import Freshness
from freshview.views.views import Views
from freshview.warehouse.checks import CheckReport, check_dimension, check_table, check_view
from freshview.warehouse.definitions import DataDefinition
from freshview.warehouse.opening import folder_of, open_database
from freshview.warehouse.optimizing import Optimization, optimized
from freshview.warehouse.queries import Queries
from freshview.warehouse.status import Status, status_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from freshview.spark.engine import SparkEngine

_RETRIES = 5  # of a statement that commits by itself and met a write conflict


class Warehouse:
    """A folder of tables and materialized views, with snapshot-isolated transactions. `freshview.connect` opens one.

    A warehouse is a context manager: leaving the block closes it. It is safe to use from several threads; each
    transaction belongs to the thread that began it.

    >>> with freshview.connect(folder) as wh:
    ...     wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
    ...     [table.name for table in wh.status().tables]
    Outcome(rows=0, csn=1)
    ['orders']

    Attributes: `path`, the folder; `events`, the stream of events that listeners receive (see `Events`).
    """

    def __init__(
        self,
        path: str | Path,
        catalog: str | None = None,
        spark: SparkSession | None = None,
        background: bool = False,
        policy: str = "oldest",
        busy_load: float = BUSY_LOAD,
        workers: int = WORKERS,
        lookup_memory: int | None = None,
        keep_queries: bool = True,
    ) -> None:
        wishes = Wishes(background, policy, busy_load, workers)
        self.path = folder_of(path)
        self.events = Events()
        self._storage = Storage(self.path, self.events, lookup_memory=lookup_memory)
        self._catalog = Catalog(open_database(self.path, catalog))
        self._session = spark
        self._engine: SparkEngine | None = None
        self._engine_lock = threading.Lock()
        self._watch = Watch(self._catalog, self.events)
        self._remotes = RemoteTables(self._catalog)
        self._checkpointer = Checkpointer(self._catalog, self._storage, self.events, self.engine)
        opener = Opener(self._catalog, DumpDifference(self._catalog, self._storage, self.engine))
        poller = Poller(self._catalog, self.events, self.transaction, self.engine, opener)
        self._flows = Flows(
            FlowDefinitions(poller, lambda name: self._definitions.run(DropRemoteTable(name, cascade=True)))
        )
        self._views = Views(self._catalog, self._storage, self.events, self.engine)
        self._dimensions = DimensionViews(
            self._views.catalog,
            self._storage,
            self.events,
            self._views.engines,
            self._views.definitions,
            self._begin,
            self._remotes,
        )
        parts = (self._watch, self._views, self._checkpointer, self._storage)
        turns = (self._take_due, self._flows.forget)
        self._upkeep = Upkeep(self._catalog, self.events, *parts, self.engine, wishes, *turns)
        self._make_way, self._activity = self._upkeep.make_way, self._upkeep.activity
        noting = (self._activity.used, self._activity.ran if keep_queries else None)
        readers, spark_of = (self._views, self._dimensions, self._watch), (self.engine, self._has_session)
        self._queries = Queries(self._catalog, *readers, *spark_of, self._make_way, *noting, self._flows)
        self._definitions = DataDefinition(
            self._catalog,
            self._views,
            self._dimensions,
            self.engine,
            self.transaction,
            self._make_way,
            self._upkeep.adopt,
        )

    # -- the public surface ------------------------------------------------------------------------

    def sql(self, text: str, *, freshness: Freshness = None, as_of: int | datetime | None = None) -> Any:
        """Run one statement.

        SELECT, SHOW, DESCRIBE and EXPLAIN return a Spark DataFrame, DDL and DML an Outcome.
        `freshness` is 'fresh', 'any' (as stored), or a timedelta: how old the rows of views may be. By default views
        are fresh, and deferred ones as of their last refresh. `as_of` (a CSN or a time) reads all as it was then.

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

        The update did not touch the view. `freshness="any"` reads the rows that are stored; any other query gets the
        view up to date:

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

        A query of the past by CSN, and one of rows that are at most five minutes old:

        >>> wh.sql("SELECT sum(amount) AS total FROM orders", as_of=2).collect()
        [Row(total=30)]
        >>> wh.sql("SELECT sum(total) AS total FROM totals", freshness=timedelta(minutes=5)).collect()
        [Row(total=50)]
        """
        if not (freshness in (None, "fresh", "any") or isinstance(freshness, timedelta)):
            raise InvalidStatement(f"freshness {freshness!r}", "is not known", "Use 'fresh', 'any' or a timedelta.")
        if isinstance(freshness, timedelta) and freshness < timedelta(0):
            raise InvalidStatement(f"freshness {freshness}", "is negative", "Use 'fresh' or a positive timedelta.")
        statement = parse(text)
        with self._activity.working():
            return self._run(statement, freshness, as_of)

    def _run(self, statement: Statement, freshness: Freshness, as_of: int | datetime | None) -> Any:
        if isinstance(statement, ExplainOptimize):
            self._upkeep.note_uses()  # what this process ran is part of the history
        match statement:
            case Query() | Show() | Describe() | ExplainRefresh() | ExplainFlow() | ExplainOptimize():
                return self._queries.read(statement, as_of=as_of, freshness=freshness)
            case _ if as_of is not None:
                raise InvalidStatement("as_of", "only queries read the past", "Leave as_of out.")
            case Insert() | Update() | Delete() | Merge():
                return self._autocommit(statement, freshness)
            case (
                CreateSource() | AlterSource() | DropSource() | CreateFlow() | DropFlow() | RefreshFlow() | Quarantine()
            ):
                return self._flows.run(statement)
            case RefreshView():
                return self._refresh(self._refreshed(statement.name, statement.how), statement.how)
            case Checkpoint():
                self._make_way()
                report = self._checkpointer.run(self._catalog.relation(statement.name))
                return Outcome(report.rows, report.csn)
            case Vacuum():
                hours = statement.retain_hours
                return self.vacuum(RETENTION if hours is None else hours_retained(hours))
            case _:
                return self._definitions.run(statement)

    def refresh(self, view: str, *, full: bool = False) -> Outcome:
        """Bring a view up to date now, recomputing it if `full`; return the changed rows and the CSN that it shows.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> view = wh.sql("CREATE MATERIALIZED VIEW large AS SELECT id, amount FROM orders WHERE amount > 10")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20)")
        >>> outcome = wh.refresh("large")
        >>> outcome.rows, outcome.csn == insert.csn
        (1, True)
        """
        with self._activity.working():
            how = "full" if full else ""
            return self._refresh(self._refreshed(view, how), how)

    def propagate(self, view: str) -> Outcome:
        """Compute the pending changes of a deferred view and store them aside: what the view shows stays.

        See `partial_refresh` for an example.
        """
        with self._activity.working():
            return self._refresh(self._catalog.view(view), "propagate")

    def partial_refresh(self, view: str) -> Outcome:
        """Have a deferred view show what was propagated, in the time of one catalog update whatever the size.

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
            return self._refresh(self._catalog.view(view), "partial")

    def _refreshed(self, name: str, how: str) -> Relation:
        """Return the view of that name; dimension views have no propagated changes that could be shown later."""
        found = self._catalog.relation(name)
        if found.kind != DIMENSION:
            return self._catalog.view(name)
        if how not in ("", "full"):
            raise InvalidStatement(
                f"dimension view {name}",
                f"{how.upper()} is not for views of remote tables",
                "Leave it out, or say FULL.",
            )
        return found

    def _refresh(self, view: Relation, how: str) -> Outcome:
        if how != "partial":  # that shows what was propagated: nothing new is taken in
            below = self._dimensions.below([view.name])
            anew = how == "full" and view.kind == DIMENSION
            outcome = self._dimensions.refresh(below, full=anew) if below else None
            if view.kind == DIMENSION and outcome is not None:
                return outcome
            self._watch.look()
            self._flows.look()
            self._make_way([view.name])
        return Outcome(*self._views.maintenance.refresh_as_asked(view, how))

    def transaction(self) -> UserTransaction:
        """Begin a transaction on the newest snapshot; use it in a `with` block.

        Leaving the block commits; an exception rolls back and is raised again.

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
        self._watch.look()
        core = self._begin()
        reading = ReadContext(self._catalog, core.snapshot, core)
        statements = Statements(
            core, reading, self._storage, self._foreground_engine, self._queries.inside(core, reading), self._make_way
        )
        read = partial(self._queries.read, transaction=core)
        return UserTransaction(core, statements, read, lambda: self._upkeep.adopt(core.loaded), self._activity.working)

    def _take_due(self) -> None:
        """Take the changes of sources whose time has come, into flows and dimension views."""
        self._flows.turn()
        self._dimensions.refresh_due()

    def _begin(self) -> Transaction:
        company = partial(self._views.inside, make_way=self._make_way)
        core = Transaction(self._catalog, self._storage, self.events, company)
        self._activity.began(lambda: core.is_open)
        return core

    def capture(self, table: str, source: Source) -> Outcome:
        """Take what changed at a source since the last call into a table; return the changes and the CSN.

        The source's position is stored in the same commit, so each change is taken once, whatever dies. A table takes
        the changes of one source, and has its columns and primary key; the first call takes all rows that the source
        has. Sources are in `freshview.cdc`: files of events, dumps, tables of PostgreSQL. Events that a source sets
        aside (`on_error="quarantine"`) are reported, as `capture.quarantined`, and not kept: only flows keep them.

        >>> from freshview.cdc.dumps import Dumps
        >>> from freshview.relation.schema import Column, Schema
        >>> from freshview.relation.types import parse_type
        >>> dumps = folder / "dumps"
        >>> dumps.mkdir(parents=True)
        >>> written = (dumps / "1.csv").write_text("id,name\\n1,Ada\\n2,Bob\\n")
        >>> wh = freshview.connect(folder)
        >>> created = wh.sql("CREATE TABLE customer (id INT PRIMARY KEY, name STRING)")
        >>> columns = Schema((Column("id", parse_type("INT")), Column("name", parse_type("STRING"))), ("id",))
        >>> source = Dumps(dumps, "customer", columns)
        >>> wh.capture("customer", source)
        Outcome(rows=2, csn=2)
        >>> written = (dumps / "2.csv").write_text("id,name\\n1,Ada\\n3,Eve\\n")
        >>> wh.capture("customer", source)
        Outcome(rows=2, csn=3)
        >>> wh.sql("SELECT * FROM customer ORDER BY id").collect()
        [Row(id=1, name='Ada'), Row(id=3, name='Eve')]
        """
        relation = self._catalog.relation(table)
        return capture(self._catalog, self.events, self.transaction, relation, source)

    def _autocommit(self, statement: Insert | Update | Delete | Merge, freshness: Freshness) -> Outcome:
        """Run a statement as a transaction; after a write conflict, again on a newer snapshot."""
        self._queries.poll_for(statement, freshness)
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

    def maintain(self, views: list[str] | None = None, *, show: bool | None = None) -> list[Job]:
        """Bring these views (default: all) up to date now; return the jobs that ran, which print as a table.

        Different views are maintained side by side. A view that fails holds up only the views above it; its error is
        raised when the others are done.
        Deferred views are refreshed if they are named; else they are propagated, and what they show stays. `show`
        decides instead: True refreshes them, False propagates them.

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
            self._watch.look()
            self._flows.look()
            if views is None:
                self._dimensions.poll(self._dimensions.all())
            else:
                self._dimensions.refresh(self._dimensions.below(views))
            csn = self._catalog.snapshot()
            every = lower_first(self._catalog.relations())
            given = None if views is None else [self._refreshed(name, "") for name in views]
            wanted = None if given is None else {view.id for view in given}
            found = [r for r in every if r.kind == "view" and (wanted is None or r.id in wanted)]
            self._make_way(view.name for view in found)
            named = views is not None if show is None else show
            with self._views.maintenance.together(found):
                return Jobs(self._upkeep.maintain(found, csn, named=named))

    def history(self, view: str | None = None) -> list[Job]:
        """Return past maintenance jobs of one view or of all, oldest first; they print as a table.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> view = wh.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS total FROM orders")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20)")
        >>> jobs = wh.maintain()
        >>> [(job.view, job.tasks, job.delta_rows, job.error) for job in wh.history("total")]
        [('total', 1, 2, None)]
        """
        return Jobs(self._views.catalog.history(self._catalog.view(view) if view is not None else None))

    def explain(self, view: str) -> Explanation:
        """Return how a view is stored and maintained, and the query that a refresh runs, as a text.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> view = wh.sql("CREATE MATERIALIZED VIEW large AS SELECT id, amount FROM orders WHERE amount > 10")
        >>> wh.explain("large")
        view large
          frontier: CSN 1
          ...
          maintained: incrementally
          reading: proven by plan
          operators:
            project orders.id, orders.amount  <- linear: row by row, applied to the change
              filter orders.amount > 10  <- linear: row by row, applied to the change
                scan orders  <- source: its net change since the frontier
          ...
        """
        return Explanation(self._queries.explained(view))

    def optimize(
        self,
        *,
        apply: bool = False,
        space: float | None = None,
        changed: float | str | None = None,
        queries: Mapping[str, float] | None = None,
    ) -> Optimization:
        """Return what would make refreshes of all views together cheaper: results to store or share, files to sort, and
        for each view whether it is incremented or recomputed; with costs, and what lost.

        `apply` stores the proposed results as auxiliary views, has views maintained over them, and drops auxiliary
        views that no view reads any more; `applied` of the report lists what was done. Without it nothing is created.

        `space` is how many bytes results that are stored in addition may take. `changed` is the share of each table
        that a refresh finds changed (0.01), or 'pending' for what is pending now; by default as in the history.
        `queries` are texts, each with how often it runs between two refreshes: results are proposed for them too. By
        default these are the queries that ran most often of those whose texts are kept; none with `apply`, which stores
        results for views alone; `{}` leaves all out. Distinct values that are not known yet are counted by Spark, and
        kept. The report prints as a text; `dag` is the search space as text, `svg` a picture of the chosen plans.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, region STRING, amount INT)")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 'north', 10), (2, 'south', 20)")
        >>> view = wh.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS total FROM orders")
        >>> report = wh.optimize(changed=0.01)
        >>> report.after <= report.before, "default prices" in str(report), report.svg.startswith("<svg")
        (True, True, True)
        """
        with self._activity.working():
            self._watch.look()
            self._make_way()
            self._upkeep.note_uses()
            queries = {} if apply and queries is None else queries
            report = optimized(self._catalog, self._views.proposing, space=space, changed=changed, queries=queries)
            return report.carried_out(self._views.auxiliaries.apply) if apply else report

    def calibrate(self) -> Prices:
        """Measure what single steps cost on this machine or cluster, in tens of seconds, and store these prices.

        They replace the defaults in `optimize`, and when jobs choose between delta rules and recomputing. Events named
        `calibrate.step` report the progress.
        """
        with self._activity.working():
            self._make_way()
            return self._views.calibrating.run()

    def vacuum(self, retention: timedelta = RETENTION) -> Outcome:
        """Remove versions older than the retention, and files that nothing refers to.

        The outcome has the number of removed files (`rows`) and the oldest CSN that can still be read (`csn`). Versions
        that an open transaction, a view or a running query needs are kept, whatever the retention.

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
        self._flows.forget(checked(retention))
        report = vacuum(self._catalog, self._storage, self.events, retention)
        return Outcome(report.files, report.horizon)

    def status(self) -> Status:
        """Return the status of the warehouse: tables, views, and what keeps old versions; starts no Spark.

        >>> wh = freshview.connect(folder)
        >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
        >>> insert = wh.sql("INSERT INTO orders VALUES (1, 10), (2, 20)")
        >>> status = wh.status()
        >>> status.csn, [(table.name, table.pending_rows) for table in status.tables]
        (2, [('orders', 2)])
        """
        return status_of(self.path, self._catalog)

    def check(self, name: str, *, invariant: bool = False) -> CheckReport:
        """Check the stored rows of a view or table.

        A view is compared, as a bag, with its definition at its frontier: the report has the numbers of `missing` and
        `extra` rows, and a hundred of each at most. For a table the declared key and NOT NULL columns are checked:
        `extra` has offending rows. With `invariant`, `invariants` has the result of each invariant of a view's mode.

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
            self._watch.look()
            relation = self._catalog.relation(name)
            if relation.kind == DIMENSION:
                return check_dimension(relation, self._dimensions, invariant=invariant)
            if relation.kind == "view":
                return check_view(relation, self._views.checking, invariant=invariant)
            return check_table(relation, self._catalog, self.engine, invariant=invariant)

    def close(self) -> None:
        """Release pins and leases and stop threads. A job in progress is cancelled; its tasks stay pending.

        The Spark session stays open, and results that were read stay valid.

        >>> wh = freshview.connect(folder)
        >>> wh.close()
        """
        if self._catalog.database.is_closed:
            return
        self._upkeep.stop()
        self._views.close()
        self._dimensions.close()
        if self._engine is not None:
            self._engine.close()
        try:
            self._catalog.leave()
        finally:
            self._catalog.database.close()

    def __enter__(self) -> Warehouse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def engine(self) -> SparkEngine:
        """Return Spark, started by the first call."""
        with self._engine_lock:
            self._catalog.database.require_open()
            if self._engine is None:
                from freshview.spark.engine import SparkEngine
                from freshview.spark.session import obtain_session

                self._engine = SparkEngine(self._session or obtain_session(), self._storage)
            return self._engine

    def _foreground_engine(self) -> SparkEngine:
        """Return Spark for a statement of the user; a background job gives way."""
        self._make_way()
        return self.engine()

    def _has_session(self) -> bool:
        return self._session is not None or self._engine is not None


def connect(
    path: str | Path = "warehouse",
    catalog: str | None = None,
    spark: SparkSession | None = None,
    background: bool = False,
    policy: str = "oldest",
    busy_load: float = BUSY_LOAD,
    workers: int = WORKERS,
    lookup_memory: int | None = None,
    keep_queries: bool = True,
) -> Warehouse:
    """Open a warehouse; create it if the folder has none.

    `catalog` is a database URL (default: SQLite in the folder); `spark` a session to use (default:
    the active one, or one that is started when first needed); `background` starts upkeep and the maintenance manager,
    whose `policy` is 'oldest' (the longest waiting view first), 'use' (the view that queries are expected to ask for
    next) or 'size' (the most pending rows first). The manager pauses while the load per core exceeds `busy_load`. So
    many `workers` maintain different views side by side, in the background and in `maintain`. Columns of large tables
    by which rows are looked up again and again stay in memory, up to `lookup_memory` bytes (default: an eighth of the
    machine's memory, at most 4 GiB; 0: none do). With `keep_queries=False` the texts of this process's queries, which
    may have secrets in literals, are not stored in the catalog, and `optimize` does not learn of them.

    A session that is passed in keeps its settings, its temporary views and its catalog, and is never stopped. Queries
    may name its temporary views beside the warehouse's tables, and their results are DataFrames of that session:

    >>> wh = freshview.connect(folder, spark=spark)
    >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, region STRING)")
    >>> insert = wh.sql("INSERT INTO orders VALUES (1, 'n'), (2, 's')")
    >>> regions = spark.createDataFrame([("n", "north"), ("s", "south")], "region STRING, name STRING")
    >>> wh.sql("SELECT * FROM orders").join(regions, "region").select("id", "name").orderBy("id").collect()
    [Row(id=1, name='north'), Row(id=2, name='south')]
    >>> wh.close()

    A warehouse is a context manager too, and safe to use from several threads.
    """
    return Warehouse(path, catalog, spark, background, policy, busy_load, workers, lookup_memory, keep_queries)
