"""Questions to the catalog in a database transaction that the caller holds: functions over its connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from freshview.catalog import tables as t
from freshview.catalog.records import PENDING, Main, Relation, Segment, files_from_json

APPLIED = "refresh"  # jobs that moved the shown CSN
SHOWN = 2**62  # in place of the time until which a deferred view showed a CSN: it does so now


def last_csn(c: Connection, moment: int) -> int:
    """The last CSN committed at or before a time (microseconds since the epoch); 0 before the first."""
    query = sa.select(sa.func.max(t.commits.c.csn)).where(t.commits.c.committed_at <= moment)
    return c.execute(query).scalar() or 0


def shown_csns(c: Connection, view_id: int | None = None, since: int = 0) -> list[tuple[int, int, int]]:
    """What deferred views, or one, have shown since a time: rows (CSN, until when it was shown or SHOWN, view id)."""
    f, j = t.frontiers.c, t.jobs.c
    now = sa.select(f.shown, sa.literal(SHOWN, sa.BigInteger), f.view_id).where(f.shown.is_not(None))
    before = sa.select(j.from_csn, j.finished_at, j.relation_id).where(j.kind == APPLIED, j.finished_at > since)
    if view_id is not None:
        now, before = now.where(f.view_id == view_id), before.where(j.relation_id == view_id)
    return [(csn, until, id_) for csn, until, id_ in c.execute(sa.union_all(now, before))]


def _stored_from(c: Connection, relation_id: int) -> int:
    """The lowest CSN at which no row of a relation was vacuumed.

    Vacuum keeps one version of main as the oldest, and no segment at or before it.
    """
    m, s = t.mains.c, t.segments.c
    oldest = c.execute(sa.select(sa.func.min(m.csn)).where(m.relation_id == relation_id)).scalar()
    if oldest is None:
        return 0
    folded = sa.select(s.csn).where(s.relation_id == relation_id, s.csn <= oldest).limit(1)
    return oldest if c.execute(folded).first() is None else 0


def relation_row(c: Connection, relation_id: int) -> Row[Any] | None:
    """The catalog's row of a relation, dropped or not; None once it was vacuumed."""
    return c.execute(RELATIONS, {"relations": [relation_id]}).one_or_none()


def newest_main(c: Connection, relation_id: int) -> Main | None:
    """The newest checkpoint of a relation, or None."""
    row = c.execute(_NEWEST_MAIN, {"relation": relation_id}).one_or_none()
    return main_of(row) if row is not None else None


def segments_of(c: Connection, relation_ids: Iterable[int], after: int, upto: int | None = None) -> list[Segment]:
    """Segments of these relations with after < csn ≤ upto, in commit order."""
    asked = {"relations": list(relation_ids), "after": after, "upto": PENDING if upto is None else upto}
    return [_segment(r) for r in c.execute(_SEGMENTS, asked)]


def _found_at() -> sa.Select[Any]:
    """The query for the relation that had a name at a CSN: names change as well."""
    r, s, versions = t.relations.c, t.schemas.c, t.schemas.alias()
    csn = sa.bindparam("csn", type_=sa.BigInteger)
    newest = sa.select(sa.func.max(versions.c.version)).where(versions.c.relation_id == r.id, versions.c.csn <= csn)
    then = sa.and_(s.relation_id == r.id, s.version == newest.correlate(t.relations).scalar_subquery())
    return (
        sa.select(t.relations, s.version.label("then_version"), s.name.label("then_name"))
        .join_from(t.relations, t.schemas, then)
        .where(r.created_csn <= csn, sa.or_(r.dropped_csn.is_(None), r.dropped_csn > csn))
        .where(s.folded == sa.bindparam("folded"))
        .order_by(r.id.desc())
    )


def _state() -> sa.Select[Any]:
    """The query for a relation with its name and schema, and its newest checkpoint, at a CSN."""
    r, s, m, versions, mains = t.relations.c, t.schemas.c, t.mains.c, t.schemas.alias().c, t.mains.alias().c
    id_, csn = sa.bindparam("relation", type_=sa.BigInteger), sa.bindparam("at", type_=sa.BigInteger)
    version = sa.select(sa.func.max(versions.version)).where(versions.relation_id == id_, versions.csn <= csn)
    newest = sa.select(sa.func.max(mains.csn)).where(mains.relation_id == id_, mains.csn <= csn)
    return (
        sa.select(
            t.relations,
            t.clock.c.csn.label("last_csn"),
            t.clock.c.horizon,
            s.version.label("then_version"),
            s.name.label("then_name"),
            *(m[name].label(f"main_{name}") for name in _MAIN),
        )
        .join_from(t.relations, t.clock, t.clock.c.id == 1)
        .outerjoin(t.schemas, sa.and_(s.relation_id == r.id, s.version == version.scalar_subquery()))
        .outerjoin(t.mains, sa.and_(m.relation_id == r.id, m.csn == newest.scalar_subquery()))
        .where(r.id == id_)
    )


# Built once: one query of a user asks them many times.
_MAIN = ("csn", "delta_version", "schema_version", "rows", "bytes", "fingerprint")  # fields of Main
STATE = _state()
_NEWEST_MAIN = (
    sa.select(t.mains).where(t.mains.c.relation_id == sa.bindparam("relation")).order_by(t.mains.c.csn.desc()).limit(1)
)
_SEGMENTS = (
    sa.select(t.segments)
    .where(
        t.segments.c.relation_id.in_(sa.bindparam("relations", expanding=True)),
        t.segments.c.csn > sa.bindparam("after"),
        t.segments.c.csn <= sa.bindparam("upto"),
    )
    .order_by(t.segments.c.csn, t.segments.c.relation_id, t.segments.c.seq)
)
RELATIONS = sa.select(t.relations).where(t.relations.c.id.in_(sa.bindparam("relations", expanding=True)))
FOUND_AT = _found_at()
FOUND_NOW = sa.select(t.relations).where(
    t.relations.c.folded == sa.bindparam("folded"), t.relations.c.dropped_csn.is_(None)
)


def readable_csn() -> sa.ColumnElement[int]:
    """`Frontier.readable` in SQL."""
    f = t.frontiers.c
    return sa.case((f.stmtsn > 0, f.csn - 1), else_=f.csn)


def main_of(row: Row[Any], prefix: str = "") -> Main:
    """The checkpoint that a row describes; its columns may have a prefix."""
    return Main(*(row._mapping[prefix + name] for name in _MAIN))


def _segment(row: Row[Any]) -> Segment:
    versions = (row.first_version, row.last_version) if row.first_version is not None else None
    counts = (row.rows, row.bytes, row.schema_version, row.stmtsn, row.action)
    return Segment(row.relation_id, row.csn, row.seq, *counts, row.payload, files_from_json(row.files), versions)


def is_kept(c: Connection, relation: Relation, csn: int) -> bool:
    """Can a relation be read at a CSN before the horizon? What a deferred view shows, and what came after, always
    can; a state that it showed before can until vacuum has removed it."""
    shown = shown_csns(c, relation.id)
    if any(csn >= at for at, until, _ in shown if until == SHOWN):
        return True
    return any(csn == at for at, *_ in shown) and csn >= _stored_from(c, relation.id)
