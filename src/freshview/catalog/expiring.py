"""Removing versions that nothing needs: the catalog's part of vacuum, in a transaction that holds the clock."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from freshview.catalog import tables as t
from freshview.catalog.engine import Clock, Database
from freshview.catalog.selections import last_csn, readable_csn, shown_csns

HISTORY = 30 * 86_400 * 1_000_000  # µs for which jobs and commits are kept at least, and texts of queries at most
HISTORY_ROWS = 10_000  # so many jobs, and so many commits, are deleted in one transaction


def expire(
    c: Connection, database: Database, clock: Clock, retention: int, only: Collection[int] | None
) -> tuple[int, list[int]]:
    """Remove versions that no snapshot, task or retention (µs) needs, of all relations or `only` of these.

    Return the new horizon, and the ids of dropped relations whose files can go.
    """
    now = database.now(c)
    for table in (t.snapshots, t.leases):
        c.execute(table.delete().where(table.c.expires_at < now))
    pinned = c.execute(sa.select(sa.func.min(t.snapshots.c.csn))).scalar()
    frontier = c.execute(sa.select(sa.func.min(readable_csn()))).scalar()
    retained = clock.csn if retention <= 0 else last_csn(c, now - retention)
    horizon = max(clock.horizon, min(x for x in (retained, pinned, frontier) if x is not None))
    c.execute(t.clock.update().where(t.clock.c.id == 1).values(horizon=horizon))
    superseded = now - max(retention, 0)
    shown = _shown(c, superseded)
    stored = c.execute(sa.select(t.mains.c.relation_id).distinct()).scalars().all()
    for relation_id in (i for i in stored if only is None or i in only):
        _expire_relation(c, relation_id, min(horizon, shown.get(relation_id, horizon)), superseded)
    c.execute(t.queries.delete().where(t.queries.c.last_at < now - HISTORY))
    dropped = c.execute(sa.select(t.relations.c.id).where(t.relations.c.dropped_csn <= horizon)).scalars()
    gone = [i for i in dropped if only is None or i in only]
    for table in (t.schemas, t.segments, t.mains, t.statistics):
        c.execute(table.delete().where(table.c.relation_id.in_(gone)))
    return horizon, gone


def _expire_relation(c: Connection, relation_id: int, horizon: int, superseded_before: int) -> None:
    """Remove the mains of a relation before the last one that is needed, and the segments that it holds."""
    m = t.mains.c
    query = sa.select(sa.func.max(m.csn)).where(
        m.relation_id == relation_id, m.csn <= horizon, m.created_at <= superseded_before
    )
    keep = c.execute(query).scalar()
    if keep is not None:
        c.execute(t.mains.delete().where(m.relation_id == relation_id, m.csn < keep))
        s = t.segments.c
        c.execute(t.segments.delete().where(s.relation_id == relation_id, s.csn <= keep))


def _shown(c: Connection, since: int) -> dict[int, int]:
    """For each deferred view, the oldest state that it shows, or has shown since a time."""
    shown: dict[int, int] = {}
    for csn, _, view_id in shown_csns(c, since=since):
        shown[view_id] = min(csn, shown.get(view_id, csn))
    return shown


def forget_history(c: Connection, database: Database, clock: Clock, retention: int) -> bool:
    """Delete jobs and commits that are old and older than any readable state: only the history lists them. Return
    whether some are left: a transaction, which holds the clock, deletes a bounded number.

    A view is read between the ends of a job from the version where the job began, if no commit since changed what the
    view reads. So the commits of every job that reaches a readable state stay, however far back the job began. The
    oldest commits go first, and all rows of a CSN at once: before the oldest that is left none is known, after it all.
    """
    now = database.now(c)
    needed, before = min([clock.horizon, *_shown(c, now - max(retention, 0)).values()]), now - HISTORY
    j, r = t.jobs.c, t.commits.c
    begun = c.execute(sa.select(sa.func.min(j.from_csn)).where(j.to_csn >= needed, j.error.is_(None))).scalar()
    first = needed if begun is None else min(needed, begun + 1)
    jobs = sa.select(j.id).where(j.to_csn < needed, j.finished_at < before).order_by(j.id).limit(HISTORY_ROWS)
    deleted = c.execute(t.jobs.delete().where(j.id.in_(jobs))).rowcount
    csns = sa.select(r.csn).where(r.csn < first, r.committed_at < before).order_by(r.csn)
    lowest, end = (c.execute(csns.offset(skipped).limit(1)).scalar() for skipped in (0, HISTORY_ROWS))
    if lowest is not None and end is not None:
        first = max(end, lowest + 1)
    c.execute(t.commits.delete().where(r.csn < first, r.committed_at < before))
    return deleted == HISTORY_ROWS or end is not None
