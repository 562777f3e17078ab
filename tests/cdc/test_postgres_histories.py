"""A server that restarts, crashes, is promoted, restored or replaced while its changes are captured.

Law: a restart loses nothing and repeats nothing; in another history of the server no position is valid.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cdc.clusters import Cluster
from tests.cdc.remote_without_spark import computed_by_the_server, create, rows_of, types_of, without_spark
from tests.cdc.remote_world import World
from tests.cdc.servers import TECHNIQUES, Captured, Consumer

import freshview
from freshview.bench.postgres_server import server_tools
from freshview.cdc.postgres.decoding import Decoding
from freshview.cdc.postgres.server import Lineage, Server
from freshview.errors import CaptureFailed
from freshview.refresh.evaluation import Evaluation

pytestmark = pytest.mark.postgres
_KINDS = ["three audit columns", "triggers", "tracking", "decoding"]
_SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "synchronous_commit": "off",
    "wal_writer_delay": "10s",  # what is not flushed by a synchronous commit is lost in a crash
    "wal_level": "logical",
    "wal_retrieve_retry_interval": "100ms",  # of a standby that looks for the next log
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    tools = server_tools()
    if tools is None:
        pytest.skip("no PostgreSQL server is installed on this machine")
    cluster = Cluster(tools, _SETTINGS)
    yield cluster
    cluster.stop()


def _captured(cluster: Cluster, technique: str) -> tuple[Captured, Consumer]:
    """A table with two rows that were taken and confirmed."""
    captured = Captured(cluster.new_database(), technique)
    consumer = Consumer(captured.source())
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
        captured.insert(connection, 2, 0, "a")
    consumer.poll()
    consumer.confirm()
    return captured, consumer


def _drop(consumer: Consumer) -> None:
    source: Any = consumer.source
    if hasattr(source, "drop"):
        source.drop()


@pytest.mark.parametrize("how", ["fast", "immediate"])
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_restart_in_the_middle_of_a_stream_loses_and_repeats_nothing(
    cluster: Cluster, technique: str, how: str
) -> None:
    """Polls compare the rows with the table, and a row that is inserted twice is an error."""
    captured, consumer = _captured(cluster, technique)
    for key in range(3, 7):
        with captured.connect() as connection:
            connection.execute("SET synchronous_commit = on")  # as what the crash must not lose
            captured.insert(connection, key, 0, "b")
            captured.update(connection, 1, f"b{key}")
        if key % 2:  # between the commit of the application and the poll, or between the poll and its confirmation
            cluster.restart(how)
            consumer.poll()
        else:
            consumer.poll()
            cluster.restart(how)
            consumer.poll()
        consumer.confirm()
    assert consumer.rows.num_rows == 6
    assert consumer.poll() == frozenset()
    _drop(consumer)


@pytest.mark.parametrize("technique", _KINDS)
def test_a_crash_does_not_lose_what_was_delivered(cluster: Cluster, technique: str) -> None:
    """An asynchronous commit is visible before it is flushed. Lost, its number would be that of another change."""
    captured, consumer = _captured(cluster, technique)
    with captured.connect() as connection:
        captured.insert(connection, 3, 0, "asynchronous")
    consumer.poll()
    assert consumer.rows.num_rows == 3
    cluster.restart("immediate")
    with captured.connect() as connection:
        captured.insert(connection, 4, 0, "later")
    consumer.poll()
    assert consumer.rows.num_rows == 4
    _drop(consumer)


@pytest.mark.parametrize("technique", _KINDS)
def test_a_promoted_standby_that_lacks_changes_is_refused(cluster: Cluster, technique: str) -> None:
    """Its transactions get numbers that the position has seen: their changes would be skipped."""
    captured, consumer = _captured(cluster, technique)
    cluster.back_up()
    for key in range(3, 9):
        with captured.connect() as connection:
            captured.insert(connection, key, 0, "lost")
    consumer.poll()
    assert consumer.position is not None
    cluster.become_standby()
    with pytest.raises(CaptureFailed, match=r"it is a standby.*Capture changes at the primary"):
        consumer.source.poll(consumer.position)
    cluster.promote()
    source = consumer.source
    if isinstance(source, Decoding):
        source.install()  # as tools do that keep slots through a failover
    for key in range(20, 30):
        with captured.connect() as connection:
            captured.insert(connection, key, 0, "other")
    with pytest.raises(CaptureFailed) as raised:
        source.poll(consumer.position)
    timeline = json.loads(consumer.position)["server"]["timeline"]
    assert raised.value.what == f"table {captured.name}"
    assert f"the server is on timeline {timeline + 1}, and the position on timeline {timeline}" in raised.value.cause
    assert "REFRESH FLOW … FULL; of a view: REFRESH MATERIALIZED VIEW … FULL" in raised.value.remedy
    anew = Consumer(source)
    anew.poll()
    assert anew.rows.num_rows == 12
    cluster.restart()
    anew.poll()
    _drop(anew)


def test_a_server_that_was_initialised_anew_is_refused(cluster: Cluster) -> None:
    captured, consumer = _captured(cluster, "tracking")
    cluster.begin_anew()
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {captured.url.rpartition('/')[2]}".encode())
    with captured.connect() as connection:
        connection.execute(f"CREATE TABLE {captured.name} (id int PRIMARY KEY, ref int, name text)".encode())
    with pytest.raises(CaptureFailed, match="it is another one, or was initialised anew"):
        consumer.source.poll(consumer.position)


@pytest.mark.parametrize("technique", _KINDS)
def test_a_position_of_an_earlier_version_takes_the_history_of_its_server(cluster: Cluster, technique: str) -> None:
    captured, consumer = _captured(cluster, technique)
    assert consumer.position is not None
    with consumer.source.server.snapshot() as snapshot:
        now = snapshot.history
    stored = json.loads(consumer.position)
    assert Lineage(**stored.pop("server")) == now
    consumer.position = json.dumps(stored)
    with captured.connect() as connection:
        captured.insert(connection, 3, 0, "b")
    assert consumer.poll() == {"ins"}
    assert Lineage(**json.loads(consumer.position)["server"]) == now
    _drop(consumer)


def test_an_ordinary_user_may_read_the_history_and_flush(cluster: Cluster) -> None:
    """Also one whose transactions are read-only by default."""
    url = cluster.new_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("ALTER ROLE reader SET default_transaction_read_only = on")
        connection.execute("CREATE TABLE t (id int)")
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    with Server(url.replace("freshview@", "reader@")).snapshot() as mine, Server(url).snapshot() as owners:
        behind = "SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()"
        assert mine.fetch(behind) == [(True,)]
        assert mine.history == owners.history
        assert mine.fetch(behind) == [(False,)]


_QUERY = "SELECT x0.id AS k, x1.name AS n FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id"


def test_flows_and_views_go_on_by_a_full_refresh_after_a_failover(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both say so until then, also in a process that starts after the failover."""
    monkeypatch.setattr(Evaluation, "types", types_of)
    world = World(random.Random(1), cluster.new_database(), ["tracking", "decoding"])
    first = world.tables[0]
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        create(wh, world, "v", _QUERY, monkeypatch)
        wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s0.{first.name} KEYS (id)")
        wh.sql("REFRESH FLOW f")
    cluster.back_up()
    with freshview.connect(tmp_path / "warehouse") as wh:
        dimensions = without_spark(wh)
        with first.connect() as connection:
            first.insert(connection, 40, 1, "lost")
        dimensions.refresh(dimensions.all())
        wh.sql("REFRESH FLOW f")
    cluster.become_standby()
    cluster.promote()
    for _ in range(3):
        world.change()
    with freshview.connect(tmp_path / "warehouse") as wh:
        computed_by_the_server(wh, world, monkeypatch)
        dimensions = without_spark(wh)
        for _ in range(2):
            with pytest.raises(CaptureFailed, match="it was promoted from a standby, or restored"):
                dimensions.refresh(dimensions.all())
            with pytest.raises(CaptureFailed, match="it was promoted from a standby, or restored"):
                wh.sql("REFRESH FLOW f")
        assert "promoted" in wh.status().flows[0].warning
        wh.sql("REFRESH MATERIALIZED VIEW v FULL")
        wh.sql("REFRESH FLOW f FULL")
        for _ in range(2):
            assert rows_of(wh, "v") == world.answer(_QUERY)
            assert rows_of(wh, "t") == world.answer("SELECT x0.id, x0.ref, x0.name FROM r0 x0")
            world.change()
            dimensions.refresh(dimensions.all())
            wh.sql("REFRESH FLOW f")
