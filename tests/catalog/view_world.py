"""Views without Spark: UNION ALL of their sources, or the join of two, maintained by deltas on the driver.

A join of keyed sources and a copy of one have the key of their sources, other views are bags.

Several processes share one catalog on a clock that the test turns.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa

from freshview.algebra.nodes import WEIGHT
from freshview.catalog.engine import Database, sqlite_url
from freshview.catalog.frontiers import Job
from freshview.catalog.migrations import migrate
from freshview.catalog.records import Frontier, Relation, RelationState
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.definition.properties import DEFERRED, commits_maintain, mode_in
from freshview.delta.signed import net, with_weight
from freshview.events import Events
from freshview.refresh.deltas import changes
from freshview.refresh.execute import Change
from freshview.refresh.group import GroupRunner
from freshview.refresh.jobs import JobRunner
from freshview.refresh.span import Span
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.storage.store import Storage
from freshview.transactions.transaction import Transaction
from freshview.views.commits import Inside
from freshview.views.deferred import Deferred

TABLE = Schema((Column("k", parse_type("INT")), Column("v", parse_type("INT"))), ("k",))
BAG = Schema(TABLE.columns)
JOIN = "join"
Signed = list[tuple[tuple[int, int], int]]  # rows with how often they are there


@dataclass
class _Executor:
    """Computes what a process's jobs show, and writes down which ran."""

    process: Process

    def change(self, view: Relation, span: Span, stored: RelationState, *, full: bool = False) -> Change:
        c0 = Frontier(span.start.csn, span.start.stmtsn).readable
        self.process.before(view, c0, span.end.csn)
        self.process.ran.append((view.name, c0, span.end.csn, full))
        return self.process.change(view, span, stored)

    def changes(self, views: Sequence[tuple[Relation, RelationState]], span: Span) -> list[Change | str]:
        """Each view that is not in the process's list of those that fail here."""
        self.process.together.append([view.name for view, _ in views])
        return [
            "it is to be computed alone" if view.name in self.process.alone else self.change(view, span, stored)
            for view, stored in views
        ]

    def sharing(self, view: Relation) -> str | None:
        return view.properties.get("sharing", "all") or None

    def applied(self, state: RelationState) -> None:
        """There is nothing to do."""


