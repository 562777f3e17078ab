"""The catalog's schema version and the steps from each version to the next."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from freshview.catalog import tables as t
from freshview.catalog.engine import Database
from freshview.errors import CorruptWarehouse

Migration = Callable[[Connection], None]


def _create(connection: Connection) -> None:
    t.metadata.create_all(connection)
    connection.execute(t.clock.insert().values(id=1, csn=0, txsn=0, committed_at=0, horizon=0))
    connection.execute(t.meta.insert().values(key="warehouse_id", value=uuid.uuid4().hex))
    connection.execute(t.meta.insert().values(key="schema_version", value="0"))


def _add_uses_and_versions(connection: Connection) -> None:
    """Add uses of views, and an index for a view's versions; a new catalog has both from its first step."""
    t.uses.create(connection, checkfirst=True)
    for index in t.jobs.indexes:
        index.create(connection, checkfirst=True)


def _add_eager(connection: Connection) -> None:
    """Add the flag of views that are maintained inside the commits that they depend on."""
    _add_to_frontiers(connection, "eager INTEGER NOT NULL DEFAULT 0")


def _add_deferred(connection: Connection) -> None:
    """Add the CSN that deferred views show, and the times of their last runs."""
    for name in ("shown", "propagated_at", "refreshed_at"):
        _add_to_frontiers(connection, f"{name} BIGINT")


def _add_lower_views(connection: Connection) -> None:
    """Add lower views to the inputs of views: a lower view may be computed anew."""
    r, i = t.relations.c, t.inputs.c
    views = sa.select(r.id, r.properties).where(r.kind == "view", r.dropped_csn.is_(None)).order_by(r.id)
    named = {row.id: json.loads(json.loads(row.properties)["sources"]) for row in connection.execute(views)}
    sources = {view_id: [entry["id"] for entry in entries.values()] for view_id, entries in named.items()}
    below: dict[int, set[int]] = {}
    for view_id, read in sources.items():  # a view is younger than what it reads
        lower = [source for source in read if source in sources]
        below[view_id] = {*lower, *(deeper for source in lower for deeper in below[source])}
        there = set(connection.execute(sa.select(i.relation_id).where(i.view_id == view_id)).scalars())
        for relation_id in sorted(below[view_id] - there):
            connection.execute(t.inputs.insert().values(view_id=view_id, relation_id=relation_id))


def _add_facts(connection: Connection) -> None:
    """Move what Freshview stores of a view out of the properties that its user gave it."""
    _add_column(connection, t.relations.name, "facts TEXT NOT NULL DEFAULT '{}'")
    r = t.relations.c
    views = connection.execute(sa.select(r.id, r.properties).where(r.kind == "view")).all()
    for row in views:
        known = json.loads(row.properties)
        facts = {key: known.pop(key) for key in _FACTS if key in known}
        values = {"properties": json.dumps(known), "facts": json.dumps(facts)}
        connection.execute(t.relations.update().where(r.id == row.id).values(**values))


def _add_activity(connection: Connection) -> None:
    """Add the table in which processes announce their foreground work."""
    t.activity.create(connection, checkfirst=True)


def _add_view_keys(_: Connection) -> None:
    """Let views have keys, in which NULL is a value. Views that are there stay bags.

    A program without this step would lay keyed views over as if their keys had no NULL: it has to refuse the catalog.
    """


def _allow_replacement(_: Connection) -> None:
    """Nothing to add. A segment may replace all rows of a view: an older program would take its rows for inserted."""


_FACTS = ("definition", "sources", "settings", "columns", "reading")


def _add_costs(connection: Connection) -> None:
    """Add what was learnt of the costs of views, beside the frontiers that each job moves."""
    _add_to_frontiers(connection, "costs TEXT NOT NULL DEFAULT '{}'")


def _add_positions(connection: Connection) -> None:
    """Add the positions of sources that feed tables."""
    t.positions.create(connection, checkfirst=True)


