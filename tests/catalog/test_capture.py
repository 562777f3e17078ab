"""Changes of a source are taken into a table exactly once, with the source's position, whatever dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import write_deltalake
from tests.catalog.helpers import contents
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.catalog.migrations import STEPS, _add_positions, migrate
from freshview.cdc.debezium import Debezium
from freshview.cdc.event_files import EventFiles
from freshview.cdc.source import Poll
from freshview.errors import CaptureFailed, InvalidStatement, NotFound, WriteConflict
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

T = Schema((Column("id", parse_type("INT")), Column("name", parse_type("STRING"))), ("id",))
Open = Callable[[], Warehouse]


class _Log:
    """A file of events, and the source that reads it; it can be told to fail."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.file = folder / "events.json"
        self.file.touch()
        self.source = EventFiles(self.file, "public.t", T, Debezium(old_images=True), **options)
        self.name, self.schema, self.capture = self.source.name, T, self.source.capture
        self.confirmed: list[str] = []
        self.fails_to_confirm = False
        self.meanwhile: Callable[[], object] = lambda: None
        self._lsn = 0

    def write(self, op: str, before: tuple[int, str] | None, after: tuple[int, str] | None) -> None:
        self._lsn += 1
        images = [None if i is None else {"id": i[0], "name": i[1]} for i in (before, after)]
        source = {"schema": "public", "table": "t", "lsn": self._lsn}
        with self.file.open("a") as stream:
            stream.write(json.dumps({"op": op, "before": images[0], "after": images[1], "source": source}) + "\n")

    def poll(self, position: str | None) -> Poll:
        found = self.source.poll(position)
        self.meanwhile()
        return found

    def confirm(self, position: str) -> None:
        if self.fails_to_confirm:
            raise CaptureFailed("source", "it is gone")
        self.confirmed.append(position)


@pytest.fixture
def log(tmp_path: Path) -> _Log:
    return _Log(tmp_path)


@pytest.fixture
def wh(open_warehouse: Open) -> Warehouse:
    warehouse = open_warehouse()
    warehouse.sql("CREATE TABLE t (name STRING, id INT PRIMARY KEY)")  # columns are matched by name
    return warehouse


def _rows(wh: Warehouse) -> dict[int, str]:
    return {r["id"]: r["name"] for r in contents(wh, "t")}


def _position(wh: Warehouse) -> tuple[str, str] | None:
    catalog = internals(wh).catalog
    return catalog.position(catalog.relation("t").id)


def test_changes_are_taken_with_their_position(wh: Warehouse, log: _Log) -> None:
    log.write("c", None, (1, "a"))
    log.write("c", None, (2, "b"))
    first = wh.capture("t", log)
    assert (first.rows, first.csn) == (2, 2)
    log.write("u", (1, "a"), (1, "z"))
    log.write("d", (2, "b"), None)
    log.write("c", None, (3, "c"))
    assert wh.capture("t", log).rows == 3
    assert _rows(wh) == {1: "z", 3: "c"}
    assert _position(wh) == ("public.t", log.confirmed[-1])
    assert len(log.confirmed) == 2


def test_a_poll_without_changes_moves_the_position_without_a_commit(wh: Warehouse, log: _Log) -> None:
    log.write("c", None, (1, "a"))
    csn = wh.capture("t", log).csn
    with log.file.open("a") as stream:
        stream.write("null\n")
    assert (wh.capture("t", log).rows, wh.status().csn) == (0, csn)
    assert _position(wh) == ("public.t", log.source.poll(None).position)


def test_a_crash_before_the_commit_leaves_changes_and_position_as_they_were(wh: Warehouse, log: _Log) -> None:
    log.write("c", None, (1, "a"))
    wh.capture("t", log)
    before = _position(wh)
    log.write("u", (1, "a"), (1, "b"))
    listening = True

    def die(event: Any) -> None:
        if listening and event.name == "commit.prepared":
            raise KeyboardInterrupt

    wh.events.listen(die)
    with pytest.raises(KeyboardInterrupt):
        wh.capture("t", log)
    listening = False
    assert (_rows(wh), _position(wh), len(log.confirmed)) == ({1: "a"}, before, 1)
    assert wh.capture("t", log).rows == 1
    assert _rows(wh) == {1: "b"}


def test_a_crash_after_the_commit_takes_nothing_twice(wh: Warehouse, log: _Log, open_warehouse: Open) -> None:
    log.write("c", None, (1, "a"))
    log.fails_to_confirm = True
    with pytest.raises(CaptureFailed):
        wh.capture("t", log)
    assert _rows(wh) == {1: "a"}
    log.fails_to_confirm = False
    csn = wh.status().csn
    again = open_warehouse()
    assert (again.capture("t", log).rows, again.status().csn) == (0, csn)
    assert log.confirmed == [position for _, position in filter(None, [_position(wh)])]


@pytest.mark.parametrize("first_time", [True, False])
@pytest.mark.parametrize("brings_changes", [True, False])
def test_of_two_processes_one_takes_the_changes(
    wh: Warehouse, log: _Log, open_warehouse: Open, first_time: bool, brings_changes: bool
) -> None:
    other = open_warehouse()
    log.write("c", None, (1, "a"))
    if not first_time:
        wh.capture("t", log)
    log.write("c", None, (2, "b"))
    if not brings_changes and not first_time:
        wh.capture("t", log)
        with log.file.open("a") as stream:
            stream.write("null\n")

    def overtake() -> None:
        log.meanwhile = lambda: None
        other.capture("t", log)

    log.meanwhile = overtake
    with pytest.raises(WriteConflict, match=r"table t: .*(another process took changes of public\.t|key \(2?1?\))"):
        wh.capture("t", log)
    assert _rows(wh) == {1: "a", 2: "b"}
    assert wh.capture("t", log).rows == 0


