"""Schema versions of the catalog: an older one is migrated whole or not at all, a newer one is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from tests.catalog.helpers import contents
from tests.catalog.view_world import World
from tests.internals import internals

import freshview
from freshview.catalog import tables as t
from freshview.catalog.engine import Database, sqlite_url
from freshview.catalog.migrations import (
    STEPS,
    _add_costs,
    _add_facts,
    _add_lower_views,
    _add_queries,
    _add_view_keys,
    migrate,
)
from freshview.catalog.queries import KeptQuery, QueryCatalog
from freshview.catalog.records import Relation
from freshview.catalog.writer import Catalog
from freshview.errors import CorruptWarehouse


def _add_note(c: Connection) -> None:
    c.execute(sa.text("CREATE TABLE fv_note (text VARCHAR(20))"))
    c.execute(sa.text("INSERT INTO fv_note VALUES ('migrated')"))


def _add_another(c: Connection) -> None:
    c.execute(sa.text("ALTER TABLE fv_note ADD COLUMN number INTEGER"))


def _fail(c: Connection) -> None:
    c.execute(sa.text("CREATE TABLE fv_half_done (a INTEGER)"))
    raise ZeroDivisionError("a bug in a step")


@pytest.fixture
def database(tmp_path: Path, catalog_url: str | None) -> Iterator[Database]:
    database = Database(catalog_url or sqlite_url(tmp_path / "catalog.db"))
    yield database
    database.close()


def _version(database: Database) -> str | None:
    with database.read() as c:
        return c.execute(sa.select(t.meta.c.value).where(t.meta.c.key == "schema_version")).scalar()


def _tables(database: Database) -> set[str]:
    with database.read() as c:
        return set(sa.inspect(c).get_table_names())


def test_an_older_catalog_is_migrated_by_the_missing_steps(database: Database) -> None:
    warehouse_id = migrate(database)
    assert migrate(database) == warehouse_id
    assert migrate(database, (*STEPS, _add_note, _add_another)) == warehouse_id
    assert _version(database) == str(len(STEPS) + 2)
    with database.read() as c:
        assert c.execute(sa.text("SELECT text, number FROM fv_note")).all() == [("migrated", None)]


def test_views_of_an_older_catalog_learn_of_the_views_below_them(tmp_path: Path) -> None:
    """Law: a view is told of a view below it that is computed anew, also one from before there was such news."""
    world = World(tmp_path)
    p = world.process()
    a = p.table("a")
    low = p.view("low", a)
    mid = p.view("mid", low)
    high = p.view("high", mid, a)
    i = t.inputs.c
    with p.catalog.database.write() as c:
        c.execute(t.inputs.delete().where(i.relation_id != a.id))
        for view in (low, mid, high):
            _as_before_facts(c, view)
        c.execute(
            t.meta.update().where(t.meta.c.key == "schema_version").values(value=str(STEPS.index(_add_lower_views)))
        )
    migrate(p.catalog.database)
    assert {v.name: sorted(p.views.inputs(v)) for v in (low, mid, high)} == {
        "low": [a.id],
        "mid": [a.id, low.id],
        "high": [a.id, low.id, mid.id],
    }
    world.close()


def _as_before_facts(c: sa.Connection, view: Relation) -> None:
    """A view as older catalogs have it: what we know of it stands among its properties."""
    values = {"properties": json.dumps({**view.properties, **view.facts}), "facts": "{}"}
    c.execute(t.relations.update().where(t.relations.c.id == view.id).values(**values))


def test_what_we_know_of_views_leaves_the_properties_that_users_gave(tmp_path: Path) -> None:
    world = World(tmp_path)
    p = world.process()
    view = p.view("v", p.table("a"), deadline="06:00")
    with p.catalog.database.write() as c:
        _as_before_facts(c, view)
        c.execute(sa.text("ALTER TABLE fv_relations DROP COLUMN facts"))
        c.execute(t.meta.update().where(t.meta.c.key == "schema_version").values(value=str(STEPS.index(_add_facts))))
    migrate(p.catalog.database)
    assert p.catalog.relation("v") == view
    assert view.properties == {"deadline": "06:00"}
    assert set(view.facts) == {"sources", "columns"}
    world.close()


def test_views_of_an_older_catalog_have_learnt_nothing_of_their_costs_yet(tmp_path: Path) -> None:
    world = World(tmp_path)
    p = world.process()
    view = p.view("v", p.table("a"))
    with p.catalog.database.write() as c:
        c.execute(sa.text("ALTER TABLE fv_frontiers DROP COLUMN costs"))
        c.execute(t.meta.update().where(t.meta.c.key == "schema_version").values(value=str(STEPS.index(_add_costs))))
    migrate(p.catalog.database)
    assert p.views.factors(view) == {}
    world.close()


def test_an_older_catalog_keeps_texts_of_queries_from_then_on(database: Database) -> None:
    earlier = STEPS[: STEPS.index(_add_queries)]
    migrate(database, earlier)
    with database.write() as c:  # as that version made it
        c.execute(sa.text("DROP TABLE fv_queries"))
    migrate(database)
    queries = QueryCatalog(Catalog(database))
    assert queries.kept() == []
    queries.note({"SELECT 1": (1, 5)})
    assert queries.kept() == [KeptQuery("SELECT 1", 1, 5, 5)]


def test_a_step_that_fails_changes_nothing(database: Database) -> None:
    migrate(database)
    before = (_version(database), _tables(database))
    with pytest.raises(ZeroDivisionError):
        migrate(database, (*STEPS, _add_note, _fail))
    assert (_version(database), _tables(database)) == before
    migrate(database, (*STEPS, _add_note))


def test_a_failing_first_step_leaves_an_empty_database(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        migrate(database, (*STEPS, _fail))
    assert _tables(database) == set()


def test_a_program_that_does_not_know_keys_of_views_is_refused(database: Database) -> None:
    earlier = STEPS[: STEPS.index(_add_view_keys)]
    migrate(database, earlier)
    migrate(database, earlier)
    migrate(database)
    with pytest.raises(CorruptWarehouse, match="Upgrade Freshview"):
        migrate(database, earlier)


def test_a_newer_catalog_is_refused_with_both_versions(
    database: Database, tmp_path: Path, catalog_url: str | None
) -> None:
    migrate(database, (*STEPS, _add_note))
    tables = _tables(database)
    expected = f"has schema version {len(STEPS) + 1}, this Freshview knows up to {len(STEPS)}. Upgrade Freshview"
    with pytest.raises(CorruptWarehouse, match=expected):
        freshview.connect(tmp_path, catalog=catalog_url)
    assert _tables(database) == tables


@pytest.mark.parametrize("value", ["x", "-1", ""])
def test_an_unreadable_version_is_said_to_be_one(database: Database, value: str) -> None:
    migrate(database)
    with database.write() as c:
        c.execute(t.meta.update().where(t.meta.c.key == "schema_version").values(value=value))
    with pytest.raises(CorruptWarehouse, match="schema version"):
        migrate(database)


def test_data_survives_a_migration(tmp_path: Path, catalog_url: str | None) -> None:
    with freshview.connect(tmp_path, catalog=catalog_url) as wh:
        wh.sql("CREATE TABLE t (k INT, PRIMARY KEY (k))")
        with wh.transaction() as tx:
            tx.insert("t", [{"k": 1}])
        migrate(internals(wh).catalog.database, (*STEPS, _add_note))
        assert contents(wh, "t") == [{"k": 1}]
