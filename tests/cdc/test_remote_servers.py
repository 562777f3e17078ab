"""Views of tables of several servers: of each server one state, read together, whatever is written and whatever dies.

No moment is common to two servers, so the oracle computes the views over the very states that a cycle has read.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.cdc.remote_without_spark import computed_by_the_server, create, rows_of, types_of, without_spark
from tests.cdc.remote_world import World, answer_over
from tests.cdc.servers import TECHNIQUES
from tests.conftest import _SERVER, PostgresServer
from tests.effort import examples
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.bench.postgres_server import server_tools
from freshview.cdc.postgres.server import Snapshot
from freshview.cdc.postgres.tables import PostgresTable
from freshview.errors import CaptureFailed
from freshview.refresh.evaluation import Evaluation
from freshview.views.cycles import connected
from freshview.views.dimensions import DimensionViews
from freshview.warehouse.explain_dimension import explain_dimension

pytestmark = pytest.mark.postgres

_JOINED = "SELECT x0.id AS k, x1.name AS n FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id WHERE x1.name IN ('x', 'y')"
_FIRST = "SELECT x0.id AS k, x0.name AS n FROM r0 x0"
_SECOND = "SELECT x0.id AS k, x0.name AS n FROM r1 x0"


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """A database of another server."""
    tools = server_tools()
    assert tools is not None
    server = PostgresServer(tools, _SERVER)
    yield server.new_database()
    server.stop()


@pytest.fixture(autouse=True)
def _types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluation, "types", types_of)


def _divides(_: PostgresTable, snapshot: Snapshot, *__: object) -> None:
    snapshot.fetch("SELECT 1 / 0")


class _Killed(BaseException):
    """The process ends here."""


def _dies(*_: object, **__: object) -> None:
    raise _Killed


@pytest.mark.parametrize("seed", range(examples(2)))
def test_views_over_two_servers_equal_their_definitions_after_every_cycle_whatever_dies(
    seed: int, tmp_path: Path, database: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    techniques = rng.sample(list(TECHNIQUES), 4)
    world = World(rng, database, techniques, other)
    queries = {f"v{i}": world.query(joins) for i, joins in enumerate([0, 2, 5])}
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        for name, query in queries.items():
            create(wh, world, name, query, monkeypatch)
            world.change()
    for cycle in range(5):
        world.change()
        with freshview.connect(tmp_path / "warehouse") as wh, monkeypatch.context() as patch:
            computed_by_the_server(wh, world, monkeypatch)
            dimensions = without_spark(wh)
            death, full = rng.choice(["", "", "polled", "committed"]), rng.random() < 0.2
            if death == "polled" and not full:
                patch.setattr(dimensions.cycles, "_commit", _dies)
            elif death == "committed":
                for kind in (PostgresTable, *PostgresTable.__subclasses__()):
                    patch.setattr(kind, "confirm", _dies)
            try:
                dimensions.refresh(dimensions.all(), full=full)
            except _Killed:
                continue
            for name, query in queries.items():
                assert rows_of(wh, name) == world.answer(query), (seed, cycle, name, techniques, query)


@contextmanager
def _writing(world: World) -> Iterator[None]:
    """Random transactions on all servers, without end."""
    stopping, failed = threading.Event(), []

    def write() -> None:
        try:
            while not stopping.wait(0.005):
                world.change()
        except Exception as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stopping.set()
        writer.join()
    assert not failed


def _read(wh: Warehouse, dimensions: DimensionViews, view: str) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Run a cycle: the states of all tables that it read, and the rows of the view afterwards."""
    found: dict[str, Any] = {}

    def inspect(whole: Mapping[str, pa.Table], _: int) -> None:
        columns = ("id", "ref", "name")
        found.update({n: list(zip(*(t.column(c).to_pylist() for c in columns), strict=True)) for n, t in whole.items()})

    (group,) = dimensions.cycles.groups([internals(wh).catalog.relation(view)])
    dimensions.cycles.run(group, inspect=(dimensions.tables.relations(), inspect))
    return found, rows_of(wh, view)