@dataclass
class Process:
    """One opener of the warehouse, with an executor of its own."""

    world: World
    catalog: Catalog
    storage: Storage
    events: Events = field(default_factory=Events)
    ran: list[tuple[str, int, int, bool]] = field(default_factory=list)
    together: list[list[str]] = field(default_factory=list)  # views that were computed together
    alone: set[str] = field(default_factory=set)  # views that are not computed with others
    before: Callable[[Relation, int, int], None] = lambda *_: None  # called when a job begins to compute

    def __post_init__(self) -> None:
        self.views = ViewCatalog(self.catalog)
        clock = lambda: self.world.now / 1e6  # noqa: E731
        executor = _Executor(self)
        self.jobs = JobRunner(self.catalog, self.storage, self.events, executor, clock=clock, sleep=self._sleep)
        self.groups = GroupRunner(self.views, self.storage, self.events, executor, self.jobs, clock=clock)
        self.deferred = Deferred(self.views, self.storage, self.events, self.jobs)

    def _sleep(self, seconds: float) -> None:
        self.world.now += int(seconds * 1e6)
        self.world.while_waiting()

    def change(self, view: Relation, span: Span, stored: RelationState | None = None) -> Change:  # noqa: ARG002
        if view.properties.get("kind") == JOIN:
            return self._joined(view, span, *self.sources(view))
        parts = [changes(span, s) for s in self.sources(view)]
        rows = pa.concat_tables([p.cast(parts[0].schema) for p in parts])
        return Change("incremental", net(rows, view.schema), rows.num_rows)

    def _joined(self, view: Relation, span: Span, left: Relation, right: Relation) -> Change:
        """Δ(L ⋈ R) = ΔL ⋈ R ∪ L' ⋈ ΔR"""
        (first, second), old, new = (self._signed(span, r) for r in (left, right)), span.before(right), span.after(left)
        met = _met(first, self._rows(old)) + _met(self._rows(new), second)
        columns = zip(*((k, v, weight) for (k, v), weight in met), strict=True) if met else ([], [], [])
        arrow = with_weight(BAG).arrow
        rows = pa.table([pa.array(c, f.type) for c, f in zip(columns, arrow, strict=True)], schema=arrow)
        return Change("incremental", net(rows, view.schema), rows.num_rows)

    def _signed(self, span: Span, source: Relation) -> Signed:
        return [((r["k"], r["v"]), r[WEIGHT]) for r in changes(span, source).to_pylist()]

    def _rows(self, state: RelationState) -> Signed:
        return [((r["k"], r["v"]), 1) for r in self.storage.reader.contents(state).to_pylist()]

    def sources(self, view: Relation) -> list[Relation]:
        found = [self.catalog.relation_by_id(e["id"]) for e in json.loads(view.facts["sources"]).values()]
        return [r for r in found if r is not None]

    def table(self, name: str) -> Relation:
        return self.catalog.create(name, "table", TABLE)[0]

    def view(self, name: str, *sources: Relation, **properties: str) -> Relation:
        """A view over tables and views that hold no rows yet."""
        named = json.dumps({s.name: {"id": s.id, "columns": ["k", "v"]} for s in sources})
        facts = {"sources": named, "columns": '["k", "v"]'}
        keyed = all(s.schema.key for s in sources) and (len(sources) == 1 or properties.get("kind") == JOIN)
        made, _ = self.views.create(
            self.catalog.reserve_id(),
            name,
            TABLE if keyed else BAG,
            properties,
            facts,
            list(sources),
            [],
            [],
            self.catalog.snapshot(),
            eager=commits_maintain(properties),
            deferred=mode_in(properties) == DEFERRED,
        )
        return made

    def begin(self) -> Transaction:
        """A transaction to whose commit the views belong, as in a warehouse."""
        turn = threading.RLock()
        keeper = ProcessKeeper(self)
        company = lambda tx: Inside(self.views, self.storage, keeper, tx, turn)  # noqa: E731
        return Transaction(self.catalog, self.storage, self.events, company)

    def put(self, values: dict[str, dict[int, int]]) -> int:
        """Upsert k → v into tables, in one transaction; its CSN."""
        tx = self.begin()
        for name, rows in values.items():
            tx.upsert_rows(name, [{"k": k, "v": v} for k, v in rows.items()])
        return tx.commit()

    def stored(self, view: Relation, csn: int) -> Counter[tuple[int, int]]:
        """The stored rows as they are read at a CSN."""
        return Counter(row for row, _ in self._rows(self.views.stored(view, csn)))

    def defined(self, view: Relation, csn: int) -> Counter[tuple[int, int]]:
        """What the definition gives at a CSN. It cannot change, and so is read once (World.forget: once more)."""
        known = self.world.known
        if (view.id, csn) not in known:
            known[view.id, csn] = meaning(view, [self._defined(source, csn) for source in self.sources(view)])
        return known[view.id, csn]

    def _defined(self, source: Relation, csn: int) -> Counter[tuple[int, int]]:
        if source.kind == "view":
            return self.defined(source, csn)
        if csn < source.created_csn:
            return Counter()
        return Counter(row for row, _ in self._rows(self.catalog.state(source, csn)))

    def shown(self, view: Relation, csn: int) -> Counter[tuple[int, int]] | None:
        """What a query at a CSN reads from the store; None if it would ask the definition."""
        if csn >= self.views.frontier(view):
            self.jobs.bring(view, csn)
        found = self.views.version(view, csn)
        return None if found is None else Counter(row for row, _ in self._rows(found))


def meaning(view: Relation, parts: Sequence[Counter[tuple[int, int]]]) -> Counter[tuple[int, int]]:
    """A view over these rows of its sources, by its definition alone."""
    if view.properties.get("kind") != JOIN:
        return sum(parts, Counter())
    left, right = (list(part.elements()) for part in parts)
    return Counter((k, 100 * v + w) for k, v in left for other, w in right if k == other)


def _met(left: Signed, right: Signed) -> Signed:
    return [((k, 100 * v + w), x * y) for (k, v), x in left for (other, w), y in right if k == other]


@dataclass(frozen=True)
class ProcessKeeper:
    """Maintains the views of one process, for its transactions."""

    process: Process

    def sources(self, view: Relation) -> list[Relation]:
        return self.process.sources(view)

    def bring(self, view: Relation, csn: int) -> list[Job]:
        return self.process.jobs.bring(view, csn)

    def change(self, view: Relation, span: Span, stored: RelationState) -> Change:
        assert stored.relation.id == view.id
        return self.process.change(view, span)


@dataclass
class World:
    """A catalog, its clock and its processes."""

    folder: Path
    now: int = 1_000_000_000_000
    processes: list[Process] = field(default_factory=list)
    while_waiting: Callable[[], None] = lambda: None
    url: str | None = None  # of a PostgreSQL catalog, which has a clock of its own
    known: dict[tuple[int, int], Counter[tuple[int, int]]] = field(default_factory=dict)  # view id, CSN → definition

    def forget(self) -> None:
        """Read the tables again for what definitions give: at the end of a test they must still say the same."""
        self.known.clear()

    def process(self) -> Process:
        database = Database(self.url or sqlite_url(self.folder / "catalog.db"), clock=lambda: self.now)
        migrate(database)
        self.processes.append(Process(self, Catalog(database), Storage(self.folder)))
        return self.processes[-1]

    def close(self) -> None:
        for process in self.processes:
            process.catalog.database.close()


def waits(database: Database) -> bool:
    """Does a transaction on a PostgreSQL catalog wait for another's lock?"""
    waiting = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = :name")
    with database.read() as c:
        return bool(c.execute(waiting, {"name": c.engine.url.database}).scalar_one())
