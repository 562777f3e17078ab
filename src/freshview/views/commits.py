"""Views inside a transaction (LAZY §2.2.3, §3.1) and inside its commit (eager maintenance).

A transaction that has written what a view reads sees the view with those writes: the view is brought to the begin
snapshot, for all, and the change that the own statements make is laid over it, for this transaction alone. A later
query adds only what later statements change.

At the commit the overlay is kept, so that nobody computes it again, if no other transaction has touched what the view
reads. Statements after the last query remain as a partial task. The overlay of an eager view is computed at the commit
if it is not there yet, on top of the newest commit, before the catalog is locked; if somebody commits in between to
what the view reads, it is computed again.

Law: with the commit an eager view equals its definition; a kept overlay is what a job over the same statements gives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

from freshview.catalog.frontiers import Job, Outdated, ViewChange
from freshview.catalog.records import Frontier, Relation, RelationState, Segment
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Committed
from freshview.errors import FreshviewError, ViewUnusable, WriteConflict
from freshview.refresh.execute import Work
from freshview.refresh.jobs import condensed, give_up, is_transient, store
from freshview.refresh.span import Own, Point, Span, later_than
from freshview.storage.segments import in_memory
from freshview.storage.store import Storage
from freshview.transactions.transaction import Transaction

_ATTEMPTS = 10


@dataclass
class OwnChange:
    """The change of a view's stored rows that a transaction's statements make."""

    view: Relation
    base: int  # the CSN below the statements
    start: Frontier  # where the view was
    stored: RelationState  # its rows at the base
    seen: Own = field(default_factory=dict)  # what the sources' own rows were
    stmtsn: int = 0  # the last statement that it shows
    segments: tuple[Segment, ...] = ()
    strategy: str = "nothing"
    delta_rows: int = 0
    seconds: float = 0.0

    @property
    def state(self) -> RelationState:
        return replace(self.stored, segments=self.stored.segments + self.segments)

    def add(self, work: Work, seen: Own, stmtsn: int, seconds: float) -> None:
        """Later statements change it further."""
        segment = in_memory(self.view.id, work.rows)
        self.segments += (segment,) if segment is not None else ()
        self.seen, self.stmtsn = seen, stmtsn
        self.delta_rows += work.delta_rows
        self.seconds += seconds
        if work.strategy != "nothing":
            self.strategy = work.strategy


class Keeper(Protocol):
    """What is asked of those who maintain the views."""

    def sources(self, view: Relation) -> list[Relation]: ...
    def bring(self, view: Relation, csn: int) -> list[Job]: ...
    def change(self, view: Relation, span: Span, stored: RelationState) -> Work: ...


class Inside:
    """What the views of a warehouse are to one transaction."""

    def __init__(
        self,
        views: ViewCatalog,
        storage: Storage,
        keeper: Keeper,
        transaction: Transaction,
        turn: threading.RLock,
        make_way: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        """`make_way` stops background jobs, but for these views."""
        self._views = views
        self._catalog = views.catalog
        self._storage = storage
        self._keeper = keeper
        self._make_way = make_way
        self._transaction = transaction
        self._turn = turn  # transactions of this process that maintain eager views commit one after the other
        self.seen: dict[int, int] = {}  # what deferred views showed when they were first asked: view id → CSN
        self._overlays: dict[int, OwnChange] = {}
        self._offered: list[ViewChange] = []  # with files that are ours until a commit takes them
        self._kept: tuple[ViewChange, ...] = ()  # that a commit has shown

    # -- reading -----------------------------------------------------------------------------------

    def state(self, view: Relation) -> RelationState | None:
        """The view's stored rows with the transaction's own writes; None if only the definition can tell."""
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
        if at is None or any(self._views.stored_at(s, base) != base for s in below):
            return None  # the change would be computed from rows that are not those of the base
        return OwnChange(view, base, start, self._views.stored(view, at))

    def _extend(self, overlay: OwnChange, own: Own) -> None:
        start, end = (Point(overlay.base, own=rows) for rows in (overlay.seen, own))
        begun = time.monotonic()
        work = self._keeper.change(overlay.view, Span(self._catalog, self._storage, start, end), overlay.state)
        overlay.add(work, own, self._transaction.stmtsn, time.monotonic() - begun)

    def _touches(self, view: Relation) -> bool:
        return bool(self._transaction.written.intersection(self._views.inputs(view)))

    # -- committing --------------------------------------------------------------------------------

    def commit(self, attempt: Callable[[tuple[ViewChange, ...]], Committed]) -> int:
        """Commit with the overlays that can be kept, and those that eager views need."""
        eager: set[int] = set()
        with ExitStack() as turn:
            for _ in range(_ATTEMPTS):
                try:
                    done = attempt(self._changes(eager))
                    self._kept = done.views
                    return done.csn
                except Outdated as outdated:
                    if not eager:
                        turn.enter_context(self._turn)
                    eager |= outdated.view_ids
                    self._discard()
        names = ", ".join(v.name for v in self._views.by_id(eager))
        raise WriteConflict(
            f"transaction {self._transaction.txsn}",
            f"others kept changing what the eager view {names} reads while it was maintained",
            "Run the transaction again, or make the view lazy.",
        )

    def _changes(self, eager: set[int]) -> tuple[ViewChange, ...]:
        """What the commit should show, lower views first."""
        for view in self._views.by_id(eager):
            self._make(view)
        self._offered = []
        for view in self._views.by_id(self._overlays):
            overlay = self._overlays[view.id]
            if change := self._change(overlay, required=overlay.view.id in eager):
                self._offered.append(change)
        return tuple(self._offered)

    def _make(self, view: Relation) -> None:
        """The overlay of an eager view on top of the newest commit."""
        self._make_way([view.name])
        try:
            if self._overlay(view, self._catalog.snapshot()) is None:
                raise WriteConflict(f"view {view.name}", "is being maintained elsewhere", "Run the transaction again.")
        except FreshviewError as error:
            if is_transient(error):
                raise
            raise ViewUnusable(
                f"eager view {view.name}", f"it cannot be maintained with this commit: {error}",
                "Correct the data, or make the view lazy: ALTER MATERIALIZED VIEW … SET TBLPROPERTIES "
                "('maintenance'='lazy').",
            ) from error  # fmt: skip

    def _change(self, overlay: OwnChange, *, required: bool) -> ViewChange | None:
        view, own = overlay.view, self._transaction.own
        sources = self._keeper.sources(view)
        below = tuple(s.id for s in sources if s.kind == "view" and self._touches(s))
        rest = later_than(overlay.seen, own, [s.id for s in sources if s.kind != "view"])
        if not required and below and any(self._is_behind(i) for i in (*below, view.id)):
            return None  # views over views are kept whole or not at all
        if rest and not overlay.stmtsn:
            return None  # it was asked for before the first statement
        stored = [store(self._catalog, self._storage, view.id, s.rows_in_memory) for s in overlay.segments]
        segments = tuple(s for parts, _ in stored for s in parts)
        leases = tuple(lease for _, held in stored for lease in held)
        rows = sum(s.rows for s in segments)
        rows_in = sum(s.rows for i in self._views.inputs(view) for s in own.get(i, ()))
        job = Job(
            view.id, overlay.start.readable, 0, overlay.strategy, 1, overlay.delta_rows, rows, overlay.seconds, None,
            view.name, rows_in, condensed(overlay.strategy, rows_in, overlay.delta_rows), {"compute": overlay.seconds},
        )  # fmt: skip
        return ViewChange(
            view, overlay.base, overlay.start, overlay.stored.csn, segments, leases, overlay.stmtsn if rest else 0,
            below, job,
        )  # fmt: skip

    def _is_behind(self, view_id: int) -> bool:
        """Have statements come after the last query of a view?"""
        overlay = self._overlays.get(view_id)
        return overlay is None or overlay.stmtsn < self._transaction.stmtsn

    def end(self) -> None:
        """Files of overlays that no commit took are removed."""
        self._discard()
        self._overlays.clear()

    def _discard(self) -> None:
        taken = {change.view.id for change in self._kept} if self._transaction.csn is not None else set()
        for change in self._offered:
            if change.leases and change.view.id not in taken:
                give_up(self._catalog, self._storage, change.view.id, list(change.segments), list(change.leases))
        self._offered = []