@pytest.mark.parametrize("seed", range(examples(2)))
def test_views_over_two_servers_are_exact_while_writers_never_stop(
    seed: int, tmp_path: Path, database: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that a lookup saw and no poll delivered, or the reverse, would leave a row that no later cycle mends."""
    rng = random.Random(seed)
    world = World(rng, database, rng.sample(list(TECHNIQUES), 4), other)
    query = (
        "SELECT x0.id AS k, x1.name AS n1, x2.name AS n2, x3.name AS n3 FROM r0 x0 "
        "JOIN r1 x1 ON x0.ref = x1.id JOIN r2 x2 ON x1.ref = x2.id JOIN r3 x3 ON x2.ref = x3.id"
    )
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        create(wh, world, "v", query, monkeypatch)
        dimensions, states = without_spark(wh), []
        with _writing(world):
            for _ in range(6):
                tables, rows = _read(wh, dimensions, "v")
                assert rows == answer_over(tables, query), seed
                states.append(tables)
        assert any(a != b for a, b in pairwise(states)), "nobody wrote"
        dimensions.refresh(dimensions.all())
        assert rows_of(wh, "v") == world.answer(query)


@pytest.fixture
def world(database: str, other: str) -> World:
    return World(random.Random(5), database, ["tracking", "triggers"], other)


def test_a_view_that_joins_two_servers_makes_them_change_together(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        catalog, dimensions = internals(wh).catalog, without_spark(wh)
        for name, query in (("v", _FIRST), ("w", _SECOND)):
            create(wh, world, name, query, monkeypatch)
        assert len(dimensions.cycles.groups(dimensions.all())) == 2
        create(wh, world, "both", _JOINED, monkeypatch)
        assert len(dimensions.cycles.groups(dimensions.all())) == 1
        for table in world.tables:
            with table.connect() as connection:
                table.insert(connection, 1, 1, "x")
                table.insert(connection, 50, 1, "x")
        before = wh.status().csn
        dimensions.refresh([catalog.relation("v")])
        assert wh.status().csn == before + 1
        for name, query in (("v", _FIRST), ("w", _SECOND), ("both", _JOINED)):
            assert rows_of(wh, name) == world.answer(query)
        text = explain_dimension(dimensions, catalog.relation("both"))
        assert "by cycles of its 2 servers (one snapshot of each, read together, and one commit here" in text
        wh.sql("DROP MATERIALIZED VIEW both")
        assert len(dimensions.cycles.groups(dimensions.all())) == 2


def test_a_view_that_joins_servers_during_a_cycle_of_one_of_them_misses_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh, freshview.connect(tmp_path / "warehouse") as beside:
        world.name(wh)
        create(wh, world, "v", _FIRST, monkeypatch)
        dimensions = without_spark(wh)
        commit, made = dimensions.cycles._commit, threading.Event()

        def overtaken(*given: Any, **options: Any) -> Any:
            if not made.is_set():
                made.set()
                create(beside, world, "both", _JOINED, monkeypatch)
            return commit(*given, **options)

        monkeypatch.setattr(dimensions.cycles, "_commit", overtaken)
        for key in range(3):
            for table in world.tables:
                with table.connect() as connection:
                    table.insert(connection, key, key, "x")
            dimensions.refresh(dimensions.all())
            assert rows_of(wh, "both") == world.answer(_JOINED)
            assert rows_of(wh, "v") == world.answer(_FIRST)


def test_an_error_names_the_server_on_which_it_happened(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        create(wh, world, "both", _JOINED, monkeypatch)
        dimensions = without_spark(wh)
        for table in world.tables:
            with table.connect() as connection:
                connection.execute(f"ALTER TABLE {table.name} RENAME TO away".encode())
            place = table.name if table is world.tables[0] else world.tables[1].name
            with pytest.raises(CaptureFailed, match=f"table {place}: the server does not have it"):
                dimensions.refresh(dimensions.all())
            with table.connect() as connection:
                connection.execute(f"ALTER TABLE away RENAME TO {table.name.removeprefix('public.')}".encode())
        dimensions.refresh(dimensions.all())
        address = world.tables[1].url.rpartition("@")[2]
        monkeypatch.setattr(PostgresTable, "lookup", _divides)
        with world.tables[0].connect() as connection:
            world.tables[0].insert(connection, 60, 1, "x")
        with pytest.raises(CaptureFailed, match=f"PostgreSQL {address}: division by zero"):
            dimensions.refresh(dimensions.all())


def test_groups_are_what_views_connect() -> None:
    a, b, c, d = (frozenset({("host", name)}) for name in "abcd")
    views = [frozenset({a, b}), frozenset({b, c}), frozenset({d})]
    assert connected(frozenset({a}), views) == {a, b, c}
    assert connected(frozenset({c}), views) == {a, b, c}
    assert connected(frozenset({d}), views) == {d}
    assert connected(frozenset({a, d}), []) == {a, d}
