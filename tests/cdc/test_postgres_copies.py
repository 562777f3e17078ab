"""Warehouses that were copied or restored from a backup, and processes of one warehouse that poll at once.

Law: after a poll the rows are the source's; else the poll is an error that names the way on. Processes of one warehouse
never get that error for what another of them did.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.catalog.helpers import contents
from tests.cdc.remote_without_spark import computed_by_the_server, create, rows_of, types_of, without_spark
from tests.cdc.remote_world import World

import freshview
from freshview import Warehouse
from freshview.cdc.postgres import decoding
from freshview.cdc.postgres.decoding import Decoding
from freshview.cdc.postgres.server import Server
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.postgres.tracking import Tracking
from freshview.cdc.postgres.triggers import TriggerLog
from freshview.errors import CaptureFailed
from freshview.refresh.evaluation import Evaluation
from freshview.views.cycles import Cycles
from freshview.views.dimensions import DimensionViews

pytestmark = pytest.mark.postgres
_CAPTURES = ["tracking", "triggers", "decoding"]
_LOST = r"restored from a backup, or a copy of it.*REFRESH FLOW … FULL; of a view: REFRESH MATERIALIZED VIEW … FULL"
_QUERY = "SELECT x0.id AS k, x1.name AS n FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id"


class _Table:
    """A table (id, name) of the server."""

    def __init__(self, url: str) -> None:
        self.url, self.name = url, f"t_{uuid.uuid4().hex[:10]}"
        self.run(f"CREATE TABLE {self.name} (id int PRIMARY KEY, name text)")
        self.write(1, 2, 3)

    def run(self, *commands: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            for command in commands:
                cursor = connection.execute(command.encode())
            return cursor.fetchall() if cursor.description else []

    def write(self, *keys: int) -> None:
        for key in keys:
            name = uuid.uuid4().hex
            self.run(f"INSERT INTO {self.name} VALUES ({key}, '{name}') ON CONFLICT (id) DO UPDATE SET name = '{name}'")

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.run(f"SELECT id, name FROM {self.name}"))


@pytest.fixture
def table(database: str) -> _Table:
    return _Table(database)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Warehouse]]:
    """Opens the warehouse, as each process does."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(freshview.connect(tmp_path / "warehouse"))


def _feed(wh: Warehouse, table: _Table, capture: str) -> None:
    wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{table.url}', capture '{capture}')")
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.public.{table.name} KEYS (id)")


def _here(wh: Warehouse) -> list[tuple[Any, ...]]:
    return sorted((r["id"], r["name"]) for r in contents(wh, "t"))


