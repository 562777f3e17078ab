"""Views inside a transaction (LAZY §2.2.3, §3.1) and inside its commit (eager maintenance).

A transaction that has written what a view reads sees the view with those writes: the view is maintained up to the begin
snapshot, for all readers, and the change by the transaction's own statements is laid over it, for this transaction
alone. A later query adds only the change by later statements.

The commit publishes the overlay, so that no job computes it again, if no other transaction has touched what the view
reads. Statements after the last query remain as a partial task. The overlay of an eager view is computed at the commit
if it does not exist yet, on top of the newest commit, before the catalog is locked; if another transaction commits in
between to what the view reads, the overlay is computed again.

Law: after the commit an eager view equals its definition; a published overlay is what a job over its statements gives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

from freshview.catalog.frontiers import Job, ViewChange
from freshview.catalog.records import Frontier, Relation, RelationState, Segment
from freshview.catalog.views import ViewCatalog
from freshview.errors import FreshviewError, ViewUnusable, WriteConflict
from freshview.refresh.execute import Change
from freshview.refresh.jobs import detailed, give_up, is_transient, store
from freshview.refresh.points import Own, Point
from freshview.refresh.span import Span, later_than
from freshview.storage.segments import in_memory
from freshview.storage.store import Storage
from freshview.transactions.transaction import Transaction

_ATTEMPTS = 10
_MAKE_LAZY = (
    "Correct the data, or make the view lazy: ALTER MATERIALIZED VIEW … SET TBLPROPERTIES ('maintenance'='lazy')."
)


@dataclass
class OwnChange:
    """The change of a view's stored rows that a transaction's statements make."""

    view: Relation
    base: int  # the CSN below the statements
    start: Frontier  # of the view before the change
    stored: RelationState  # the view's rows at the base
    seen: Own = field(default_factory=dict)  # the sources' own rows that the change includes
    stmtsn: int = 0  # the last statement that the change includes
    segments: tuple[Segment, ...] = ()
    strategy: str = "nothing"
    delta_rows: int = 0
    seconds: float = 0.0
    expected: float = 0.0  # seconds, of the ways that were chosen
    otherwise: float = 0.0  # seconds, of the ways that were rejected
    factors: Mapping[str, float] = field(default_factory=dict)  # learnt of the view's costs

    @property
    def state(self) -> RelationState:
        return replace(self.stored, segments=self.stored.segments + self.segments)

    def add(self, change: Change, seen: Own, stmtsn: int, seconds: float) -> None:
        """Add the change by later statements."""
        segment = in_memory(self.view.id, change.rows)
        self.segments += (segment,) if segment is not None else ()
        self.seen, self.stmtsn = seen, stmtsn
        self.delta_rows += change.delta_rows
        self.seconds += seconds
        self.expected += change.expected
        self.otherwise += change.otherwise
        self.factors = change.factors or self.factors
        if change.strategy != "nothing":
            self.strategy = change.strategy


class Keeper(Protocol):
    """Maintains the views of a warehouse."""

    def sources(self, view: Relation) -> list[Relation]: ...
    def bring(self, view: Relation, csn: int) -> list[Job]: ...
    def change(self, view: Relation, span: Span, stored: RelationState) -> Change: ...


class Inside:
    """The views of a warehouse as one transaction sees and changes them."""

    def __init__(
        self,
        views: ViewCatalog,
        storage: Storage,
        keeper: Keeper,
        transaction: Transaction,
        turn: threading.RLock,
        make_way: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        """`make_way` stops background jobs, except those of the named views."""
        self._views = views
        self._catalog = views.catalog
        self._storage = storage
        self._keeper = keeper
        self._make_way = make_way
        self._transaction = transaction
        self._turn = turn  # transactions of this process that maintain eager views commit one after the other
        self.seen: dict[int, int] = {}  # what deferred views showed when they were first read: view id → CSN
        self._overlays: dict[int, OwnChange] = {}
        self._offered: list[ViewChange] = []  # their files are removed unless a commit publishes the change
        self._published: tuple[ViewChange, ...] = ()
        self._eager: set[int] = set()  # ids of views that the commit has to maintain
        self._attempts = 0  # to commit, after which an eager view was not as of the commit
        self._held = ExitStack()  # holds the turn, once the commit maintains eager views

    # -- reading -----------------------------------------------------------------------------------

    def state(self, view: Relation) -> RelationState | None:
        """The view's stored rows with the transaction's own writes; None if only the definition has them."""
        try:
            overlay = self._overlay(view, self._transaction.snapshot)
        except FreshviewError:
            return None
        return overlay.state if overlay is not None else None

    def _overlay(self, view: Relation, base: int) -> OwnChange | None:
        """The overlay of a view on top of a CSN, with all statements so far; None if the view is not stored there."""
        own = dict(self._transaction.own)
        for source in self._keeper.sources(view):
            if source.kind == "view" and self._touches(source):
                below = self._overlay(source, base)
                if below is None:
                    return None
                own[source.id] = below.segments
        overlay = self._overlays.get(view.id)
        if overlay is None or overlay.base != base:
            overlay = self._begun(view, base)
            if overlay is None:
                return None
        sources = [s.id for s in self._keeper.sources(view)]
        if overlay.stmtsn == 0 or later_than(overlay.seen, own, sources):
            self._extend(overlay, own)
        self._overlays[view.id] = overlay
        return overlay

    def _begun(self, view: Relation, base: int) -> OwnChange | None:
        if base >= self._views.frontier(view):
            self._keeper.bring(view, base)
        start, at = self._views.position(view), self._views.stored_at(view, base)
        below = [s for s in self._keeper.sources(view) if s.kind == "view"]
        if at is None or not all(self._views.has_version(s, base) for s in below):
            return None  # the change would be computed from rows that are not those of the base
        return OwnChange(view, base, start, self._views.stored(view, at))

    def _extend(self, overlay: OwnChange, own: Own) -> None:
        start, end = (Point(overlay.base, own=rows) for rows in (overlay.seen, own))
        begun = time.monotonic()
        change = self._keeper.change(overlay.view, Span(self._catalog, self._storage, start, end), overlay.state)
        overlay.add(change, own, self._transaction.stmtsn, time.monotonic() - begun)

    def _touches(self, view: Relation) -> bool:
        return bool(self._transaction.written.intersection(self._views.inputs(view)))

    # -- committing --------------------------------------------------------------------------------

    def changes(self) -> tuple[ViewChange, ...]:
        """The changes that the commit is to publish, lower views first: overlays that queries made, and those that
        eager views need."""
        for view in self._views.by_id(self._eager):
            self._make_eager(view)
        self._offered = []
        for view in self._views.by_id(self._overlays):
            overlay = self._overlays[view.id]
            if change := self._change(overlay, required=overlay.view.id in self._eager):
                self._offered.append(change)
        return tuple(self._offered)

    def renew(self, eager: Collection[int]) -> None:
        """Note that the commit has to maintain these views too, on top of the newest commit; what it offered before is
        removed. Transactions of this process that do so commit one after the other: the turn is held to the end."""
        self._attempts += 1
        if not self._eager:
            self._held.enter_context(self._turn)
        self._eager |= set(eager)
        self._discard()
        if self._attempts == _ATTEMPTS:
            names = ", ".join(v.name for v in self._views.by_id(self._eager))
            cause = f"others kept changing what the eager view {names} reads while it was maintained"
            remedy = "Run the transaction again, or make the view lazy."
            raise WriteConflict(f"transaction {self._transaction.txsn}", cause, remedy)

    def published(self, views: Collection[ViewChange]) -> None:
        """Note which of the changes the commit has published: their files stay."""
        self._published = tuple(views)

    def _make_eager(self, view: Relation) -> None:
        """Compute the overlay of an eager view on top of the newest commit."""
        self._make_way([view.name])
        try:
            if self._overlay(view, self._catalog.snapshot()) is None:
                raise WriteConflict(f"view {view.name}", "is being maintained elsewhere", "Run the transaction again.")
        except FreshviewError as error:
            if is_transient(error):
                raise
            cause = f"it cannot be maintained with this commit: {error}"
            raise ViewUnusable(f"eager view {view.name}", cause, _MAKE_LAZY) from error

    def _change(self, overlay: OwnChange, *, required: bool) -> ViewChange | None:
        view, own = overlay.view, self._transaction.own
        sources = self._keeper.sources(view)
        below = tuple(s.id for s in sources if s.kind == "view" and self._touches(s))
        rest = later_than(overlay.seen, own, [s.id for s in sources if s.kind != "view"])
        if not required and below and any(self._is_behind(i) for i in (*below, view.id)):
            return None  # the overlays of views over views are published together or not at all
        if rest and not overlay.stmtsn:
            return None  # the view was read before the first statement
        stored = [store(self._catalog, self._storage, view.id, s.rows_in_memory) for s in overlay.segments]
        segments = tuple(s for parts, _ in stored for s in parts)
        leases = tuple(lease for _, held in stored for lease in held)
        rows = sum(s.rows for s in segments)
        rows_in = sum(s.rows for i in self._views.inputs(view) for s in own.get(i, ()))
        start, seconds = overlay.start, overlay.seconds
        job = Job(view_id=view.id, from_csn=start.readable, to_csn=0, strategy=overlay.strategy, seconds=seconds)
        job = replace(job, tasks=1, delta_rows=overlay.delta_rows, view_rows=rows)  # `to_csn` comes with the commit
        job = detailed(job, view, rows_in, {"compute": seconds}, {})
        stmtsn = overlay.stmtsn if rest else 0
        job = replace(job, expected=overlay.expected, otherwise=overlay.otherwise)
        at = overlay.stored.csn
        return ViewChange(view, overlay.base, start, at, segments, leases, stmtsn, below, job, overlay.factors)

    def _is_behind(self, view_id: int) -> bool:
        """Has the transaction made statements since its last query of a view?"""
        overlay = self._overlays.get(view_id)
        return overlay is None or overlay.stmtsn < self._transaction.stmtsn

    def end(self) -> None:
        """Remove the files of overlays that were not published, and give up the turn."""
        with self._held:
            self._discard()
            self._overlays.clear()

    def _discard(self) -> None:
        taken = {change.view.id for change in self._published} if self._transaction.csn is not None else set()
        for change in self._offered:
            if change.leases and change.view.id not in taken:
                give_up(self._catalog, self._storage, change.view.id, list(change.segments), list(change.leases))
        self._offered = []
