"""Texts of queries: which are kept, for how long, and that nothing but the catalog has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.catalog.view_world import World
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.expiring import HISTORY
from freshview.catalog.queries import LONGEST, MOST, KeptQuery, QueryCatalog
from freshview.catalog.statistics import StatisticsCatalog
from freshview.storage.vacuum import vacuum


@pytest.fixture
def world(tmp_path: Path, catalog_url: str | None) -> Iterator[World]:
    world = World(tmp_path, url=catalog_url)
    yield world
    world.close()


def _texts(wh: Warehouse) -> dict[str, int]:
    return {one.text: one.runs for one in QueryCatalog(internals(wh).catalog).kept()}


def test_runs_of_a_text_add_up_over_processes(world: World) -> None:
    ours, theirs = (QueryCatalog(world.process().catalog) for _ in range(2))
    ours.note({"SELECT 1": (2, 10), "SELECT 2": (1, 11)})
    theirs.note({"SELECT 2": (4, 20), "SELECT 3": (1, 21)})
    kept = [KeptQuery("SELECT 2", 5, 11, 20), KeptQuery("SELECT 1", 2, 10, 10), KeptQuery("SELECT 3", 1, 21, 21)]
    assert ours.kept() == theirs.kept() == kept


def test_the_texts_that_ran_last_are_kept(world: World) -> None:
    queries = QueryCatalog(world.process().catalog)
    queries.note({"SELECT 'often'": (1000, 1), "SELECT 'again'": (1, 2)})
    queries.note({f"SELECT {n}": (1, 10 + n) for n in range(MOST - 1)})
    queries.note({"SELECT 'again'": (1, 5000)})
    assert len(queries.kept()) == MOST
    queries.note({"SELECT 'new'": (1, 6000)})
    texts = {one.text for one in queries.kept()}
    assert len(texts) == MOST
    assert {"SELECT 'again'", "SELECT 'new'"} < texts
    assert not {"SELECT 'often'", "SELECT 0"} & texts


def test_vacuum_forgets_texts_that_have_not_run_for_thirty_days(world: World) -> None:
    process = world.process()
    queries, now = QueryCatalog(process.catalog), process.catalog.now()
    old, young = now - HISTORY - 60_000_000, now - HISTORY + 60_000_000
    queries.note({"SELECT 'old'": (1, old), "SELECT 'young'": (1, young), "SELECT 'both'": (1, old)})
    queries.note({"SELECT 'both'": (1, now)})
    vacuum(process.catalog, process.storage, process.events)
    assert {one.text for one in queries.kept()} == {"SELECT 'young'", "SELECT 'both'"}


def test_refreshes_are_those_of_the_view_that_had_most_and_extrapolated_beyond_thirty_days(tmp_path: Path) -> None:
    world = World(tmp_path)  # on the test's clock
    process = world.process()
    view, begun = process.view("v", process.table("a")), world.now
    process.view("w", process.catalog.relation("a"))
    known = StatisticsCatalog(process.catalog)
    assert known.refreshes(begun) == 0
    for n in range(3):
        world.now += 1_000_000
        process.put({"a": {n: n}})
        process.jobs.bring(view, process.catalog.snapshot())
    assert known.refreshes(begun) == 3
    assert known.refreshes(world.now - 500_000) == 1
    assert known.refreshes(world.now + 1) == 0
    assert known.refreshes(world.now - 2 * HISTORY) == pytest.approx(6)
    world.close()


def test_queries_are_stored_with_the_heartbeat_and_when_the_warehouse_closes(
    open_warehouse: Callable[[], Warehouse],
) -> None:
    ours, theirs = open_warehouse(), open_warehouse()
    ours.sql("CREATE TABLE a (k INT PRIMARY KEY)")
    internals(ours).ran("SELECT  k -- all\nFROM a")
    internals(ours).ran("SELECT k FROM a;")
    assert _texts(theirs) == {}, "a query does not write"
    internals(ours).heartbeat()
    assert _texts(theirs) == {"SELECT k FROM a": 2}
    internals(ours).ran("SELECT k FROM a")
    ours.close()
    assert _texts(theirs) == {"SELECT k FROM a": 3}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "SELECT * FROM nowhere",
        "EXPLAIN SELECT * FROM a",
        "DESCRIBE QUERY SELECT * FROM a",
        "SELECT * FROM a VERSION AS OF 1",
        "SELECT * FROM a TIMESTAMP AS OF '2030-01-01'",
        "SELECT '\0' FROM a",
        f"SELECT '{'x' * LONGEST}' FROM a",
    ],
)
def test_other_texts_are_not_kept(open_warehouse: Callable[[], Warehouse], text: str) -> None:
    wh = open_warehouse()
    wh.sql("CREATE TABLE a (k INT PRIMARY KEY)")
    internals(wh).ran(text)
    internals(wh).heartbeat()
    assert _texts(wh) == {}


def test_nothing_is_kept_by_a_process_that_was_told_not_to(tmp_path: Path, catalog_url: str | None) -> None:
    with freshview.connect(tmp_path, catalog=catalog_url, keep_queries=False) as wh:
        wh.sql("CREATE TABLE a (k INT PRIMARY KEY)")
        internals(wh).ran("SELECT 'secret' FROM a")
        internals(wh).heartbeat()
        assert _texts(wh) == {}


def test_no_event_has_the_text_of_a_query_even_if_it_cannot_be_stored(open_warehouse: Callable[[], Warehouse]) -> None:
    """Law: texts may have secrets in literals, so no event has one."""
    wh, seen = open_warehouse(), []
    wh.sql("CREATE TABLE a (k INT PRIMARY KEY)")
    wh.events.listen(lambda event: seen.append(f"{event.name} {json.dumps(event.details, default=str)}"))
    internals(wh).ran("SELECT 'secret' FROM a")
    internals(wh).step_of_upkeep()
    assert _texts(wh) == {"SELECT 'secret' FROM a": 1}
    with internals(wh).catalog.database.write() as c:
        c.execute(sa.text("DROP TABLE fv_queries"))
    internals(wh).ran("SELECT 'secret' FROM a")
    internals(wh).step_of_upkeep()
    assert any("background.failed" in one for one in seen)
    assert "secret" not in " ".join(seen)