def _add_flows(connection: Connection) -> None:
    """Add sources, the flows that feed tables from them, and the events that flows set aside."""
    for table in (t.sources, t.flows, t.quarantine):
        table.create(connection, checkfirst=True)


def _add_statistics(connection: Connection) -> None:
    """Add the counts by which the optimiser estimates sizes."""
    t.statistics.create(connection, checkfirst=True)


def _allow_remote_tables(_: Connection) -> None:
    """Nothing to add. A relation may be a remote table: an older program would take it for an empty table."""


def _add_queries(connection: Connection) -> None:
    """Add the texts of queries that ran."""
    t.queries.create(connection, checkfirst=True)


def _add_to_frontiers(connection: Connection, column: str) -> None:
    _add_column(connection, t.frontiers.name, column)


def _add_column(connection: Connection, table: str, column: str) -> None:
    """Add a column, unless the catalog is new and has it from its first step."""
    known = {c["name"] for c in sa.inspect(connection).get_columns(table)}
    if column.split()[0] not in known:
        connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {column}"))


# Migration n takes a catalog from version n to n + 1. Migrations are only ever appended.
STEPS: tuple[Migration, ...] = (
    _create,
    _add_uses_and_versions,
    _add_eager,
    _add_deferred,
    _add_lower_views,
    _add_facts,
    _add_activity,
    _add_costs,
    _add_view_keys,
    _add_positions,
    _allow_replacement,
    _add_flows,
    _add_statistics,
    _allow_remote_tables,
    _add_queries,
)


def migrate(database: Database, steps: tuple[Migration, ...] = STEPS) -> str:
    """Bring the catalog to today's version, all steps or none; return the warehouse's id."""
    try:
        return _migrate(database, steps)
    except BaseException:
        database.release()  # a caller that could not open the catalog does not close it either
        raise


def _migrate(database: Database, steps: tuple[Migration, ...]) -> str:
    with database.read() as connection:
        if _version(connection) == len(steps):
            return _warehouse_id(connection, database)
    with database.write() as connection:
        if not database.is_sqlite:  # two first-time openers must not both create
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7203141592)"))
        version = _version(connection)
        if version > len(steps):
            raise CorruptWarehouse(
                f"catalog {database}",
                f"has schema version {version}, this Freshview knows up to {len(steps)}",
                "Upgrade Freshview; an older one cannot read it.",
            )
        for step in steps[version:]:
            step(connection)
        connection.execute(t.meta.update().where(t.meta.c.key == "schema_version").values(value=str(len(steps))))
        return _warehouse_id(connection, database)


def _version(connection: Connection) -> int:
    if not sa.inspect(connection).has_table(t.meta.name):
        return 0
    value = connection.execute(sa.select(t.meta.c.value).where(t.meta.c.key == "schema_version")).scalar()
    if value is None or not value.isdigit():
        raise CorruptWarehouse("catalog", f"schema version is {value!r}", "Restore the catalog from a backup.")
    return int(value)


def _warehouse_id(connection: Connection, database: Database) -> str:
    value = connection.execute(sa.select(t.meta.c.value).where(t.meta.c.key == "warehouse_id")).scalar()
    if value is None:
        raise CorruptWarehouse(f"catalog {database}", "it has no warehouse id", "Restore the catalog from a backup.")
    return str(value)


_FOLDER = "folder_marked"


def is_empty(database: Database) -> bool:
    """Whether this database has no catalog yet."""
    with database.read() as connection:
        return _version(connection) == 0


def has_folder(database: Database) -> bool:
    """Whether a folder has been marked as this catalog's."""
    with database.read() as connection:
        if _version(connection) == 0:
            return False
        return connection.execute(sa.select(t.meta.c.value).where(t.meta.c.key == _FOLDER)).first() is not None


def set_folder(database: Database) -> None:
    """Store that a folder has been marked as this catalog's."""
    with database.write() as connection:
        database.lock_clock(connection)
        if connection.execute(sa.select(t.meta.c.key).where(t.meta.c.key == _FOLDER)).first() is None:
            connection.execute(t.meta.insert().values(key=_FOLDER, value="yes"))
