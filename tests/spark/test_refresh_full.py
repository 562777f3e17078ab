"""REFRESH … FULL of a view whose stored rows are wrong: the views above it are right afterwards, too."""

from __future__ import annotations

from typing import Any

import pytest
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.errors import QueryFailed


@pytest.fixture
def chain(swh: Warehouse) -> Warehouse:
    """Three views, each over the one before."""
    swh.sql("CREATE TABLE s (id INT PRIMARY KEY, customer INT, amount INT)")
    swh.sql("INSERT INTO s VALUES (1, 1, 10), (2, 1, 20), (3, 2, 5)")
    swh.sql("CREATE MATERIALIZED VIEW low AS SELECT customer, sum(amount) a FROM s GROUP BY customer")
    swh.sql("CREATE MATERIALIZED VIEW mid AS SELECT customer, a FROM low WHERE a > 1")
    swh.sql("CREATE MATERIALIZED VIEW high AS SELECT count(*) n, sum(a) total FROM mid")
    return swh


def lose_rows(wh: Warehouse, name: str) -> None:
    """A view's stored rows are gone, as after damage that nobody noticed."""
    with internals(wh).writing_database() as c:
        c.execute(t.segments.delete().where(t.segments.c.relation_id == internals(wh).relation(name).id))


def compute_alone(wh: Warehouse, name: str) -> None:
    """One view from what lies below it, without those above: as if the process had ended then."""
    internals(wh).views.jobs.refresh(internals(wh).relation(name))


def rows(wh: Warehouse, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in wh.sql(f"SELECT * FROM {name}").collect())


def sound(wh: Warehouse) -> dict[str, bool]:
    return {v.name: wh.check(v.name, invariant=True).ok for v in wh.status().views}


def test_views_above_one_that_was_wrong_are_computed_anew_in_order(chain: Warehouse) -> None:
    chain.sql("CREATE MATERIALIZED VIEW beside AS SELECT id FROM s")
    lose_rows(chain, "low")
    for name in ("mid", "high"):  # they take what is wrong for right
        compute_alone(chain, name)
    assert rows(chain, "high") == [(0, None)]
    assert sound(chain) == {"low": False, "mid": False, "high": False, "beside": True}
    before = len(chain.history())
    assert chain.sql("REFRESH MATERIALIZED VIEW low FULL").rows == 2  # of the view that was named
    assert rows(chain, "high") == [(2, 35)]
    assert all(sound(chain).values())
    assert [(j.view, j.strategy) for j in chain.history()[before:]] == [(v, "full") for v in ("low", "mid", "high")]


def test_a_correction_below_is_no_delta_for_a_view_that_was_right(chain: Warehouse) -> None:
    """Law: rows that a view lost and got back do not count twice above it, wherever the process ended."""
    lose_rows(chain, "low")
    compute_alone(chain, "low")
    chain.sql("INSERT INTO s VALUES (4, 3, 7)")
    assert rows(chain, "high") == [(3, 42)]
    assert all(sound(chain).values())


@pytest.mark.parametrize("scenario", ["base-log", "combined"])
def test_a_deferred_view_above_shows_what_is_right(chain: Warehouse, scenario: str) -> None:
    chain.sql(
        "CREATE MATERIALIZED VIEW above TBLPROPERTIES ('maintenance'='deferred', "
        f"'scenario'='{scenario}') AS SELECT customer FROM low"
    )
    lose_rows(chain, "low")
    chain.refresh("above", full=True)
    assert rows(chain, "above") == []
    chain.refresh("low", full=True)
    assert rows(chain, "above") == [(1,), (2,)]
    assert all(sound(chain).values())


def test_a_view_above_that_fails_does_not_hold_up_the_others(chain: Warehouse) -> None:
    chain.sql("CREATE TABLE d (x INT PRIMARY KEY)")
    chain.sql("INSERT INTO d VALUES (1)")
    chain.sql("DROP MATERIALIZED VIEW mid CASCADE")
    chain.sql("CREATE MATERIALIZED VIEW fails AS SELECT customer, a div x AS q FROM low CROSS JOIN d")
    chain.sql("CREATE MATERIALIZED VIEW mid AS SELECT customer FROM low")
    chain.sql("INSERT INTO d VALUES (0)")
    lose_rows(chain, "low")
    compute_alone(chain, "mid")
    assert rows(chain, "mid") == []
    with pytest.raises(QueryFailed, match="DIVIDE_BY_ZERO"):
        chain.sql("REFRESH MATERIALIZED VIEW low FULL")
    assert rows(chain, "mid") == [(1,), (2,)]
    chain.sql("DELETE FROM d WHERE x = 0")
    assert rows(chain, "fails") == [(1, 30), (2, 5)]
    assert all(sound(chain).values())
