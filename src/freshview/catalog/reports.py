"""Reports from the catalog: what keeps old versions from vacuum, how far views are, what was measured of them.

The next vacuum removes superseded segments and checkpoints, unless something holds them: a view with tasks needs all
from its frontier on, an open snapshot all from its CSN on, retention all of the last hours (LAZY §2.2, §3.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.deferred import deferrals
from freshview.catalog.frontiers import CHANGES, MAINTAINED
from freshview.catalog.lineage import source_ids
from freshview.catalog.records import Backlog, Deferral, Relation
from freshview.catalog.selections import last_csn, readable_csn, shown_csns
from freshview.catalog.uses import UseHistory
from freshview.catalog.view_reader import beyond_frontiers
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.display import counted

WINDOW = timedelta(hours=24)  # older commits and jobs predict little
_MICROSECOND = timedelta(microseconds=1)
_HOUR = 3_600_000_000


# -- what holds space ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Amount:
    """Superseded storage, counted: segments with their rows and bytes, and old checkpoints."""

    segments: int = 0
    rows: int = 0
    bytes: int = 0
    checkpoints: int = 0

    def __add__(self, other: Amount) -> Amount:
        rows, size = self.rows + other.rows, self.bytes + other.bytes
        return Amount(self.segments + other.segments, rows, size, self.checkpoints + other.checkpoints)

    def __sub__(self, other: Amount) -> Amount:
        return self + Amount(-other.segments, -other.rows, -other.bytes, -other.checkpoints)

    def __str__(self) -> str:
        if self == Amount():
            return "nothing yet"
        segments = f"{counted(self.segments, 'segment')} ({counted(self.rows, 'row')}, {counted(self.bytes, 'byte')})"
        return f"{segments} and {counted(self.checkpoints, 'superseded checkpoint')}"


@dataclass(frozen=True)
class Holder:
    """A view, snapshot or retention that needs old versions, and what it keeps from vacuum.

    `keeps` is what the next vacuum would remove in addition if this holder, those at the same CSN and all older ones
    let go: all that lies before the next holder. Only the oldest holder keeps its amount alone.
    """

    kind: str  # "view" | "snapshot" | "retention"
    name: str  # of the view; purpose and owner of the snapshot
    csn: int  # the state at this CSN is kept, and all later ones
    since: datetime  # time of the first commit that the holder keeps from being released
    keeps: Amount = Amount()
    age: timedelta = field(default=timedelta(0), compare=False)

    def __str__(self) -> str:
        """A sentence: which holder, since when, how much it keeps, and what to do."""
        return self.sentence(f"this keeps {self.keeps} from going")

    def sentence(self, keeps: str) -> str:
        """A sentence on the holder, with a clause on what it keeps."""
        since = f"{self.since:%Y-%m-%d %H:%M:%S} UTC"
        if self.kind == "view":
            refresh = f"REFRESH MATERIALIZED VIEW {self.name}, or drop it."
            return f"view {self.name} has tasks that wait since {since}; {keeps}. {refresh}"
        if self.kind == "snapshot":
            return f"the snapshot of a {self.name} is open since {since}; {keeps}. End it, or the process that owns it."
        return f"retention goes back to {since}; {keeps}. VACUUM RETAIN 0 HOURS gives it up."


def overdue(holders: Iterable[Holder], retention: timedelta) -> list[Holder]:
    """The holders that keep versions for longer than the retention, oldest first."""
    return [h for h in holders if h.kind != "retention" and h.age > retention]


def overdue_sentence(late: Sequence[Holder]) -> str:
    """A sentence on the oldest overdue holder and what all of them keep; empty if there is none."""
    if not late:
        return ""
    if len(late) == 1:
        return str(late[0])
    keeps = sum({h.csn: h.keeps for h in late}.values(), Amount())
    return late[0].sentence(f"this and {len(late) - 1} more, as status() lists, keep {keeps} from going")


# -- what is known of views ------------------------------------------------------------------------


@dataclass(frozen=True)
class Measures:
    """Measurements of a view within the last hours (`WINDOW`, or since it was created)."""

    hours: float = 0.0
    updates: int = 0  # commits to tables that the view reads
    rows: float = 0.0  # delta rows of such a commit, on average
    uses: int = 0  # by queries, ever
    queries_per_hour: float | None = None  # None: not known yet
    jobs: int = 0
    seconds: float = 0.0  # that a job took, on average

    @property
    def updates_per_hour(self) -> float:
        return self.updates / self.hours if self.hours else 0.0


@dataclass(frozen=True)
class ViewReport:
    """One view as the catalog describes it."""

    view: Relation
    sources: tuple[Relation, ...]  # relations that its definition names
    frontier: int
    eager: bool
    backlog: Backlog | None  # None: nothing is pending
    in_progress: bool
    error: str | None  # of the newest job, if that failed
    measures: Measures
    deferral: Deferral | None = None  # of a deferred view


@dataclass(frozen=True)
class Reports:
    """Reads reports from a catalog; writes nothing."""

    catalog: Catalog

    def holders(self, retention: timedelta) -> tuple[Holder, ...]:
        """All holders of what vacuum with this retention would remove otherwise, oldest first.

        A view without tasks is no holder: vacuum moves its frontier.
        """
        with self.catalog.database.read() as c:
            clock, now = self.catalog.database.clock(c), self.catalog.database.now(c)
            superseded = now - max(retention // _MICROSECOND, 0)
            retained = clock.csn if retention <= timedelta(0) else last_csn(c, superseded)
            kept = Holder("retention", "retention", retained, _moment(superseded), age=max(retention, timedelta(0)))
            found = [*_views(c, now), *_snapshots(c, clock.csn, now), kept]
            found = [replace(h, csn=max(h.csn, clock.horizon)) for h in found]
            measured = _measured(found, _stocks(c, superseded), clock.csn, superseded, now)
        return tuple(h for h in measured if h.kind != "retention" or h.csn < clock.csn or h.keeps != Amount())

    def views(self) -> list[ViewReport]:
        """All views, by name."""
        views = ViewCatalog(self.catalog)
        relations = {r.id: r for r in self.catalog.relations()}
        backlogs, at_work, uses = {b.view_id: b for b in views.backlogs()}, views.in_progress(), views.uses()
        with self.catalog.database.read() as c:
            now = self.catalog.database.now(c)
            since = now - WINDOW // _MICROSECOND
            places, errors, deferred = _places(c), _last_errors(c), deferrals(c)
            updates, jobs = _updates(c, since), _jobs(c, since)
        found = []
        for id_, view in relations.items():
            if (place := places.get(id_)) is None:
                continue  # it is no view, or was dropped meanwhile
            sources = tuple(relations[i] for i in source_ids(view).values() if i in relations)
            begun = max(since, place.created_at)
            measures = _measures(now, begun, updates.get(id_), uses.get(id_), jobs.get(id_))
            state = (place.frontier, bool(place.eager), backlogs.get(id_), id_ in at_work, errors.get(id_))
            found.append(ViewReport(view, sources, *state, measures, deferred.get(id_)))
        return found


# -- holders, piece by piece -----------------------------------------------------------------------


def _views(c: sa.Connection, now: int) -> list[Holder]:
    """A holder for each view with tasks: from its frontier on, since its oldest task."""
    r, f, oldest = t.relations.c, t.frontiers.c, sa.func.min(t.commits.c.committed_at)
    query = beyond_frontiers(r.name, readable_csn(), oldest).join(t.relations, r.id == t.inputs.c.view_id)
    found = c.execute(query.group_by(r.name, f.csn, f.stmtsn))
    return [_holder("view", name, csn, since, now) for name, csn, since in found]


def _snapshots(c: sa.Connection, newest: int, now: int) -> list[Holder]:
    """A holder for each open snapshot older than the newest commit.

    The catalog stores no time of snapshots: `since` is the first commit of a transaction that began later.
    """
    s, r = t.snapshots.c, t.commits.c
    later = sa.select(r.committed_at).where(r.csn > s.csn, r.txsn >= s.txsn).order_by(r.csn, r.relation_id).limit(1)
    query = sa.select(s.purpose, s.owner, s.csn, later.correlate(t.snapshots).scalar_subquery().label("since"))
    found = c.execute(query.where(s.csn < newest, s.expires_at >= now).order_by(s.csn, s.id))
    return [
        _holder("snapshot", f"{row.purpose} of {_process(row.owner)}", row.csn, row.since or now, now) for row in found
    ]


def _process(owner: str) -> str:
    """The host and process id of an owner, without the part that distinguishes two openings of one process."""
    return owner.rpartition(":")[0] or owner


def _holder(kind: str, name: str, csn: int, since: int, now: int) -> Holder:
    return Holder(kind, name, csn, _moment(since), age=max(now - since, 0) * _MICROSECOND)


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + micros * _MICROSECOND


@dataclass(frozen=True)
class _MainVersion:
    """A version of main, and the segments that it folded since the version before it."""

    csn: int
    created_at: int
    folded: Amount


@dataclass(frozen=True)
class _Stock:
    """The checkpoints and segments that are stored of one relation."""

    dropped_csn: int | None
    checkpoints: tuple[_MainVersion, ...]
    unfolded: Amount
    shown: tuple[tuple[int, int], ...] = ()  # CSNs that a deferred view shows or showed, and until when

    def released(self, horizon: int, superseded: int) -> Amount:
        """What vacuum removes at a horizon (`Catalog.expire`): all that a checkpoint at or before it replaces.

        Only checkpoints made up to the time `superseded` count, and what a deferred view has shown after it is kept.
        """
        if self.dropped_csn is not None and self.dropped_csn <= horizon:
            return sum((p.folded for p in self.checkpoints), self.unfolded) + Amount(checkpoints=len(self.checkpoints))
        needed = min([horizon, *(csn for csn, until in self.shown if until > superseded)])
        last = [p.csn for p in self.checkpoints if p.csn <= needed and p.created_at <= superseded]
        gone = [p.folded for p in self.checkpoints if last and p.csn <= last[-1]]
        return sum(gone, Amount(checkpoints=max(len(gone) - 1, 0)))


def _stocks(c: sa.Connection, superseded: int) -> list[_Stock]:
    """The checkpoints and segments of each relation; segments are counted at the first checkpoint that folded them."""
    m, s, r = t.mains.c, t.segments.c, t.relations.c
    first = sa.select(sa.func.min(m.csn)).where(m.relation_id == s.relation_id, m.csn >= s.csn)
    folded = first.correlate(t.segments).scalar_subquery().label("folded")
    each = sa.select(s.relation_id, folded, s.rows, s.bytes).subquery().c
    sums = sa.select(
        each.relation_id, each.folded, sa.func.count(), sa.func.sum(each.rows), sa.func.sum(each.bytes)
    ).group_by(each.relation_id, each.folded)
    amounts = {(i, at): Amount(int(n), int(rows), int(size)) for i, at, n, rows, size in c.execute(sums)}
    checkpoints: dict[int, list[_MainVersion]] = {}
    for row in c.execute(sa.select(m.relation_id, m.csn, m.created_at).order_by(m.csn)):
        folds = amounts.get((row.relation_id, row.csn), Amount())
        checkpoints.setdefault(row.relation_id, []).append(_MainVersion(row.csn, row.created_at, folds))
    shown: dict[int, list[tuple[int, int]]] = {}
    for csn, until, view_id in shown_csns(c, since=superseded):
        shown.setdefault(view_id, []).append((csn, until))
    return [
        _Stock(dropped, tuple(checkpoints.get(id_, ())), amounts.get((id_, None), Amount()), tuple(shown.get(id_, ())))
        for id_, dropped in c.execute(sa.select(r.id, r.dropped_csn))
    ]


def _measured(
    holders: Sequence[Holder], stocks: Sequence[_Stock], newest: int, superseded: int, now: int
) -> list[Holder]:
    """Holders by CSN with what each keeps: what vacuum removes at the next holder's CSN and not at its own.

    Retention keeps recently replaced versions as well; holders that come after retention are measured without those.
    """
    ordered = sorted(holders, key=lambda h: (h.csn, h.since, h.kind, h.name))
    retained = next(h.csn for h in ordered if h.kind == "retention")
    places = sorted({h.csn for h in ordered})
    keeps = {}
    for csn, following in zip(places, [*places[1:], newest], strict=True):
        before = _released(stocks, csn, superseded if csn <= retained else now)
        keeps[csn] = _released(stocks, following, superseded if csn < retained else now) - before
    return [replace(h, keeps=keeps[h.csn]) for h in ordered]


def _released(stocks: Sequence[_Stock], horizon: int, superseded: int) -> Amount:
    return sum((stock.released(horizon, superseded) for stock in stocks), Amount())


# -- views, piece by piece -------------------------------------------------------------------------


def _places(c: sa.Connection) -> dict[int, sa.Row[Any]]:
    """The frontier, eagerness and time of creation of each view, by id."""
    f, r, k = t.frontiers.c, t.relations.c, t.commits.c
    created = sa.func.coalesce(k.committed_at, 0).label("created_at")
    query = (
        sa.select(f.view_id, readable_csn().label("frontier"), f.eager, created)
        .join_from(t.frontiers, t.relations, r.id == f.view_id)
        .join(t.commits, sa.and_(k.relation_id == r.id, k.csn == r.created_csn), isouter=True)
    )
    return {row.view_id: row for row in c.execute(query)}


def _last_errors(c: sa.Connection) -> dict[int, str]:
    """Errors of views whose newest job failed, by view id; a job that was cancelled to give way has not failed."""
    j = t.jobs.c
    ended = sa.and_(j.kind.in_(MAINTAINED), j.report.not_like('%"strategy": "cancelled"%'))
    newest = sa.select(sa.func.max(j.id)).where(ended).group_by(j.relation_id)
    query = sa.select(j.relation_id, j.error).where(j.id.in_(newest), j.error.is_not(None))
    return {row.relation_id: row.error for row in c.execute(query)}


def _updates(c: sa.Connection, since: int) -> dict[int, tuple[int, int]]:
    """The commits to each view's tables after a time and after its creation, and their rows, by view id."""
    i, r, v = t.inputs.c, t.commits.c, t.relations.c
    query = (
        sa.select(i.view_id, sa.func.count(r.csn.distinct()), sa.func.sum(r.rows))
        .join_from(t.inputs, t.relations, v.id == i.view_id)
        .join(t.commits, r.relation_id == i.relation_id)
        .where(r.kind.in_(CHANGES), r.committed_at > since, r.csn > v.created_csn)
        .group_by(i.view_id)
    )
    return {view_id: (int(commits), int(rows)) for view_id, commits, rows in c.execute(query)}


def _jobs(c: sa.Connection, since: int) -> dict[int, tuple[int, float]]:
    """The successful jobs of each view after a time, and the seconds that one took on average, by view id."""
    j = t.jobs.c
    query = (
        sa.select(j.relation_id, sa.func.count(), sa.func.avg(j.finished_at - j.started_at))
        .where(j.kind.in_(MAINTAINED), j.error.is_(None), j.finished_at > since)
        .group_by(j.relation_id)
    )
    return {view_id: (int(jobs), float(took) / 1e6) for view_id, jobs, took in c.execute(query)}


def _measures(
    now: int, since: int, updates: tuple[int, int] | None, use: UseHistory | None, jobs: tuple[int, float] | None
) -> Measures:
    commits, rows = updates or (0, 0)
    count, seconds = jobs or (0, 0.0)
    rate = None
    if use is not None and use.mean_gap:
        rate = _HOUR / max(use.mean_gap, now - use.last_at)  # falls while a view is not used
    hours = max(now - since, 0) / _HOUR
    return Measures(hours, commits, rows / commits if commits else 0.0, use.uses if use else 0, rate, count, seconds)