def _meanwhile(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Have something happen once between the reading of a stored position and the poll from it."""
    poll, left = PostgresTable.poll, [what]

    def polled(self: PostgresTable, position: str | None) -> Any:
        if left and position is not None:
            left.pop()()
        return poll(self, position)

    monkeypatch.setattr(PostgresTable, "poll", polled)


# -- copies and backups ----------------------------------------------------------------------------


@pytest.mark.parametrize("capture", _CAPTURES)
def test_a_restored_warehouse_loads_anew_and_the_other_copy_notices(
    table: _Table, tmp_path: Path, capture: str
) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh:
        _feed(wh, table, capture)
        wh.sql("REFRESH FLOW f")
    shutil.copytree(tmp_path / "warehouse", tmp_path / "backup")
    with freshview.connect(tmp_path / "warehouse") as wh:
        table.write(2, 4)
        table.run(f"DELETE FROM {table.name} WHERE id = 3")
        wh.sql("REFRESH FLOW f")
        with freshview.connect(tmp_path / "backup") as restored:
            for key in (5, 6):
                table.write(key)
                with pytest.raises(CaptureFailed, match=_LOST):
                    restored.sql("REFRESH FLOW f")
            assert "restored from a backup" in restored.status().flows[0].warning
            restored.sql("REFRESH FLOW f FULL")
            assert _here(restored) == table.rows()
            table.write(7)
            restored.sql("REFRESH FLOW f")
            assert _here(restored) == table.rows()
        with pytest.raises(CaptureFailed, match="REFRESH FLOW … FULL"):
            wh.sql("REFRESH FLOW f")
        wh.sql("REFRESH FLOW f FULL")
        assert _here(wh) == table.rows()
        wh.sql("DROP FLOW f")


@pytest.mark.parametrize("capture", _CAPTURES)
def test_a_warehouse_that_was_restored_before_its_first_poll_is_refused(
    table: _Table, tmp_path: Path, capture: str
) -> None:
    """It loads the table anew, with an installation of its own, and the other copy notices."""
    with freshview.connect(tmp_path / "warehouse") as wh:
        _feed(wh, table, capture)
    shutil.copytree(tmp_path / "warehouse", tmp_path / "backup")
    with freshview.connect(tmp_path / "warehouse") as wh, freshview.connect(tmp_path / "backup") as restored:
        wh.sql("REFRESH FLOW f")
        restored.sql("REFRESH FLOW f")
        table.write(1, 4)
        restored.sql("REFRESH FLOW f")
        assert _here(restored) == table.rows()
        with pytest.raises(CaptureFailed, match="REFRESH FLOW … FULL"):
            wh.sql("REFRESH FLOW f")
        restored.sql("DROP FLOW f")


@pytest.mark.parametrize("capture", _CAPTURES)
def test_a_restored_warehouse_of_captured_tables_is_refused(table: _Table, tmp_path: Path, capture: str) -> None:
    """wh.capture; and of two readers of one installation the one that comes later."""
    server, name = Server(table.url), f"public.{table.name}"
    sources: dict[str, Any] = {
        "tracking": Tracking(server, name),
        "triggers": TriggerLog(server, name),
        "decoding": Decoding(server, name, f"fv_{table.name}"),
    }
    source = sources[capture]
    source.install()
    with freshview.connect(tmp_path / "warehouse") as wh:
        for target in ("t", "other"):
            wh.sql(f"CREATE TABLE {target} (id INT PRIMARY KEY, name STRING)")
            wh.capture(target, source)
    shutil.copytree(tmp_path / "warehouse", tmp_path / "backup")
    with freshview.connect(tmp_path / "warehouse") as wh, freshview.connect(tmp_path / "backup") as restored:
        table.write(1, 4)
        wh.capture("t", source)
        table.write(5)
        for late, target in ((restored, "t"), (wh, "other")):
            with pytest.raises(CaptureFailed, match="restored from a backup, or a copy of it or another reader"):
                late.capture(target, source)
        wh.capture("t", source)
        assert _here(wh) == table.rows()
    source.drop()


@pytest.mark.parametrize("technique", _CAPTURES)
def test_views_of_a_restored_warehouse_are_refused_until_they_are_computed_anew(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, technique: str
) -> None:
    monkeypatch.setattr(Evaluation, "types", types_of)
    world = World(random.Random(technique), database, [technique, technique])
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        create(wh, world, "v", _QUERY, monkeypatch)
    shutil.copytree(tmp_path / "warehouse", tmp_path / "backup")
    with freshview.connect(tmp_path / "warehouse") as wh, freshview.connect(tmp_path / "backup") as restored:
        dimensions, others = without_spark(wh), without_spark(restored)
        for key in (40, 41):
            with world.tables[0].connect() as connection:
                world.tables[0].insert(connection, key, 1, "new")
            dimensions.refresh(dimensions.all())
        for _ in range(2):
            with pytest.raises(CaptureFailed, match=_LOST):
                others.refresh(others.all())
        computed_by_the_server(restored, world, monkeypatch)
        others.refresh(others.all(), full=True)
        assert rows_of(restored, "v") == world.answer(_QUERY)
        world.change()
        others.refresh(others.all())
        assert rows_of(restored, "v") == world.answer(_QUERY)
        with pytest.raises(CaptureFailed, match="REFRESH MATERIALIZED VIEW … FULL"):
            dimensions.refresh(dimensions.all())


# -- processes of one warehouse ----------------------------------------------------------------------


@pytest.mark.parametrize("capture", _CAPTURES)
@pytest.mark.parametrize("how", ["", "FULL"])
def test_a_poll_that_another_process_overtook_is_repeated(
    table: _Table, opened: Callable[[], Warehouse], capture: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wh, other = opened(), opened()
    _feed(wh, table, capture)
    wh.sql("REFRESH FLOW f")
    table.write(1, 4)

    def overtake() -> None:
        other.sql(f"REFRESH FLOW f {how}")
        table.write(2, 5)

    _meanwhile(monkeypatch, overtake)
    wh.sql("REFRESH FLOW f")
    assert _here(wh) == table.rows()
    wh.sql("DROP FLOW f")


@pytest.mark.parametrize("capture", _CAPTURES)
def test_a_capture_that_another_process_overtook_is_repeated(
    table: _Table, opened: Callable[[], Warehouse], capture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wh, other, server, name = opened(), opened(), Server(table.url), f"public.{table.name}"
    sources: dict[str, Any] = {
        "tracking": Tracking(server, name),
        "triggers": TriggerLog(server, name),
        "decoding": Decoding(server, name, f"fv_{table.name}"),
    }
    source = sources[capture]
    source.install()
    wh.sql("CREATE TABLE t (id INT PRIMARY KEY, name STRING)")
    wh.capture("t", source)
    table.write(1, 4)

    def overtake() -> None:
        other.capture("t", source)
        table.write(5)

    _meanwhile(monkeypatch, overtake)
    wh.capture("t", source)
    assert _here(wh) == table.rows()
    source.drop()


@pytest.mark.parametrize("capture", _CAPTURES)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_poll_waits_for_another_process_that_loads_the_table_anew(
    table: _Table, opened: Callable[[], Warehouse], capture: str, is_first: bool
) -> None:
    """What is installed then belongs to the position that the other one is about to store."""
    wh, other = opened(), opened()
    _feed(wh, table, capture)
    if not is_first:
        wh.sql("REFRESH FLOW f")
    has_polled, goes_on = threading.Event(), threading.Event()

    def wait(event: Any) -> None:
        if event.name == "flow.polled":
            has_polled.set()
            assert goes_on.wait(30)

    other.events.listen(wait)
    table.write(4)
    threads = [_thread(lambda: other.sql(f"REFRESH FLOW f{'' if is_first else ' FULL'}"))]
    assert has_polled.wait(30)
    table.write(1, 5)
    threads.append(_thread(lambda: wh.sql("REFRESH FLOW f")))
    time.sleep(0.5)
    goes_on.set()
    for thread in threads:
        thread.join_and_raise()
    assert _here(wh) == table.rows()
    table.write(6)
    wh.sql("REFRESH FLOW f")
    assert _here(wh) == table.rows()
    wh.sql("DROP FLOW f")


@pytest.mark.parametrize("capture", _CAPTURES)
def test_processes_that_poll_all_the_time_never_get_an_error(
    table: _Table, opened: Callable[[], Warehouse], capture: str
) -> None:
    wh = opened()
    _feed(wh, table, capture)
    until = time.monotonic() + 4

    def poll(process: Warehouse) -> None:
        while time.monotonic() < until:
            process.sql("REFRESH FLOW f")

    def write() -> None:
        while time.monotonic() < until:
            table.write(random.randrange(20))

    threads = [_thread(partial(poll, process)) for process in (wh, opened(), opened())]
    threads.append(_thread(write))
    for thread in threads:
        thread.join_and_raise()
    wh.sql("REFRESH FLOW f")
    assert _here(wh) == table.rows()
    wh.sql("DROP FLOW f")


def test_a_slot_in_use_is_waited_for_and_then_named(table: _Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session creates the slot, which takes until the transaction of a third one ends."""
    source = Decoding(Server(table.url), f"public.{table.name}", f"fv_{table.name}")
    with psycopg.connect(table.url) as writer:
        writer.execute(f"DELETE FROM {table.name}".encode())
        creator = _thread(source.install)
        while not table.run(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{source.slot}' AND active"):
            time.sleep(0.02)
        with monkeypatch.context() as patch:
            patch.setattr(decoding, "_PATIENCE", 0.1)
            with pytest.raises(CaptureFailed, match="is active for PID") as raised:
                source.drop()
        assert raised.value.what == f"replication slot {source.slot}"
        waiting = _thread(source.drop)
        time.sleep(0.3)
        assert waiting.is_alive()
    creator.join_and_raise()
    waiting.join_and_raise()
    assert not table.run(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{source.slot}'")


# -- views of remote tables in several processes -------------------------------------------------------


@pytest.mark.parametrize("full", [False, True], ids=["", "FULL"])
@pytest.mark.parametrize("technique", _CAPTURES)
def test_a_cycle_that_another_process_overtook_is_repeated(
    database: str, opened: Callable[[], Warehouse], technique: str, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, first, second = _two_processes(database, opened, technique, monkeypatch)
    polled, left = Cycles._polled, [None]

    def overtaken(self: Cycles, *arguments: Any) -> Any:
        if left:
            left.pop()
            second.refresh(second.all(), full=full)
        return polled(self, *arguments)

    _insert(world, 40)
    monkeypatch.setattr(Cycles, "_polled", overtaken)
    first.refresh(first.all())
    assert not left
    _insert(world, 41)
    first.refresh(first.all())
    assert rows_of(opened(), "v") == world.answer(_QUERY)


@pytest.mark.parametrize("technique", _CAPTURES)
def test_a_cycle_waits_for_another_process_that_begins_anew(
    database: str, opened: Callable[[], Warehouse], technique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, first, second = _two_processes(database, opened, technique, monkeypatch)
    has_polled, goes_on = threading.Event(), threading.Event()

    def wait(event: Any) -> None:
        if event.name == "remote.polled":
            has_polled.set()
            assert goes_on.wait(30)

    second.events.listen(wait)
    threads = [_thread(lambda: second.refresh(second.all(), full=True))]
    assert has_polled.wait(30)
    _insert(world, 40)
    threads.append(_thread(lambda: first.refresh(first.all())))
    time.sleep(0.5)
    goes_on.set()
    for thread in threads:
        thread.join_and_raise()
    assert rows_of(opened(), "v") == world.answer(_QUERY)


@pytest.mark.parametrize("technique", _CAPTURES)
def test_processes_that_run_cycles_all_the_time_never_get_an_error(
    database: str, opened: Callable[[], Warehouse], technique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, *processes = _two_processes(database, opened, technique, monkeypatch)
    until = time.monotonic() + 4

    def cycle(process: DimensionViews) -> None:
        while time.monotonic() < until:
            process.refresh(process.all())

    threads = [_thread(partial(cycle, process)) for process in processes]
    key = 40
    while time.monotonic() < until:
        _insert(world, key)
        key += 1
    for thread in threads:
        thread.join_and_raise()
    processes[0].refresh(processes[0].all())
    assert rows_of(opened(), "v") == world.answer(_QUERY)


def _two_processes(
    database: str, opened: Callable[[], Warehouse], technique: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[World, DimensionViews, DimensionViews]:
    """A view of two tables of one server, in two processes of one warehouse."""
    monkeypatch.setattr(Evaluation, "types", types_of)
    world, wh, other = World(random.Random(technique), database, [technique, technique]), opened(), opened()
    world.name(wh)
    create(wh, world, "v", _QUERY, monkeypatch)
    computed_by_the_server(other, world, monkeypatch)
    return world, without_spark(wh), without_spark(other)


def _insert(world: World, key: int) -> None:
    with world.tables[0].connect() as connection:
        world.tables[0].insert(connection, key, 1, "new")


class _Thread(threading.Thread):
    """A thread whose error is raised where it is joined."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.act, self.error = act, None

    def run(self) -> None:
        try:
            self.act()
        except BaseException as error:
            self.error = error

    error: BaseException | None

    def join_and_raise(self) -> None:
        self.join(90)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def _thread(act: Callable[[], object]) -> _Thread:
    thread = _Thread(act)
    thread.start()
    return thread
