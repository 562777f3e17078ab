"""Figure 2 over a real server: each technique delivers its sets, exactly once, whatever commits in between."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import psycopg
import pytest
from tests.cdc.servers import TECHNIQUES, Captured, Consumer, SnapshotStates
from tests.unit.cdc.applying import applied
from tests.unit.cdc.running_example import cells
from tests.unit.cdc.worlds import recomputed

from freshview.cdc.dimension import KeyJoin, Projection, Remote, check_maintainable
from freshview.cdc.postgres.server import Server
from freshview.cdc.rules import propagate
from freshview.cdc.source import Source

pytestmark = pytest.mark.postgres

# Figure 2, with what differs in it (see cdc/captures.py): the delk of three audit columns, and of the cheap net effect.
_DELIVERED = {
    "one audit column": {"ups"},
    "two audit columns": {"ins", "up"},
    "three audit columns": {"ins", "del", "up", "delk"},
    "triggers": {"ins", "del", "un/uo"},
    "triggers, cheap": {"ups", "delk"},
    "decoding, cheap": {"ups", "delk"},
    "tracking": {"ins", "up", "delk"},
    "decoding, full": {"ins", "del", "un/uo"},
    "decoding": {"ins", "up", "delk"},
}


@pytest.fixture(params=TECHNIQUES)
def captured(request: pytest.FixtureRequest, database: str) -> Captured:
    return Captured(database, request.param)


@pytest.fixture
def consumer(captured: Captured) -> Iterator[Consumer]:
    source = captured.source()
    yield Consumer(source)
    if hasattr(source, "drop"):
        source.drop()


def test_figure_2(captured: Captured, consumer: Consumer) -> None:
    source: Source = consumer.source
    with captured.connect() as connection:
        for key in range(1, 8):
            captured.insert(connection, key, 0, "a")
    expected = _DELIVERED[captured.technique]
    assert consumer.source.capture.sets == expected
    assert consumer.poll() == expected & {"ins", "ups"}  # the first poll loads the table
    consumer.confirm()
    with captured.connect() as connection:
        captured.insert(connection, 11, 0, "new")
        captured.update(connection, 1, "b")
        captured.update(connection, 2, "b")
        captured.update(connection, 2, "c")
        if captured.may_delete:
            captured.delete(connection, 3)
            captured.update(connection, 4, "b")
            captured.delete(connection, 4)
            captured.insert(connection, 12, 0, "came and went")
            captured.delete(connection, 12)
            if "audit" not in captured.technique:
                captured.delete(connection, 5)
                captured.insert(connection, 5, 0, "came back")
    before = consumer.position
    assert consumer.poll() == expected
    # Whoever dies before the commit polls again from the same position, and gets the same.
    again = source.poll(before)
    assert again.delta.filled == expected
    consumer.confirm()
    assert consumer.poll() == frozenset()
    consumer.confirm()
    assert consumer.poll() == frozenset()


@pytest.mark.parametrize("captured", [t for t in TECHNIQUES if "audit" not in t], indirect=True)
def test_a_changed_key_is_a_deletion_and_an_insertion(captured: Captured, consumer: Consumer) -> None:
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
    consumer.poll()
    with captured.connect() as connection:
        captured.move(connection, 1, 2)
        captured.update(connection, 2, "b")
    assert len(consumer.poll()) == 2
    assert [row[:3] for row in cells(consumer.rows)] == [(2, 0, "b")]


def test_a_transaction_that_commits_late_is_not_missed(captured: Captured, consumer: Consumer) -> None:
    consumer.poll()
    with captured.connect() as slow, captured.connect() as quick:
        captured.insert(slow, 1, 0, "slow")
        captured.insert(quick, 2, 0, "quick")
        quick.commit()
        consumer.poll()
        consumer.confirm()
        assert [row[0] for row in cells(consumer.rows)] == [2]
        captured.update(quick, 2, "again")
        quick.commit()
        slow.commit()
    consumer.poll()
    consumer.confirm()
    assert [row[:3] for row in cells(consumer.rows)] == [(1, 0, "slow"), (2, 0, "again")]
    assert consumer.poll() == frozenset()


def test_what_is_rolled_back_is_not_delivered(captured: Captured, consumer: Consumer) -> None:
    consumer.poll()
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
        connection.execute("SAVEPOINT s")
        captured.insert(connection, 2, 0, "b")
        connection.execute("ROLLBACK TO s")
        connection.commit()
        captured.insert(connection, 3, 0, "c")
        connection.rollback()
    consumer.poll()
    assert [row[0] for row in cells(consumer.rows)] == [1]


class _Writers:
    """Threads that never stop writing until they are told to; each writes keys of its own, and some that all write."""

    def __init__(self, tables: list[Captured], seed: int, threads: int = 2) -> None:
        self._tables = tables
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self.commits = 0
        self._threads = [threading.Thread(target=self._run, args=(seed + n,)) for n in range(threads)]

    def __enter__(self) -> _Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors, self._errors

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        try:
            with psycopg.connect(self._tables[0].url) as connection:
                while not self._stop.is_set():
                    self._transaction(connection, rng)
        except BaseException as error:
            self._errors.append(error)

    def _transaction(self, connection: psycopg.Connection[tuple[object, ...]], rng: random.Random) -> None:
        try:
            for _ in range(rng.randrange(1, 5)):
                table, key = rng.choice(self._tables), rng.randrange(12)
                what = rng.choice(["insert", "update", "delete"])
                if what == "delete" and table.may_delete:
                    table.delete(connection, key)
                elif what == "update":
                    table.update(connection, key, rng.choice("abc"))
                else:
                    table.insert(connection, key, rng.randrange(12), rng.choice("abc"))
            if rng.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                self.commits += 1
        except psycopg.errors.DeadlockDetected:
            connection.rollback()


def test_polls_are_exact_while_writers_never_stop(captured: Captured, consumer: Consumer) -> None:
    with _Writers([captured], seed=1) as writers:
        polls = 0
        while polls < 10 or writers.commits < 40:
            consumer.poll()  # compares with the table in the snapshot of the poll
            if polls % 3 == 0:
                consumer.confirm()
            polls += 1
    consumer.poll()


@pytest.mark.parametrize(
    ("left", "right"),
    [("triggers", "tracking"), ("decoding", "three audit columns"), ("triggers, cheap", "decoding, full")],
)
def test_a_view_of_remote_tables_is_exact_while_writers_never_stop(database: str, left: str, right: str) -> None:
    """Deltas and states of one server are read in one snapshot, so no anomaly occurs."""
    tables = [Captured(database, left), Captured(database, right)]
    server = Server(database)
    sources = [t.source() for t in tables]
    remotes = [Remote(s.name, s.schema, s.capture) for s in sources]
    renamed = [
        Projection(r, tuple((f"{side}_{c}", c) for c in ("id", "ref", "name")))
        for side, r in zip("lr", remotes, strict=True)
    ]
    view = KeyJoin(renamed[0], renamed[1], ("l_ref",))
    check_maintainable(view, "v")
    stored = view.schema.arrow.empty_table()
    positions: dict[str, str | None] = dict.fromkeys(s.name for s in sources)
    with _Writers(tables, seed=7) as writers:
        cycles = 0
        while cycles < 12 or writers.commits < 40:
            with server.snapshot() as snapshot:
                polls = {s.name: s.poll_in(snapshot, positions[s.name]) for s in sources}
                states = SnapshotStates(snapshot, sources)
                delta = propagate(view, "v", {n: p.delta for n, p in polls.items()}, states)
                remote = {s.name: s.rows(snapshot, s.live) for s in sources}
            stored = applied(stored, delta)
            assert cells(stored) == recomputed(view, remote)
            for source in sources:
                positions[source.name] = polls[source.name].position
                source.confirm(polls[source.name].position)
            cycles += 1
    for source in sources:
        if hasattr(source, "drop"):
            source.drop()
