"""What the catalog knows for the optimiser: counts that age, how much tables change, and prices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.catalog.view_world import Process, World

from freshview.catalog import tables as t
from freshview.catalog.expiring import HISTORY
from freshview.catalog.statistics import AGED, Churn, Counts, StatisticsCatalog
from freshview.optimizer.prices import Engine, Prices
from freshview.refresh.facts import PENDING, USUAL, found
from freshview.refresh.workload import Workload
from freshview.storage.vacuum import vacuum

DAY = 24 * 3600 * 1_000_000


@pytest.fixture
def process(tmp_path: Path, catalog_url: str | None) -> Iterator[Process]:
    world = World(tmp_path, url=catalog_url)
    yield world.process()
    world.close()


def _known(process: Process) -> StatisticsCatalog:
    return StatisticsCatalog(process.catalog)


def test_counts_are_kept_until_the_table_has_changed_by_a_share(process: Process) -> None:
    table, known = process.table("a"), _known(process)
    csn = process.put({"a": {k: k for k in range(100)}})
    known.keep(table.id, csn, 100, {"v": 90})
    assert known.counts() == {table.id: Counts(100, {"v": 90})}
    process.put({"a": dict.fromkeys(range(int(AGED * 100)), 0)})
    assert known.counts() == {table.id: Counts(100, {"v": 90})}
    later = process.put({"a": {0: 1}})
    assert known.counts() == {}
    known.keep(table.id, later, 100, {"k": 100})
    assert known.counts() == {table.id: Counts(100, {"k": 100})}  # what was counted before has aged all the same


def test_counts_are_forgotten_with_commits_that_might_have_aged_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    process = world.process()
    table, known = process.table("a"), _known(process)
    known.keep(table.id, process.put({"a": {1: 1}}), 1, {})
    world.now += HISTORY + DAY
    assert known.counts() == {}
    world.close()


def test_counts_of_a_dropped_table_go_with_its_rows(process: Process) -> None:
    table, known = process.table("a"), _known(process)
    known.keep(table.id, process.put({"a": {1: 1}}), 1, {"k": 1})
    process.catalog.drop("a")
    vacuum(process.catalog, process.storage, process.events, timedelta(0))
    with process.catalog.database.read() as c:
        assert c.execute(sa.select(sa.func.count()).select_from(t.statistics)).scalar_one() == 0


def test_rows_are_those_of_main_and_all_delta_rows_since(process: Process) -> None:
    table = process.table("a")
    assert _known(process).rows() == {}
    process.put({"a": {1: 1, 2: 2}})
    process.put({"a": {1: 3}})
    assert _known(process).rows() == {table.id: 3}


def test_changes_per_refresh_are_what_jobs_found_and_else_what_is_pending(process: Process) -> None:
    table, known = process.table("a"), _known(process)
    process.put({"a": {k: k for k in range(1000)}})
    view = process.view("v", table)
    assert known.churn([table.id]) == {table.id: Churn()}  # what was loaded before the view is no change
    process.put({"a": {1: 5, 2: 5}})
    first = known.churn([table.id])[table.id]
    assert (first.written, first.refreshes, first.pending, first.per_refresh) == (2, 0, 2, 2.0)
    assert first.deletes == 0.5  # upserts
    process.jobs.bring(view, process.catalog.snapshot())
    process.put({"a": {1: 6, 2: 6, 3: 6, 4: 6}})
    process.jobs.bring(view, process.catalog.snapshot())
    process.put({"a": {1: 7}})
    after = known.churn([table.id])[table.id]
    assert (after.written, after.refreshes, after.pending, after.per_refresh) == (7, 2, 1, 3.5)
    assert known.changes_of_views()[view.id] > 0


def _over(process: Process, *names: str) -> Workload:
    relations = {n: process.catalog.relation(n) for n in names}
    return Workload(None, (), relations, {}, reads={"v": frozenset({"a"})})  # type: ignore[arg-type]


def test_facts_say_where_the_changes_are_from(process: Process) -> None:
    table = process.table("a")
    process.put({"a": {k: k for k in range(1000)}})
    process.view("v", table)
    known, over = _known(process), _over(process, "a", "v")
    guessed = found(known, over)
    assert (guessed.facts["a"].rows, guessed.facts["a"].changed) == (1000.0, 1.0)
    assert "no table has changed" in guessed.notes[0]
    assert found(known, over, 0.1).facts["a"].changed == 100.0
    assert found(known, over, PENDING).facts["a"].changed == 0.0
    process.put({"a": {1: 2, 3: 4}})
    for changes in (PENDING, USUAL):
        facts = found(known, over, changes)
        assert (facts.facts["a"].inserted, facts.facts["a"].deleted) == (1.0, 1.0)
        assert "pending now" in facts.notes[0]
    process.view("w", table)
    above = found(known, _over(process, "a", "w"), PENDING)
    assert above.facts["w"].changed == 0.0  # it has no rows that could change


def test_prices_are_kept_whole_and_what_was_not_measured_has_its_default(process: Process) -> None:
    known = _known(process)
    assert known.prices() is None
    assert Prices.of(known.prices()).is_default
    own = Prices(embedded=Engine(1, 2, 3, 4, 5, 6), lookup=0.5, is_default=False)
    known.set_prices(own.to_dict())
    known.set_prices(own.to_dict())
    assert Prices.of(known.prices()) == own
    assert Prices.of({"lookup": 0.25, "spark": {"query": 9}, "is_default": False, "of a later version": 1}) == Prices(
        spark=Engine(9, *list(Prices().spark.__dict__.values())[1:]), lookup=0.25, is_default=False
    )


def test_prices_that_were_stored_before_there_was_an_index_in_memory_still_load() -> None:
    new = ("indexed", "indexed_value", "index_memory", "index_values", "result")
    earlier = {name: price for name, price in Prices(lookup=0.5, is_default=False).to_dict().items() if name not in new}
    assert Prices.of(earlier) == Prices(lookup=0.5, is_default=False)