def test_a_row_that_was_changed_here_is_replaced_and_removed_all_the_same(wh: Warehouse, log: _Log) -> None:
    """Changes are blind: the source's old images do not have to be the rows of the table."""
    log.write("c", None, (1, "a"))
    log.write("c", None, (2, "b"))
    wh.capture("t", log)
    with wh.transaction() as tx:
        tx.upsert("t", [{"id": 1, "name": "mine"}, {"id": 3, "name": "mine"}])
        tx.delete("t", [2])
    log.write("d", (1, "a"), None)
    log.write("u", (2, "b"), (2, "c"))
    log.write("c", None, (3, "theirs"))
    wh.capture("t", log)
    assert _rows(wh) == {2: "c", 3: "theirs"}


def test_a_table_takes_the_changes_of_one_source(wh: Warehouse, log: _Log, tmp_path: Path) -> None:
    wh.capture("t", log)
    other = EventFiles(log.file, "public.other", T, Debezium())
    with pytest.raises(InvalidStatement, match=r"it takes the changes of public\.t, not of public\.other"):
        wh.capture("t", other)
    wh.sql("CREATE TABLE u (id INT, name STRING)")
    with pytest.raises(InvalidStatement, match=r"table u: its primary key is \(none\), that of public\.t \(id\)"):
        wh.capture("u", log)
    with pytest.raises(NotFound):
        wh.capture("nowhere", log)
    write_deltalake(tmp_path / "theirs", pa.table({"id": pa.array([1], pa.int32())}))
    wh.sql(f"CREATE TABLE theirs USING DELTA LOCATION '{tmp_path / 'theirs'}'")
    with pytest.raises(InvalidStatement, match=r"theirs: is read-only here\. Capture into a table"):
        wh.capture("theirs", log)


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ("id INT PRIMARY KEY, name STRING, mine INT, Other INT", r"public\.t has no column mine, Other\. Create"),
        ("id INT PRIMARY KEY", r"the table has no column name\. Create"),
        ("id INT PRIMARY KEY, mine INT", r"public\.t has no column mine and the table has no column name\. Create"),
    ],
)
def test_table_and_source_have_the_same_columns(wh: Warehouse, log: _Log, columns: str, cause: str) -> None:
    """A column that the source does not have would be set to NULL by each change of its row."""
    wh.sql(f"CREATE TABLE u ({columns})")
    log.write("c", None, (1, "a"))
    with pytest.raises(InvalidStatement, match=f"table u: {cause} the table with the columns of the source"):
        wh.capture("u", log)
    assert contents(wh, "u") == []
    wh.sql("CREATE TABLE v (ID INT PRIMARY KEY, Name STRING)")
    assert wh.capture("v", log).rows == 1


def test_a_table_that_is_created_anew_begins_at_the_beginning(wh: Warehouse, log: _Log) -> None:
    log.write("c", None, (1, "a"))
    wh.capture("t", log)
    wh.sql("DROP TABLE t")
    with internals(wh).catalog.database.read() as c:
        assert c.execute(sa.select(t.positions)).all() == []
    wh.sql("CREATE TABLE t (id INT PRIMARY KEY, name STRING)")
    assert wh.capture("t", log).rows == 1


def test_what_is_set_aside_or_skipped_is_an_event(wh: Warehouse, tmp_path: Path) -> None:
    log, told = _Log(tmp_path, on_error="quarantine"), []
    wh.events.listen(lambda e: told.append((e.name, dict(e.details))) if e.name.startswith("capture.") else None)
    other = {"op": "c", "after": {}, "source": {"schema": "public", "table": "other"}}
    log.file.write_text("{broken\n" + json.dumps(other) + "\n")
    wh.capture("t", log)
    assert [name for name, _ in told] == ["capture.quarantined", "capture.skipped"]
    assert told[0][1]["text"] == "{broken"
    assert told[0][1]["place"] == "events.json at byte 0"
    assert told[1][1] == {"relation": "t", "table": "public.other", "events": 1}


def test_what_is_set_aside_is_reported_once_it_is_committed(wh: Warehouse, tmp_path: Path) -> None:
    log = _Log(tmp_path, on_error="quarantine")
    found: list[str] = []
    wh.events.listen(lambda e: found.append(e.name) if e.name in ("commit.prepared", "capture.quarantined") else None)
    log.file.write_text("{broken\n")
    log.write("c", None, (1, "a"))
    log.meanwhile = lambda: found.append("polled")
    wh.capture("t", log)
    assert found == ["polled", "commit.prepared", "capture.quarantined"]


def test_one_call_takes_all_that_there_is(wh: Warehouse, tmp_path: Path) -> None:
    log = _Log(tmp_path, max_bytes=1)
    for n in range(3):
        log.write("c", None, (n, "a"))
    assert wh.capture("t", log).rows == 3
    assert len(_rows(wh)) == 3
    assert len(log.confirmed) >= 3


def test_an_older_catalog_gets_the_table_of_positions(wh: Warehouse, log: _Log) -> None:
    database = internals(wh).catalog.database
    with database.write() as c:
        t.positions.drop(c)
        values = {"value": str(STEPS.index(_add_positions))}
        c.execute(t.meta.update().where(t.meta.c.key == "schema_version").values(**values))
    migrate(database)
    log.write("c", None, (1, "a"))
    assert wh.capture("t", log).rows == 1
