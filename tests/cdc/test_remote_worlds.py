"""Whatever changes on a server, however it is captured, whatever dies: views of remote tables equal their text.

The oracle is the server itself, which runs the same text over the tables; `check` compares with Spark besides.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cdc.remote_world import World
from tests.cdc.servers import TECHNIQUES
from tests.effort import examples
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.cdc.postgres.tables import PostgresTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.postgres


def _rows(wh: Warehouse, name: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, wh.sql(f"SELECT * FROM {name}").collect()))


@pytest.mark.parametrize("seed", range(examples(3)))
def test_views_of_remote_tables_equal_their_definitions_after_every_cycle(
    seed: int, swh: Warehouse, database: str
) -> None:
    rng = random.Random(seed)
    techniques = rng.sample(list(TECHNIQUES), 4)
    world = World(rng, database, techniques)
    world.name(swh)
    views = {f"v{i}": world.query(joins) for i, joins in enumerate([0, rng.randrange(1, 4), 5])}
    for name, query in views.items():
        swh.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    swh.sql("CREATE MATERIALIZED VIEW above AS SELECT k % 2 AS half, count(*) AS n FROM v2 GROUP BY k % 2")
    for cycle in range(6):
        world.change()
        for name, query in views.items():
            assert _rows(swh, name) == world.answer(query), (seed, cycle, name, techniques, query)
        halves: dict[int, int] = {}
        for row in world.answer(views["v2"]):
            halves[row[0] % 2] = halves.get(row[0] % 2, 0) + 1
        assert _rows(swh, "above") == sorted(halves.items()), (seed, cycle)
    for name in (*views, "above"):
        assert swh.check(name).ok, (seed, name, techniques)


def test_views_are_exact_while_writers_never_stop(swh: Warehouse, database: str) -> None:
    rng = random.Random(7)
    world = World(rng, database, ["triggers", "tracking", "decoding, full", "three audit columns"])
    world.name(swh)
    swh.sql(
        "CREATE MATERIALIZED VIEW v AS SELECT x0.id AS k, x1.name AS n1, x2.name AS n2, x3.name AS n3 "
        "FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id JOIN r2 x2 ON x1.ref = x2.id JOIN r3 x3 ON x2.ref = x3.id"
    )
    with _writing(world):
        for _ in range(5):
            assert swh.check("v").ok
    assert swh.check("v").ok


def test_a_key_that_is_deleted_by_a_mark_and_comes_back_is_the_new_row_in_views(swh: Warehouse, database: str) -> None:
    """Between two polls that looks like an insertion; the old row may leave a view, by a filter or a partner."""
    world = World(random.Random(3), database, ["three audit columns", "three audit columns"])
    world.name(swh)
    views = {
        "filtered": "SELECT x0.id AS k, x0.ref AS r FROM r0 x0 WHERE x0.name = 'x'",
        "joined": "SELECT x0.id AS k, x0.ref AS r, x1.name AS n FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id",
        "partner": "SELECT x0.id AS k, x1.ref AS r FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id WHERE x1.name = 'x'",
    }
    s, t = world.tables
    with s.connect() as here, t.connect() as there:
        for key in range(3):
            here.execute(f"INSERT INTO {s.name} VALUES ({10 + key}, {20 + key}, 'x')".encode())
            there.execute(f"INSERT INTO {t.name} VALUES ({20 + key}, 0, 'x')".encode())
    for name, query in views.items():
        swh.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        assert _rows(swh, name) == world.answer(query)
    with s.connect() as here, t.connect() as there:
        for table, connection, first in ((s, here, 10), (t, there, 20)):
            table.delete(connection, first)
            table.revive(connection, first, 99, "y")
        s.delete(here, 11)
        s.revive(here, 11, 22, "x")
        s.delete(here, 11)  # it comes back and goes again
    for name, query in views.items():
        assert _rows(swh, name) == world.answer(query), name
        assert "three audit columns delivers del, up, ups, delk" in str(swh.explain(name))


@contextmanager
def _writing(world: World) -> Iterator[None]:
    stopping, failed = threading.Event(), []

    def write() -> None:
        try:
            while not stopping.is_set():
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


class _Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("technique", ["tracking", "triggers", "decoding", "three audit columns"])
def test_a_process_that_dies_in_a_cycle_loses_nothing_and_repeats_nothing(
    technique: str, tmp_path: Path, spark: SparkSession, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(11)
    world = World(rng, database, [technique, "tracking"])
    query = "SELECT x0.id AS k, x0.name AS n0, x1.name AS n1 FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id"
    with freshview.connect(tmp_path / "warehouse", spark=spark) as wh:
        world.name(wh)
        wh.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
        wh.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM v")
    for step in ("polled", "committed", "polled", "committed", ""):
        world.change()
        with freshview.connect(tmp_path / "warehouse", spark=spark) as wh, monkeypatch.context() as patch:
            if step == "polled":
                patch.setattr(internals(wh).dimensions.cycles, "_commit", _dies)
            elif step == "committed":
                for kind in (PostgresTable, *PostgresTable.__subclasses__()):
                    patch.setattr(kind, "confirm", _dies)
            if step:
                with pytest.raises(_Killed):
                    wh.sql("REFRESH MATERIALIZED VIEW v")
            else:
                assert _rows(wh, "v") == world.answer(query)
                assert _rows(wh, "n") == [(len(world.answer(query)),)]
                assert wh.check("v").ok
                assert wh.check("n").ok


def _dies(*_: object, **_options: object) -> None:
    raise _Killed
