"""What the catalog knows for the optimiser: sizes, counts that were taken, how much tables change, and prices.

Counts are taken by Spark and kept with their CSN. They age: a count of a relation that has changed by more than a share
of its rows since is not returned, and is taken again when it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.expiring import HISTORY
from freshview.catalog.frontiers import CHANGES, MAINTAINED, RESETS
from freshview.catalog.reports import WINDOW
from freshview.catalog.view_reader import beyond_frontiers
from freshview.catalog.writer import Catalog
from freshview.relation.delta import DELETE, DELETE_KEY, INSERT, REPLACE, UPSERT, decode
from freshview.relation.schema import ACTION

AGED = 0.2  # the share of a relation's rows that may change before it is counted again
_SAMPLE = 8  # newest segments of a relation from which the share of deletes is estimated
_ROWS = ""  # in place of a column's name: the number of rows
_PRICES = "prices"
_STORED_PRICES = sa.select(t.meta.c.value).where(t.meta.c.key == _PRICES)


@dataclass(frozen=True)
class Counts:
    """What was counted of a relation and has not aged: its rows, and the distinct values of columns."""

    rows: int | None = None
    distinct: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Churn:
    """How a relation changes: what was written lately, how often views took it, and what no view has taken yet."""

    written: int = 0  # delta rows of the last hours, since the first view over the relation was created
    refreshes: int = 0  # jobs in that time of the view over it that had most of them
    pending: int = 0  # delta rows beyond the frontier of the view over it that is furthest behind
    deletes: float = 0.0  # the share of recent delta rows that delete, an upsert counting as half a delete

    @property
    def per_refresh(self) -> float:
        """The delta rows that a refresh usually finds; what is pending, if no refresh is known."""
        return self.written / self.refreshes if self.refreshes else float(self.pending)


@dataclass(frozen=True)
class StatisticsCatalog:
    """Reads and keeps what the optimiser has to know of relations."""

    catalog: Catalog

    # -- sizes and counts ------------------------------------------------------------------------------

    def rows(self) -> dict[int, int]:
        """The rows of each relation at most, by id: those of its newest main, and all delta rows since."""
        m = t.mains.c
        newest = sa.select(m.relation_id, sa.func.max(m.csn).label("csn")).group_by(m.relation_id).subquery()
        both = sa.and_(m.relation_id == newest.c.relation_id, m.csn == newest.c.csn)
        with self.catalog.database.read() as c:
            found = {i: int(n) for i, n in c.execute(sa.select(m.relation_id, m.rows).join(newest, both))}
        for relation_id, (_, rows, _) in self.catalog.backlog().items():
            found[relation_id] = found.get(relation_id, 0) + rows
        return found

    def counts(self) -> dict[int, Counts]:
        """What was counted of each relation and has not aged, by id."""
        with self.catalog.database.read() as c:
            taken = c.execute(sa.select(t.statistics)).all()
            changed = _changed_since(c, {(r.relation_id, r.csn) for r in taken})
            oldest = self.catalog.database.now(c) - HISTORY  # commits before it may be forgotten
        totals = {r.relation_id: r.counted for r in taken if r.name == _ROWS}
        found: dict[int, Counts] = {}
        for row in taken:
            since = changed[row.relation_id, row.csn]
            if row.taken_at < oldest or since is None or since > AGED * totals.get(row.relation_id, 0):
                continue
            known = found.get(row.relation_id, Counts())
            if row.name == _ROWS:
                found[row.relation_id] = Counts(row.counted, known.distinct)
            else:
                found[row.relation_id] = Counts(known.rows, {**known.distinct, row.name: row.counted})
        return found

    def keep(self, relation_id: int, csn: int, rows: int, distinct: Mapping[str, int]) -> None:
        """Store counts of a relation, taken at a CSN, in place of older ones."""
        s = t.statistics.c
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)  # two processes may count at once
            now = self.catalog.database.now(c)
            for name, counted in {_ROWS: rows, **distinct}.items():
                c.execute(t.statistics.delete().where(s.relation_id == relation_id, s.name == name))
                values = {"relation_id": relation_id, "name": name, "csn": csn, "counted": counted, "taken_at": now}
                c.execute(t.statistics.insert().values(**values))

    # -- changes -----------------------------------------------------------------------------------

    def churn(self, relation_ids: Collection[int]) -> dict[int, Churn]:
        """How these relations change, by id."""
        with self.catalog.database.read() as c:
            since = self.catalog.database.now(c) - int(WINDOW.total_seconds() * 1_000_000)
            written, pending, refreshes = _written(c, since), _pending(c), _refreshes(c, since)
            first = {i: int(csn) for i, csn in c.execute(_first_views())}
            deletes = {i: _deletes(c, i, first.get(i, 0)) for i in relation_ids if written.get(i) or pending.get(i)}
        return {
            i: Churn(written.get(i, 0), refreshes.get(i, 0), pending.get(i, 0), deletes.get(i, 0.0))
            for i in relation_ids
        }

    def changes_of_views(self) -> dict[int, float]:
        """The delta rows that a job of each view applied to it lately, on average, by id."""
        j = t.jobs.c
        with self.catalog.database.read() as c:
            since = self.catalog.database.now(c) - int(WINDOW.total_seconds() * 1_000_000)
            query = sa.select(j.relation_id, j.report).where(
                j.kind.in_(MAINTAINED), j.error.is_(None), j.finished_at > since
            )
            found: dict[int, list[int]] = {}
            for relation_id, report in c.execute(query):
                found.setdefault(relation_id, []).append(int(json.loads(report)["view_rows"]))
        return {i: sum(rows) / len(rows) for i, rows in found.items()}

    def refreshes(self, since: int) -> float:
        """How often views were refreshed after a time (µs): the jobs of the view over a table that had most of them.

        Jobs are known for 30 days; of a longer time, the rate of these is that of the whole.
        """
        with self.catalog.database.read() as c:
            now = self.catalog.database.now(c)
            known = max(since, now - HISTORY)
            jobs = max(_refreshes(c, known).values(), default=0)
        return jobs * max((now - since) / max(now - known, 1), 1.0)

    # -- prices ------------------------------------------------------------------------------------

    def prices(self) -> dict[str, Any] | None:
        """The prices that a calibration stored; None if there was none."""
        with self.catalog.database.read() as c:
            text = c.execute(_STORED_PRICES).scalar()
        return None if text is None else dict(json.loads(text))

    def write_nothing(self) -> None:
        """Make a durable write transaction that changes nothing: the time that it takes is a price."""
        m = t.meta.c
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            c.execute(t.meta.update().where(m.key == "schema_version").values(value=m.value))

    def set_prices(self, prices: Mapping[str, Any]) -> None:
        """Store the prices of a calibration."""
        with self.catalog.database.write() as c:
            self.catalog.database.lock_clock(c)
            c.execute(t.meta.delete().where(t.meta.c.key == _PRICES))
            c.execute(t.meta.insert().values(key=_PRICES, value=json.dumps(dict(prices))))


def _changed_since(c: sa.Connection, places: Collection[tuple[int, int]]) -> dict[tuple[int, int], int | None]:
    """The delta rows of relations after a CSN, by (relation id, CSN); None if no delta leads across: a history was
    rewritten, or a view was computed anew. The changes of a view are its segments."""
    r, s = t.commits.c, t.segments.c
    found: dict[tuple[int, int], int | None] = {}
    for relation_id, csn in places:
        resets = sa.select(r.csn).where(r.relation_id == relation_id, r.csn > csn, r.kind.in_(RESETS)).limit(1)
        later = sa.select(sa.func.sum(r.rows)).where(r.relation_id == relation_id, r.csn > csn, r.kind.in_(CHANGES))
        replaced = sa.select(s.csn).where(s.relation_id == relation_id, s.csn > csn, s.action == REPLACE).limit(1)
        stored = sa.select(sa.func.sum(s.rows)).where(s.relation_id == relation_id, s.csn > csn)
        if c.execute(resets).first() is not None or c.execute(replaced).first() is not None:
            found[relation_id, csn] = None
        else:
            found[relation_id, csn] = max(int(c.execute(q).scalar() or 0) for q in (later, stored))
    return found


def _written(c: sa.Connection, since: int) -> dict[int, int]:
    """The delta rows of each table after a time, and after the first view over it was created."""
    r, first = t.commits.c, _first_views().subquery()
    query = (
        sa.select(r.relation_id, sa.func.sum(r.rows))
        .join_from(t.commits, first, first.c.relation_id == r.relation_id)
        .where(r.csn > first.c.csn, r.committed_at > since, r.kind.in_(CHANGES))
        .group_by(r.relation_id)
    )
    return {relation_id: int(rows) for relation_id, rows in c.execute(query)}


def _first_views() -> sa.Select[Any]:
    """The query for the CSN at which the first view over each relation was created."""
    i, v = t.inputs.c, t.relations.c
    query = sa.select(i.relation_id, sa.func.min(v.created_csn).label("csn"))
    return query.join_from(t.inputs, t.relations, v.id == i.view_id).group_by(i.relation_id)


def _pending(c: sa.Connection) -> dict[int, int]:
    """The delta rows of each table beyond the frontier of the view that is furthest behind."""
    r, i = t.commits.c, t.inputs.c
    query = beyond_frontiers(i.view_id, r.relation_id, sa.func.sum(r.rows)).group_by(i.view_id, r.relation_id)
    found: dict[int, int] = {}
    for _, relation_id, rows in c.execute(query):
        found[relation_id] = max(found.get(relation_id, 0), int(rows))
    return found


def _refreshes(c: sa.Connection, since: int) -> dict[int, int]:
    """The jobs after a time of the view over each table that had most of them."""
    i, j = t.inputs.c, t.jobs.c
    query = (
        sa.select(i.relation_id, i.view_id, sa.func.count())
        .join_from(t.inputs, t.jobs, j.relation_id == i.view_id)
        .where(j.kind.in_(MAINTAINED), j.error.is_(None), j.finished_at > since)
        .group_by(i.relation_id, i.view_id)
    )
    found: dict[int, int] = {}
    for relation_id, _, jobs in c.execute(query):
        found[relation_id] = max(found.get(relation_id, 0), int(jobs))
    return found


def _deletes(c: sa.Connection, relation_id: int, after: int) -> float:
    """The share of a relation's newest delta rows, after a CSN, that delete; half of those that cannot be seen are
    taken to."""
    s = t.segments.c
    query = sa.select(s.rows, s.action, s.payload).where(s.relation_id == relation_id, s.csn > after)
    rows = deleted = 0.0
    for row in c.execute(query.order_by(s.csn.desc(), s.seq.desc()).limit(_SAMPLE)):
        rows += row.rows
        deleted += _deleting(row.rows, row.action, row.payload)
    return deleted / rows if rows else 0.5


def _deleting(rows: int, action: int | None, payload: bytes | None) -> float:
    """The delta rows of a segment that delete."""
    if action is not None:
        return 0.0 if action in (INSERT, REPLACE) else float(rows)
    if payload is None:
        return rows / 2
    actions = decode(payload, "segment").column(ACTION)
    share = {DELETE: 1.0, DELETE_KEY: 1.0, UPSERT: 0.5}
    return float(sum(share.get(v["values"], 0.0) * v["counts"] for v in pc.value_counts(actions).to_pylist()))
