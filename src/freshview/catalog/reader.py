"""Queries on the catalog. Each method reads one consistent state and returns frozen records."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from freshview.catalog import tables as t
from freshview.catalog.engine import Database
from freshview.catalog.positions import position_of, positions_of
from freshview.catalog.records import (
    DIMENSION,
    PENDING,
    Commit,
    Main,
    Relation,
    RelationState,
    Segment,
    files_from_json,
    since_replaced,
)
from freshview.catalog.selections import (
    FOUND_AT,
    FOUND_NOW,
    RELATIONS,
    STATE,
    is_kept,
    last_csn,
    main_of,
    newest_main,
    readable_csn,
    segments_of,
)
from freshview.errors import CorruptWarehouse, InvalidStatement, NotFound, SnapshotExpired
from freshview.relation.schema import Schema, fold, require_text


class CatalogReader:
    """The reading half of the catalog."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._schemas: dict[tuple[int, int], Schema] = {}  # immutable once written

    def snapshot(self) -> int:
        """The highest committed CSN."""
        with self.database.read() as c:
            return int(self.database.clock(c).csn)

    def warehouse_id(self) -> str:
        """The id by which this warehouse differs from all others."""
        with self.database.read() as c:
            return str(c.execute(sa.select(t.meta.c.value).where(t.meta.c.key == "warehouse_id")).scalar_one())

    def now(self) -> int:
        """The catalog's clock, in microseconds since the epoch."""
        with self.database.read() as c:
            return self.database.now(c)

    def horizon(self) -> int:
        """The lowest CSN that can still be read."""
        with self.database.read() as c:
            return int(self.database.clock(c).horizon)

    def csn_at(self, moment: int) -> int:
        """The last CSN committed at or before a time (microseconds since the epoch)."""
        with self.database.read() as c:
            csn = last_csn(c, moment)
            first = c.execute(sa.select(sa.func.min(t.commits.c.committed_at))).scalar() if csn == 0 else None
        if first is not None:
            cause = f"is before the oldest commit that is kept, which was made at {_utc(first)}"
            raise NotFound(f"time {_utc(moment)}", cause, "Give a later time, or a CSN.")
        return csn

    def moment(self, csn: int) -> int:
        """The time of the last commit at or before a CSN (microseconds since the epoch); 0 before the first."""
        query = sa.select(t.commits.c.committed_at).where(t.commits.c.csn <= csn).order_by(t.commits.c.csn.desc())
        with self.database.read() as c:
            return c.execute(query.limit(1)).scalar() or 0

    def relation(self, name: str, csn: int | None = None) -> Relation:
        """The relation of that name at a CSN (default: now)."""
        with self.database.read() as c:
            found = self._find(c, name, csn)
            if found is None:
                names = [fold(r.name) for r in self.relations_in(c, csn)]
                close = difflib.get_close_matches(fold(name), names, n=3)
                hint = f"Did you mean {', '.join(close)}?" if close else "SHOW TABLES lists what there is."
                raise NotFound(f"table or view {name}", "not found" if csn is None else f"not found at CSN {csn}", hint)
            return found

    def view(self, name: str) -> Relation:
        """The view of that name; InvalidStatement if the relation is not a view."""
        found = self.relation(name)
        if found.kind == DIMENSION:
            raise InvalidStatement(
                f"dimension view {found.name}",
                "it is kept from the changes of its source, and has no mode of its own",
                "Refresh it, or create a view over it.",
            )
        if found.kind != "view":
            raise InvalidStatement(f"{found.kind} {found.name}", "is not a materialized view", "Name a view.")
        return found

    def find(self, name: str, csn: int | None = None) -> Relation | None:
        """The relation of that name at a CSN (default: now), or None."""
        with self.database.read() as c:
            return self._find(c, name, csn)

    def relations(self, csn: int | None = None) -> list[Relation]:
        """All relations at a CSN (default: now), by name."""
        with self.database.read() as c:
            return self.relations_in(c, csn)

    def externals(self) -> list[Relation]:
        """The external tables, by name."""
        with self.database.read() as c:
            return self.relations_in(c, kind="external")

    def relation_by_id(self, relation_id: int) -> Relation | None:
        """The relation with an id; None if it was dropped."""
        return self.relations_by_id([relation_id]).get(relation_id)

    def relations_by_id(self, relation_ids: Iterable[int]) -> dict[int, Relation]:
        """The relations with these ids, in this order, without those that were dropped."""
        asked = list(dict.fromkeys(relation_ids))
        with self.database.read() as c:
            rows = {row.id: row for row in c.execute(RELATIONS, {"relations": asked}) if row.dropped_csn is None}
            return {id_: self._relation(c, rows[id_]) for id_ in asked if id_ in rows}

    def dropped(self) -> list[tuple[int, int]]:
        """Dropped relations that are not vacuumed yet: (relation id, CSN of the drop)."""
        with self.database.read() as c:
            query = sa.select(t.relations.c.id, t.relations.c.dropped_csn).where(t.relations.c.dropped_csn.is_not(None))
            return [(r.id, r.dropped_csn) for r in c.execute(query)]

    def state(self, relation: Relation, csn: int) -> RelationState:
        """The main ⊕ segments of a relation at a CSN, under its schema of that CSN."""
        with self.database.read() as c:
            if csn < relation.created_csn:
                raise NotFound(
                    f"{relation.name} at CSN {csn}",
                    f"it was created at CSN {relation.created_csn}",
                    "Ask for a later version.",
                )
            return self.state_in(c, relation, csn)

    def segments(self, relation_ids: Sequence[int], after: int, upto: int | None = None) -> list[Segment]:
        """Segments of these relations with after < csn ≤ upto, in commit order."""
        with self.database.read() as c:
            return segments_of(c, relation_ids, after, upto)

    def latest_main(self, relation_id: int) -> Main | None:
        """The newest checkpoint of a relation, or None."""
        with self.database.read() as c:
            return newest_main(c, relation_id)

    def position(self, relation_id: int) -> tuple[str, str] | None:
        """The source that feeds a table, and the position up to which its changes were taken."""
        with self.database.read() as c:
            return position_of(c, relation_id)

    def positions(self, relation_ids: Collection[int]) -> dict[int, str]:
        """The positions of the sources that feed these tables, of those that have one."""
        with self.database.read() as c:
            return positions_of(c, relation_ids)

    def mains(self, relation_id: int) -> list[Main]:
        """All Delta versions of a relation that the catalog still knows, oldest first."""
        with self.database.read() as c:
            query = sa.select(t.mains).where(t.mains.c.relation_id == relation_id).order_by(t.mains.c.csn)
            return [main_of(r) for r in c.execute(query)]

    def referenced_files(self, relation_id: int) -> set[str]:
        """Paths of all files that segments of a relation list."""
        with self.database.read() as c:
            s = t.segments.c
            query = sa.select(s.files).where(s.relation_id == relation_id, s.files.is_not(None))
            return {f.path for text in c.execute(query).scalars() for f in files_from_json(text)}

    def committed(self, txsn: int, relation_ids: Sequence[int]) -> int | None:
        """The CSN of a transaction that wrote these relations; None if it never committed."""
        query = sa.select(t.commits.c.csn).where(
            t.commits.c.txsn == txsn,
            t.commits.c.kind.in_(("data", "create")),
            t.commits.c.relation_id.in_(list(relation_ids)),
        )
        with self.database.read() as c:
            return c.execute(query.limit(1)).scalar()

    def complete_to(self, relation: Relation) -> int:
        """The CSN up to which no segment is added any more: a view may have seen its last commit only in part."""
        f = t.frontiers.c
        with self.database.read() as c:
            partial = sa.select(readable_csn()).where(f.view_id == relation.id, f.stmtsn > 0)
            csn = c.execute(partial).scalar() if relation.kind == "view" else None
            return PENDING - 1 if csn is None else int(csn)

    def commits(self, relation_id: int | None = None) -> list[Commit]:
        """Commits in order, of one relation or of all."""
        query = sa.select(t.commits).order_by(t.commits.c.csn, t.commits.c.relation_id)
        if relation_id is not None:
            query = query.where(t.commits.c.relation_id == relation_id)
        with self.database.read() as c:
            return [Commit(**r._mapping) for r in c.execute(query)]

    def backlog(self) -> dict[int, tuple[int, int, int]]:
        """The segments, rows and bytes of each relation that are not folded into main yet."""
        s, m = t.segments.c, t.mains.c
        newest = sa.select(m.relation_id, sa.func.max(m.csn).label("csn")).group_by(m.relation_id).subquery()
        query = (
            sa.select(s.relation_id, sa.func.count(), sa.func.sum(s.rows), sa.func.sum(s.bytes))
            .join_from(t.segments, newest, newest.c.relation_id == s.relation_id, isouter=True)
            .where(sa.or_(newest.c.csn.is_(None), s.csn > newest.c.csn), s.first_version.is_(None))
            .group_by(s.relation_id)
        )
        with self.database.read() as c:
            return {r[0]: (int(r[1]), int(r[2]), int(r[3])) for r in c.execute(query)}

    # -- inside a transaction that the caller holds --------------------------------------------

    def state_in(self, c: Connection, relation: Relation, csn: int) -> RelationState:
        """The main ⊕ segments of a relation at a CSN that is committed and not vacuumed."""
        row = c.execute(STATE, {"relation": relation.id, "at": csn}).one_or_none()
        if row is None:
            self.database.clock(c)  # raises its own error if the counter row is missing
            raise SnapshotExpired(
                f"{relation.name} at CSN {csn}", "it was dropped and vacuumed", "Read an existing table."
            )
        if csn < row.horizon and not is_kept(c, relation, csn):
            raise SnapshotExpired(
                f"{relation.name} at CSN {csn}",
                f"versions before CSN {row.horizon} have been vacuumed",
                "Read a newer version, or vacuum with a longer retention.",
            )
        if csn > row.last_csn:
            raise NotFound(
                f"{relation.name} at CSN {csn}",
                f"the last commit is CSN {row.last_csn}",
                "Ask for a committed version.",
            )
        then = (row.then_version, row.then_name) if row.then_version is not None else (row.schema_version, row.name)
        at = self._record(c, row, *then)
        main = main_of(row, "main_") if row.main_csn is not None else None
        main_schema = self._schema(c, relation.id, main.schema_version) if main else None
        segments = segments_of(c, [relation.id], main.csn if main else -1, csn)
        replaced = since_replaced(segments)
        if replaced is not None:
            return RelationState(at, csn, None, None, replaced)
        return RelationState(at, csn, main, main_schema, tuple(s for s in segments if s.versions is None))

    def relations_in(self, c: Connection, csn: int | None = None, kind: str | None = None) -> list[Relation]:
        """The relations at a CSN (default: now), of one kind or of all, by name."""
        r = t.relations.c
        query = sa.select(t.relations) if kind is None else sa.select(t.relations).where(r.kind == kind)
        if csn is None:
            query = query.where(r.dropped_csn.is_(None))
        else:
            query = query.where(r.created_csn <= csn, sa.or_(r.dropped_csn.is_(None), r.dropped_csn > csn))
        found = [self._relation(c, row, csn) for row in c.execute(query).all()]
        return sorted(found, key=lambda relation: fold(relation.name))

    def _find(self, c: Connection, name: str, csn: int | None) -> Relation | None:
        require_text(name)
        if csn is None:
            row = c.execute(FOUND_NOW, {"folded": fold(name)}).first()
            return self._relation(c, row) if row is not None else None
        row = c.execute(FOUND_AT, {"folded": fold(name), "csn": csn}).first()
        return self._record(c, row, row.then_version, row.then_name) if row is not None else None

    def _relation(self, c: Connection, row: Row[Any], csn: int | None = None) -> Relation:
        version, name = row.schema_version, row.name
        if csn is not None:
            s = t.schemas.c
            query = sa.select(s.version, s.name).where(s.relation_id == row.id, s.csn <= csn).order_by(s.version.desc())
            then = c.execute(query.limit(1)).one_or_none()
            version, name = (then.version, then.name) if then is not None else (version, name)
        return self._record(c, row, version, name)

    def _record(self, c: Connection, row: Row[Any], version: int, name: str) -> Relation:
        schema, properties, facts = self._schema(c, row.id, version), json.loads(row.properties), json.loads(row.facts)
        made = row.created_csn
        return Relation(row.id, name, row.kind, row.epoch, version, schema, made, row.location, properties, facts)

    def _schema(self, c: Connection, relation_id: int, version: int) -> Schema:
        known = self._schemas.get((relation_id, version))
        if known is not None:
            return known
        s = t.schemas.c
        body = c.execute(sa.select(s.body).where(s.relation_id == relation_id, s.version == version)).scalar()
        if body is None:
            raise CorruptWarehouse(
                f"relation {relation_id}", f"schema version {version} is missing", "Restore the catalog from a backup."
            )
        schema = Schema.from_json(body)
        self._schemas[relation_id, version] = schema
        return schema


def _utc(micros: int) -> str:
    """A time as text, in UTC."""
    return str(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros))
