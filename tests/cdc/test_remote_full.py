"""REFRESH MATERIALIZED VIEW … FULL of dimension views, against a real server: the way out where changes were lost.

The oracle is the server, which also computes the views where Spark would.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.cdc.remote_without_spark import computed_by_the_server, create, rows_of, types_of, without_spark
from tests.cdc.remote_world import World
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.errors import CaptureFailed, InvalidStatement
from freshview.refresh.evaluation import Evaluation
from freshview.views.dimensions import DimensionViews

pytestmark = pytest.mark.postgres

_LEFT = "SELECT x0.id AS k, x1.name AS n FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id"
_RIGHT = "SELECT x0.id AS k, x0.name AS n FROM r1 x0 WHERE x0.name IN ('x', 'y')"
_QUERIES = {"v": _LEFT, "w": _RIGHT}
_TECHNIQUES = ["tracking", "triggers", "triggers, cheap", "decoding", "decoding, full"]


class _Killed(BaseException):
    """The process ends here."""


class _Remote:
    """Two remote tables of one technique, and two views over them."""

    def __init__(self, folder: Path, url: str, technique: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Evaluation, "types", types_of)
        self.folder, self.monkeypatch = folder, monkeypatch
        self.world = World(random.Random(3), url, [technique, technique])
        with self.opened() as wh:
            self.world.name(wh)
            for name, query in _QUERIES.items():
                create(wh, self.world, name, query, monkeypatch)

    def opened(self) -> Warehouse:
        return freshview.connect(self.folder)

    def dimensions(self, wh: Warehouse) -> DimensionViews:
        computed_by_the_server(wh, self.world, self.monkeypatch)
        return without_spark(wh)

    def run(self, command: str) -> None:
        with psycopg.connect(self.world.url) as connection:
            connection.execute(command.replace("$", self.world.tables[1].name).encode())

    def check(self, wh: Warehouse) -> None:
        for name, query in _QUERIES.items():
            assert rows_of(wh, name) == self.world.answer(query), name


@pytest.fixture
def remote(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[_Remote]:
    remote = _Remote(tmp_path / "warehouse", database, request.param, monkeypatch)
    yield remote
    with remote.opened() as wh:  # slots are few
        for name in _QUERIES:
            wh.sql(f"DROP MATERIALIZED VIEW {name}")


_LOST = {
    "truncated": "TRUNCATE $",
    "a column more": "ALTER TABLE $ ADD COLUMN more text DEFAULT 'm'",
    "a column at another place": "ALTER TABLE $ DROP COLUMN name, ADD COLUMN name text DEFAULT 'x'",
    "another replica identity": "ALTER TABLE $ REPLICA IDENTITY USING INDEX {index}",
}


def _lose(remote: _Remote, how: str) -> None:
    table = remote.world.tables[1].name
    remote.run(_LOST[how].replace("{index}", f"{table.removeprefix('public.')}_pkey"))


@pytest.mark.parametrize("how", _LOST)
@pytest.mark.parametrize("remote", _TECHNIQUES, indirect=True)
def test_a_full_refresh_goes_on_where_no_cycle_can(remote: _Remote, how: str) -> None:
    """All views of the server, in one commit; afterwards cycles go on, in processes that were open before too."""
    world = remote.world
    with remote.opened() as wh, remote.opened() as other:
        dimensions, theirs = remote.dimensions(wh), without_spark(other)
        theirs.refresh(theirs.all())
        _lose(remote, how)
        world.change()
        for _ in range(2):
            with pytest.raises(CaptureFailed, match=r"REFRESH MATERIALIZED VIEW … FULL"):
                dimensions.refresh(dimensions.all())
        before = wh.status().csn
        wh.sql("REFRESH MATERIALIZED VIEW w FULL")
        assert wh.status().csn == before + 1
        remote.check(wh)
        world.change()
        dimensions.refresh(dimensions.all())
        remote.check(wh)
        world.change()
        for attempt in range(2):  # the first one may find that a table is not as it knew it
            try:
                theirs.refresh(theirs.all())
            except CaptureFailed:
                assert attempt == 0
        remote.check(other)


def _require_freed(remote: _Remote, wh: Warehouse, cause: str) -> None:
    """Law: no cycle succeeds for this cause; after a full refresh the views are right, and cycles go on."""
    dimensions = remote.dimensions(wh)
    remote.world.change()
    with pytest.raises(CaptureFailed, match=cause):
        dimensions.refresh(dimensions.all())
    wh.refresh("v", full=True)
    remote.check(wh)
    remote.world.change()
    dimensions.refresh(dimensions.all())
    remote.check(wh)


@pytest.mark.parametrize("remote", ["tracking", "triggers"], indirect=True)
def test_lost_triggers_are_installed_anew(remote: _Remote) -> None:
    with remote.opened() as wh:
        remote.run("ALTER TABLE $ DISABLE TRIGGER USER")
        _require_freed(remote, wh, "are missing or disabled")


@pytest.mark.parametrize("remote", ["decoding"], indirect=True)
def test_a_lost_slot_is_installed_anew(remote: _Remote) -> None:
    with remote.opened() as wh:
        slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = "
        remote.run(f"{slots} current_database() AND slot_name LIKE 'fv\\_%\\_%'")
        _require_freed(remote, wh, "it is gone")


@pytest.mark.parametrize("remote", ["tracking", "triggers", "decoding", "three audit columns"], indirect=True)
def test_a_full_refresh_that_dies_hides_no_change(remote: _Remote) -> None:
    """Its captures are new, and changes before them are not in them: positions of the old ones are refused."""
    for moment in ("polled", "committed"):
        with remote.opened() as wh:
            dimensions = remote.dimensions(wh)
            remote.world.change()

            def die(event: freshview.events.Event, at: str = moment) -> None:
                if event.name == f"remote.{at}":
                    raise _Killed

            wh.events.listen(die)
            with pytest.raises(_Killed):
                wh.sql("REFRESH MATERIALIZED VIEW v FULL")
        with remote.opened() as wh:
            dimensions = remote.dimensions(wh)
            remote.world.change()
            if moment == "polled" and "audit" not in remote.world.tables[0].technique:
                with pytest.raises(CaptureFailed):
                    dimensions.refresh(dimensions.all())
                wh.sql("REFRESH MATERIALIZED VIEW v FULL")
            else:
                dimensions.refresh(dimensions.all())
            remote.check(wh)


@pytest.mark.parametrize("remote", ["tracking"], indirect=True)
def test_a_full_refresh_of_an_unchanged_server_changes_no_row(remote: _Remote) -> None:
    with remote.opened() as wh:
        remote.dimensions(wh)
        assert wh.sql("REFRESH MATERIALIZED VIEW v FULL").rows == 0
        with remote.world.tables[0].connect() as connection:
            remote.world.tables[0].insert(connection, 50, 1, "x")
        assert wh.sql("REFRESH MATERIALIZED VIEW v FULL").rows == 1
        remote.check(wh)
        for how in ("PARTIAL", "PROPAGATE"):
            with pytest.raises(InvalidStatement, match=f"{how} is not for views of remote tables"):
                wh.sql(f"REFRESH MATERIALIZED VIEW v {how}")


@pytest.mark.parametrize("remote", ["tracking"], indirect=True)
def test_what_no_full_refresh_can_follow_is_refused(remote: _Remote) -> None:
    with remote.opened() as wh:
        remote.dimensions(wh)
        before = rows_of(wh, "w")
        remote.run("ALTER TABLE $ ALTER COLUMN name TYPE int USING 1")
        with pytest.raises(CaptureFailed, match=r"remote table r1: columns of it, or its key, have changed.*Drop"):
            wh.sql("REFRESH MATERIALIZED VIEW w FULL")
        remote.run("ALTER TABLE $ ALTER COLUMN name TYPE text USING 'x'")
        remote.run(f"ALTER TABLE $ DROP CONSTRAINT {remote.world.tables[1].name[7:]}_pkey, ADD PRIMARY KEY (id, name)")
        with pytest.raises(CaptureFailed, match=r"columns of it, or its key, have changed"):
            wh.sql("REFRESH MATERIALIZED VIEW w FULL")
        assert rows_of(wh, "w") == before


@pytest.mark.parametrize("remote", ["tracking"], indirect=True)
def test_a_table_that_no_view_reads_holds_up_nobody(remote: _Remote) -> None:
    remote.run("CREATE TABLE public.unread (id int PRIMARY KEY)")
    with remote.opened() as wh:
        wh.sql("CREATE REMOTE TABLE unread FROM s0.unread")
    remote.run("DROP TABLE public.unread")
    with remote.opened() as wh:
        dimensions = remote.dimensions(wh)
        remote.world.change()
        dimensions.refresh(dimensions.all())
        remote.check(wh)
        assert internals(wh).catalog.find("unread") is not None
