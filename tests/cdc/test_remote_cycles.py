"""Cycles of dimension views without Spark: random worlds on a real server, random deaths, and the server as the oracle.

Only what the embedded engine is proven for stands in these views; the first rows of a view come from the server itself.
"""

from __future__ import annotations

import json
import random
import re
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.cdc.remote_without_spark import computed_by_the_server, create, rows_of, types_of, without_spark
from tests.cdc.remote_world import World
from tests.cdc.servers import TECHNIQUES
from tests.conftest import PostgresServer
from tests.effort import examples
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.catalog.flows import FlowCatalog
from freshview.cdc.dimension import RemoteNode
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.rules import propagate
from freshview.errors import CaptureFailed, InvalidStatement, QueryFailed
from freshview.refresh.evaluation import Evaluation
from freshview.sql.statements import Show
from freshview.views import cycles
from freshview.views.dimensions import DimensionViews
from freshview.warehouse.explain_dimension import explain_dimension
from freshview.warehouse.show import show

pytestmark = pytest.mark.postgres


class _Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("seed", range(examples(10)))
def test_views_equal_the_servers_answers_after_every_cycle_whatever_dies(
    seed: int, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    techniques = rng.sample(list(TECHNIQUES), 4)
    world = World(rng, database, techniques)
    monkeypatch.setattr(Evaluation, "types", types_of)
    queries = {f"v{i}": world.query(joins) for i, joins in enumerate([0, rng.randrange(1, 4), 5])}
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        for name, query in queries.items():
            create(wh, world, name, query, monkeypatch)
            world.change()
    for cycle in range(8):
        world.change()
        with freshview.connect(tmp_path / "warehouse") as wh:
            dimensions = without_spark(wh)
            death = rng.choice(["", "", "polled", "committed"])
            with monkeypatch.context() as patch:
                if death == "polled":
                    patch.setattr(dimensions.cycles, "_commit", _dies)
                elif death:
                    for kind in (PostgresTable, *PostgresTable.__subclasses__()):
                        patch.setattr(kind, "confirm", _dies)
                if death:
                    with pytest.raises(_Killed):
                        dimensions.refresh(dimensions.all())
                    continue
                dimensions.refresh(dimensions.all())
            for name, query in queries.items():
                assert rows_of(wh, name) == world.answer(query), (seed, cycle, name, techniques, query)


_QUERY = "SELECT x0.id AS k, x1.name AS n FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id WHERE x1.name IN ('x', 'y')"


@pytest.fixture
def world(database: str, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(Evaluation, "types", types_of)
    return World(random.Random(5), database, ["tracking", "triggers"])


def test_a_view_that_is_created_during_a_cycle_of_another_process_misses_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position of the new view is that of the old one, on an idle server: nothing but the turn tells them apart."""
    with freshview.connect(tmp_path / "warehouse") as wh, freshview.connect(tmp_path / "warehouse") as other:
        world.name(wh)
        create(wh, world, "v", _QUERY, monkeypatch)
        dimensions = without_spark(wh)
        polled, overtaken = dimensions.cycles._polled, threading.Event()

        def overtaken_polled(*given: Any) -> Any:
            if not overtaken.is_set():
                overtaken.set()
                create(other, world, "w", _QUERY, monkeypatch)
                with world.tables[0].connect() as connection:
                    world.tables[0].insert(connection, 50, 1, "x")
            return polled(*given)

        monkeypatch.setattr(dimensions.cycles, "_polled", overtaken_polled)
        dimensions.refresh(dimensions.all())
        for _ in range(3):
            assert rows_of(wh, "v") == rows_of(wh, "w") == world.answer(_QUERY)
            world.change()
            dimensions.refresh(dimensions.all())


def test_two_processes_take_each_change_once(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh, freshview.connect(tmp_path / "warehouse") as other:
        world.name(wh)
        create(wh, world, "v", _QUERY, monkeypatch)
        mine, theirs = without_spark(wh), without_spark(other)
        commit = mine.cycles._commit

        def overtaken(*given: Any, **options: Any) -> Any:
            theirs.refresh(theirs.all())
            return commit(*given, **options)

        monkeypatch.setattr(mine.cycles, "_commit", overtaken)
        for _ in range(5):
            world.change()
            mine.refresh(mine.all())
            assert rows_of(wh, "v") == world.answer(_QUERY)


def test_views_of_one_server_show_one_state_in_one_commit(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        for name in ("v", "w"):
            create(wh, world, name, _QUERY, monkeypatch)
        dimensions = without_spark(wh)
        with world.tables[0].connect() as connection:
            world.tables[0].insert(connection, 50, 1, "x")
        with world.tables[1].connect() as connection:
            world.tables[1].insert(connection, 1, 1, "x")
        before = wh.status().csn
        dimensions.refresh([internals(wh).catalog.relation("v")])
        assert wh.status().csn == before + 1
        assert rows_of(wh, "v") == rows_of(wh, "w") == world.answer(_QUERY)
        dimensions.refresh(dimensions.all())
        assert wh.status().csn == before + 1, "a cycle that finds nothing commits nothing"


@pytest.mark.parametrize("command", ["TRUNCATE $", "ALTER TABLE $ ALTER COLUMN ref TYPE bigint"])
def test_a_statement_that_empties_a_table_for_old_snapshots_waits_for_the_cycle(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """TRUNCATE and a rewrite are not versioned: a snapshot from before, which has not read the table yet, finds no row.

    The view would lose its rows, in a commit that the next cycle cannot take back.
    """
    left, right = world.tables
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        create(wh, world, "v", _QUERY, monkeypatch)
        dimensions = without_spark(wh)
        with left.connect() as connection:
            for key in range(5):
                left.insert(connection, key, key, "y")
        with right.connect() as connection:
            for key in range(5):
                right.insert(connection, key, key, "x")
        dimensions.refresh(dimensions.all())
        with left.connect() as connection:
            left.update(connection, 1, "z")
        expected = world.answer(_QUERY)
        begun: list[threading.Thread] = []
        poll_in = PostgresTable.poll_in

        def emptied(table: PostgresTable, *given: Any) -> Any:
            if table.name == left.name and not begun:
                begun.append(threading.Thread(target=_execute, args=(world.url, command.replace("$", right.name))))
                begun[0].start()
                begun[0].join(0.5)
            return poll_in(table, *given)

        monkeypatch.setattr(PostgresTable, "poll_in", emptied)
        dimensions.refresh(dimensions.all())
        begun[0].join(60)
        assert not begun[0].is_alive()
        assert rows_of(wh, "v") == expected
        with pytest.raises(CaptureFailed, match="REFRESH MATERIALIZED VIEW … FULL"):
            dimensions.refresh(dimensions.all())


def _execute(url: str, command: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(command.encode())


def test_a_view_whose_expression_fails_is_left_behind_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries of it say so, in every process, until a refresh computes it; others go on."""
    failing = {"w"}

    def propagated(node: RemoteNode, name: str, *given: Any, **options: Any) -> Any:
        if name in failing:
            raise QueryFailed("view", "[DIVIDE_BY_ZERO] of a row", "")
        return propagate(node, name, *given, **options)

    def computed(wh: Warehouse) -> DimensionViews:
        computed_by_the_server(wh, world, monkeypatch)
        recomputation = internals(wh).dimensions.recomputation
        rows = recomputation.rows

        def computed_rows(name: str, *given: Any) -> Any:
            if name in failing:
                raise QueryFailed("view", "[DIVIDE_BY_ZERO] of a row", "")
            return rows(name, *given)

        monkeypatch.setattr(recomputation, "rows", computed_rows)
        return without_spark(wh)

    monkeypatch.setattr(cycles, "propagate", propagated)
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        for name in ("v", "w"):
            create(wh, world, name, _QUERY, monkeypatch)
        dimensions, before = computed(wh), rows_of(wh, "w")

        def change() -> None:
            with world.tables[0].connect() as connection:
                world.tables[0].insert(connection, world.rng.randrange(100, 10**6), 1, "x")

        with world.tables[1].connect() as connection:
            world.tables[1].insert(connection, 1, 1, "x")
        for _ in range(2):
            change()
            dimensions.refresh_for(lambda: ["v"])
            assert rows_of(wh, "v") == world.answer(_QUERY)
        with pytest.raises(CaptureFailed, match=r"view w: a changed row cannot be computed \(\[DIVIDE_BY_ZERO\]"):
            dimensions.refresh_for(lambda: ["w"])
        dimensions.refresh_for(lambda: ["w"], "any")
        assert rows_of(wh, "w") == before
        listed = {row[0]: row[6] for row in show(internals(wh).catalog, Show("views")).rows}
        assert listed == {"v": "as of the last poll", "w": "left behind: [DIVIDE_BY_ZERO] of a row"}
    with freshview.connect(tmp_path / "warehouse") as wh:
        dimensions = computed(wh)
        for full in (False, True):
            change()
            with pytest.raises(CaptureFailed, match="Correct the row at the source"):
                dimensions.refresh([internals(wh).catalog.relation("w")], full=full)
            assert rows_of(wh, "v") == world.answer(_QUERY)
            assert rows_of(wh, "w") == before
        failing.clear()
        with pytest.raises(CaptureFailed, match="REFRESH MATERIALIZED VIEW"):
            dimensions.refresh_for(lambda: ["w"])
        dimensions.refresh([internals(wh).catalog.relation("w")])
        for _ in range(2):
            assert rows_of(wh, "v") == rows_of(wh, "w") == world.answer(_QUERY)
            change()
            dimensions.refresh_for(lambda: ["w"])


def test_explain_of_a_view_of_several_techniques(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        create(wh, world, "v", _QUERY, monkeypatch)
        dimensions = without_spark(wh)
        with world.tables[0].connect() as connection:
            world.tables[0].insert(connection, 50, 1, "x")
        dimensions.refresh(dimensions.all())
        text = explain_dimension(dimensions, internals(wh).catalog.relation("v"))
        for part in (
            f"r0 = s0.{world.tables[0].name}: change tracking delivers ins, up, delk; polled on query",
            f"r1 = s1.{world.tables[1].name}: log delivers ins, del, un/uo; polled on query",
            "σ ",
            "up becomes ups (§5.5) → ins, del, un/uo",
            "⋈ r1: flags by j, extra term for up, delk of the left side (§5.6) → ins, del, un/uo, ups, delk",
            "with the effectiveness test (§5.4)",
            "applied by: DELETE of an image (del), DELETE by key (delk), UPDATE by both images (un/uo), INSERT (ins), ",
            "here: views above look up the old rows of ups, delk",
            "computed by Spark: nothing",
            "last cycle: r0 1 ins",
        ):
            assert part in text, text


def test_a_slot_that_is_no_longer_read_is_reported(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluation, "types", types_of)
    world = World(random.Random(5), database, ["tracking", "decoding"])
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        states = [(s.name, s.polled, s.warning) for s in wh.status().remote_tables]
        assert states == [("r0", "", "ok"), ("r1", "", "ok")]
        create(wh, world, "v", _QUERY, monkeypatch)
        dimensions, catalog = without_spark(wh), internals(wh).catalog
        view = catalog.relation("v")

        def told() -> tuple[list[str], str, str]:
            listing = show(catalog, Show("views"))
            condition = dict(zip(listing.columns, listing.rows[0], strict=True))["status"]
            return [s.warning for s in wh.status().remote_tables], condition, explain_dimension(dimensions, view)

        warnings, condition, text = told()
        assert (warnings, condition) == (["ok", "ok"], "as of the last poll")
        assert re.search(r"replication slot: fv_\w+, \d+ bytes of log are kept for it\n", text), text
        with catalog.database.write() as c:
            for row in c.execute(sa.select(t.positions)).all():
                stored = json.loads(row.position)
                stored["at"] -= 2 * 3600 * 10**6
                at = t.positions.c.relation_id == row.relation_id
                c.execute(t.positions.update().where(at).values(position=json.dumps(stored)))
        warnings, condition, text = told()
        unread = warnings[1]
        assert re.fullmatch(r"not polled since .* UTC: the server keeps its log for the replication slot", unread)
        assert warnings == ["ok", unread], "only a slot makes the server keep its log"
        assert condition == f"r1: {unread}"
        assert f"bytes of log are kept for it; {unread}" in text
        assert unread[:40] in str(wh.status())
        with world.tables[1].connect() as connection:
            world.tables[1].insert(connection, 60, 1, "x")
        dimensions.refresh(dimensions.all())
        assert told()[:2] == (["ok", "ok"], "as of the last poll")
        wh.sql("DROP SOURCE s1 CASCADE")


def test_sources_with_a_time_are_polled_when_it_has_come(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluation, "types", types_of)
    world = World(random.Random(6), database, ["tracking", "tracking"])
    with freshview.connect(tmp_path / "warehouse") as wh:
        for i, table in enumerate(world.tables):
            options = f"url '{database}', poll 'every 1 hour'"
            wh.sql(f"CREATE SOURCE s{i} USING POSTGRES OPTIONS ({options})")
            wh.sql(f"CREATE REMOTE TABLE r{i} FROM s{i}.{table.name}")
        create(wh, world, "v", _QUERY, monkeypatch)
        dimensions = without_spark(wh)
        stale = rows_of(wh, "v")
        with world.tables[1].connect() as connection:
            for key in range(5):
                world.tables[1].insert(connection, key, 1, "z")
        dimensions.refresh_due()
        first = rows_of(wh, "v")
        assert first == world.answer(_QUERY)
        assert first != stale
        with world.tables[1].connect() as connection:
            world.tables[1].insert(connection, 1, 1, "x")
        dimensions.refresh_due()
        assert rows_of(wh, "v") == first, "an hour has not passed"


def _left(url: str) -> int:
    """The number of triggers, tables and slots at a database's server that somebody left."""
    queries = (
        "SELECT count(*) FROM pg_class WHERE relname LIKE 'fv\\_%' AND relkind = 'r'",
        "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fv\\_%'",
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'fv\\_%' AND database = current_database()",
    )
    with psycopg.connect(url) as connection:
        return sum(int(row[0]) for query in queries for row in connection.execute(query.encode()))


def _with_a_flow(wh: Warehouse, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sources with a remote table each, a view over both, and a flow from the first one."""
    world.name(wh)
    create(wh, world, "v", _QUERY, monkeypatch)
    create(wh, world, "w", "SELECT x0.id AS k, x0.name AS n FROM r1 x0", monkeypatch)
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s0.{world.tables[0].name} KEYS (id)")
    wh.sql("REFRESH FLOW f")


def test_drop_source_cascade_drops_flows_remote_tables_and_their_views(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluation, "types", types_of)
    world = World(random.Random(5), postgres.new_database(), ["triggers", "decoding"])
    with freshview.connect(tmp_path / "warehouse") as wh:
        _with_a_flow(wh, world, monkeypatch)
        catalog = internals(wh).catalog
        with pytest.raises(InvalidStatement, match="Drop that first, or use CASCADE"):
            wh.sql("DROP SOURCE s0")
        wh.sql("DROP SOURCE s0 CASCADE")
        assert [catalog.find(n) is None for n in ("r0", "v", "r1", "w", "t")] == [True, True, False, False, False]
        assert FlowCatalog(catalog).flows() == []
        assert _left(world.url) == 1, "the slot that w reads"
        dimensions = without_spark(wh)
        world.change()
        dimensions.refresh(dimensions.all())
        wh.sql("DROP SOURCE s1 CASCADE")
        assert FlowCatalog(catalog).sources() == []
        assert _left(world.url) == 0


def test_drop_source_cascade_drops_nothing_if_the_server_cannot_be_reached(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh:
        _with_a_flow(wh, world, monkeypatch)
        catalog, told = internals(wh).catalog, []
        with catalog.database.write() as c:
            options = f'{{"url": "{world.url.replace("127.0.0.1:", "127.0.0.1:1")}"}}'
            c.execute(t.sources.update().where(t.sources.c.name == "s0").values(options=options))
        with pytest.raises(InvalidStatement, match=r"nothing was dropped.*DROP FLOW … FORCE and DROP REMOTE TABLE"):
            wh.sql("DROP SOURCE s0 CASCADE")
        assert all(catalog.find(n) for n in ("r0", "v", "r1", "w"))
        assert [f.name for f in FlowCatalog(catalog).flows()] == ["f"]
    with freshview.connect(tmp_path / "warehouse") as wh:
        wh.events.listen(lambda e: told.append(e.name))
        wh.sql("DROP FLOW f FORCE")
        wh.sql("DROP REMOTE TABLE r0 CASCADE")
        wh.sql("DROP SOURCE s0")
        assert told.count("remote.left") == 1


def _dies(*_: object, **__: object) -> None:
    raise _Killed
