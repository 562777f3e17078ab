"""Auxiliary views on Spark: views that are rewritten over them hold what their own texts give, whatever happens."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.lineage import is_auxiliary, rewriting_ids
from freshview.catalog.records import Relation
from freshview.definition import proof, selftest
from freshview.definition.known import settings_of
from freshview.definition.proof import RewritingTest
from freshview.definition.rewriting import Auxiliary as AuxiliaryFacts
from freshview.definition.rewriting import Rewriting
from freshview.errors import InvalidStatement
from freshview.optimizer.choice import Choice, choice_of, described
from freshview.optimizer.cost import PERMANENT, Costs, Store
from freshview.optimizer.greedy import Selection, Taken
from freshview.optimizer.operations import Equivalence, StoredRelation
from freshview.optimizer.prices import Prices
from freshview.optimizer.statistics import Facts
from freshview.refresh.workload import workload
from freshview.sql.statements import CreateView
from freshview.views import auxiliaries
from freshview.views.auxiliaries import CREATED, DROPPED, KEPT, REFUSED, REWRITTEN, AppliedPart, Auxiliaries
from freshview.views.benefit import Benefit

pytestmark = pytest.mark.spark

_DISCOUNTS = (Decimal("0"), Decimal("0.1"), Decimal("0.2"), Decimal("0.3"), None)
_JOINED = "customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey"
_VIEWS = {
    "v1": (  # LAZY §5.1
        "SELECT c_nationkey, c_segment, sum(l_price * (1 - l_discount)) AS revenue, sum(l_quantity) AS quantity, "
        f"count(*) AS n, avg(l_quantity) AS mean FROM {_JOINED} GROUP BY c_nationkey, c_segment"
    ),
    "by_nation": (
        "SELECT c_nationkey, max(l_price) AS top, min(o_day) AS first, count(l_discount) AS k "
        f"FROM {_JOINED} GROUP BY c_nationkey HAVING count(*) > 1"
    ),
    "total": f"SELECT sum(l_quantity) AS q, count(c_segment) AS s FROM {_JOINED}",
    "lines": f"SELECT l_orderkey, l_line, c_custkey, o_day, l_price FROM {_JOINED} WHERE l_quantity > 2",
    "weights": f"SELECT c_segment, sum(l_weight) AS w FROM {_JOINED} GROUP BY c_segment",
    "sizes": "SELECT n, count(*) AS k, sum(quantity) AS q FROM v1 GROUP BY n",
}
# Of two tables, so that the proof of its rewriting takes a second.
_ORDERED = (
    "SELECT c_nationkey, sum(o_orderkey) AS keys, count(*) AS n FROM customer JOIN orders ON c_custkey = o_custkey "
    "GROUP BY c_nationkey"
)


@pytest.fixture(autouse=True)
def _proofs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewritings are right by themselves: only tests about their proof, which takes most of the time, have it.

    It tries tables of many rows three times; here once, but for a soak.
    """
    if request.node.get_closest_marker("selftest") is None:
        monkeypatch.setattr(RewritingTest, "run", lambda _: selftest.Tested(rows=1, rounds=1))
    elif not IS_SOAK:
        monkeypatch.setattr(proof, "_MANY", proof._MANY[:1])


def _tables(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE customer (c_custkey INT, c_nationkey INT, c_segment STRING, PRIMARY KEY (c_custkey))")
    wh.sql("CREATE TABLE orders (o_orderkey INT, o_custkey INT, o_day DATE, PRIMARY KEY (o_orderkey))")
    wh.sql(
        "CREATE TABLE lineitem (l_orderkey INT, l_line INT, l_quantity INT, l_price DECIMAL(12,2), "
        "l_discount DECIMAL(4,2), l_weight DOUBLE, PRIMARY KEY (l_orderkey, l_line))"
    )
    rows: dict[str, list[tuple[Any, ...]]] = {
        "customer": [(i, (0, 1, 2, None)[i % 4], ("A", "B", None)[i % 3]) for i in range(1, 13)],
        "orders": [(i, i % 14 or None, date(2020, 1, 1 + i % 5)) for i in range(1, 31)],
        "lineitem": [
            (i % 30 + 1, i, (0, 1, None, 3, 4, 5, 6)[i % 7], Decimal(i) * 3 / 2, _DISCOUNTS[i % 5], i / 7)
            for i in range(1, 61)
        ],
    }
    with wh.transaction() as tx:
        for table, found in rows.items():
            names = internals(wh).relation(table).schema.names
            tx.insert(table, [dict(zip(names, row, strict=True)) for row in found])


def _choice(wh: Warehouse, wanted: Callable[[str], bool], names: Iterable[str] | None = None) -> Choice:
    """A choice that stores the results whose description is wanted, whatever they cost."""
    parts = internals(wh)
    every = parts.relations()
    chosen = [r for r in every if r.kind == "view" and not is_auxiliary(r) and (names is None or r.name in names)]
    over = workload([(v, parts.views.definitions.of(v)) for v in chosen], every)
    facts = {name: Facts(1e6, {}, inserted=10.0, deleted=10.0) for name in over.relations}
    costs = Costs(over.dag, facts, Prices())
    taken = []
    for node in list(costs.nodes):
        if _may_be_stored(costs, node) and wanted(described(over.dag, node)):
            change = Store(node.number, PERMANENT)
            costs.apply(change)
            taken.append(Taken(change, 1.0, 1.0))
    return choice_of(over.dag, Selection(costs, 0.0, tuple(taken), ()))


def _may_be_stored(costs: Costs, node: Equivalence) -> bool:
    return not isinstance(node, StoredRelation) and node.number not in costs.owner


def _apply(wh: Warehouse, choice: Choice) -> tuple[AppliedPart, ...]:
    return internals(wh).views.auxiliaries.apply(choice)


def _auxiliaries(wh: Warehouse) -> list[Relation]:
    return [r for r in internals(wh).relations() if is_auxiliary(r)]


def _rewritten(wh: Warehouse) -> set[str]:
    return {r.name for r in internals(wh).relations() if rewriting_ids(r)}


def _check(wh: Warehouse, *names: str) -> None:
    """Every view, auxiliary ones too, or each of these holds what its own text gives."""
    wh.maintain()
    for view in internals(wh).relations():
        if view.kind == "view" and (not names or view.name in names):
            report = wh.check(view.name)
            assert report.ok, (view.name, report)


def _some(draw: random.Random, most: int) -> Callable[[str], bool]:
    """Take results at random, so many at most."""
    taken: list[str] = []

    def wanted(description: str) -> bool:
        if len(taken) < most and draw.random() < 0.2:
            taken.append(description)
        return description in taken

    return wanted


def _v1(description: str) -> bool:
    return description.startswith("γ[orders.o_custkey]")


_STATEMENTS = (
    "UPDATE customer SET c_nationkey = 2 WHERE c_custkey IN (1, 5)",
    "UPDATE customer SET c_nationkey = NULL, c_segment = 'C' WHERE c_custkey = 2",
    "DELETE FROM lineitem WHERE l_quantity = 6",
    "INSERT INTO lineitem VALUES (1, 900, 5, 99999.99, 0.5, 1.5), (2, 901, NULL, NULL, NULL, NULL)",
    "UPDATE lineitem SET l_price = 1 WHERE l_price = 99999.99",  # the largest price of a group goes
    "DELETE FROM orders WHERE o_custkey = 3",
    "DELETE FROM customer WHERE c_nationkey = 1",  # a group dies
    "INSERT INTO customer VALUES (50, 1, NULL), (51, NULL, 'A')",  # and comes back
    "INSERT INTO orders VALUES (100, 50, DATE'2020-01-01'), (101, 51, NULL), (102, NULL, NULL)",
    "INSERT INTO lineitem VALUES (100, 1, 1, 1, 0.1, 1), (101, 1, 2, 3, 0.1, 1), (102, 1, 3, 5, 0.2, 2)",
    "DELETE FROM lineitem",  # nothing is left
    "INSERT INTO lineitem SELECT o_orderkey, 2000 + (SELECT count(*) FROM lineitem), 4, 10.5, 0.1, 1 FROM orders",
)


def _open(path: Path, spark: SparkSession) -> Warehouse:
    return freshview.connect(path, spark=spark)


def test_v1_of_lazy_is_kept_over_groups_of_its_facts(tmp_path: Path, spark: SparkSession) -> None:
    with _open(tmp_path / "w", spark) as wh:
        _tables(wh)
        wh.sql(f"CREATE MATERIALIZED VIEW v1 AS {_VIEWS['v1']}")
        before = internals(wh).relation("v1").schema
        steps = _apply(wh, _choice(wh, _v1))
        assert [s.what for s in steps] == [CREATED, REWRITTEN], steps
        (auxiliary,) = _auxiliaries(wh)
        assert internals(wh).relation("v1").schema == before
        for number, statement in enumerate(_STATEMENTS):
            wh.sql(statement)
            if IS_SOAK or number in (5, 9):  # before a group dies, and before all do
                _check(wh, "v1")  # its rows are made of those of the auxiliary view
            else:
                wh.maintain()  # a row that is wrong stays so
        _check(wh)
        used = internals(wh).views.definitions.of(internals(wh).relation("v1")).rewriting
        assert used is not None
        assert used.form is not None
        assert used.form.rule == "sums"
        assert {r.name for r in used.sources.values()} == {"customer", auxiliary.name}
        strategies = {j.strategy for j in wh.history("v1")}
        assert "incremental" in strategies
        last = [j for j in wh.history("v1") if j.strategy == "incremental"][-1]
        assert set(last.condense) <= {"customer", auxiliary.name, "v1"}  # its deltas are those of the rewriting


def _shop(path: Path, spark: SparkSession, *names: str) -> Warehouse:
    wh = _open(path, spark)
    _tables(wh)
    for name in names or _VIEWS:
        wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {_VIEWS[name]}")
    return wh


@pytest.mark.parametrize("seed", range(3 if IS_SOAK else 1))
def test_any_stored_results_keep_all_views_right_through_random_changes(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    """Also while choices change, and transactions read views and change them with their commits."""
    draw = random.Random(seed)
    with _shop(tmp_path / "w", spark, *(() if IS_SOAK else ("v1", "lines", "weights", "sizes"))) as wh:
        rewritten: set[str] = set()
        statements = draw.sample(_STATEMENTS, 8)
        for turn in range(2):
            _apply(wh, _choice(wh, _some(draw, 6 if IS_SOAK else 2)))
            rewritten |= _rewritten(wh)
            for statement in statements[4 * turn : 4 * turn + 4]:
                if draw.random() < 0.3:
                    with wh.transaction() as tx:
                        tx.sql(statement)
                        tx.sql("SELECT * FROM v1").collect()
                        tx.sql("UPDATE customer SET c_segment = 'T' WHERE c_custkey = 4")
                else:
                    wh.sql(statement)
                if draw.random() < 0.5:
                    _check(wh, *(() if IS_SOAK else ("v1",)))
        _check(wh)
        assert rewritten


def test_rewritten_views_are_refreshed_together_over_what_is_stored(tmp_path: Path, spark: SparkSession) -> None:
    """By `maintain` and by a query; each view reads what its own job would read."""
    with _shop(tmp_path / "w", spark, "v1", "by_nation", "total") as wh:
        _apply(wh, _choice(wh, _v1))
        (auxiliary,) = _auxiliaries(wh)
        assert _rewritten(wh) == {"v1", "by_nation", "total"}
        for statement in _STATEMENTS[:3]:
            wh.sql(statement)
            wh.maintain()
            if IS_SOAK:
                _check(wh)  # rows that are wrong now stay so
        wh.sql(_STATEMENTS[3])
        ahead = str(wh.explain("v1"))
        assert "refreshed together" not in ahead  # what it is rewritten over goes first
        wh.sql("SELECT (SELECT sum(n) FROM v1), (SELECT count(*) FROM by_nation)").collect()
        _check(wh)
        for name in ("v1", "by_nation"):
            jobs = [job for job in wh.history(name) if job.strategy == "incremental"]
            assert jobs
            assert all("shared" in job.phases for job in jobs)
            assert any(auxiliary.name in job.condense for job in jobs)
            assert not any("lineitem" in job.condense for job in jobs)
        estimated = internals(wh).views.proposing.proposed(counting=False).compared
        assert {c.view for c in estimated} >= {"v1", "by_nation", auxiliary.name}  # as things are stored now


def test_applying_a_choice_again_changes_nothing_and_another_one_drops_what_nobody_reads(
    tmp_path: Path, spark: SparkSession
) -> None:
    with _shop(tmp_path / "w", spark, "v1", "total") as wh:
        first = _apply(wh, _choice(wh, _v1))
        assert {s.what for s in first} == {CREATED, REWRITTEN}
        csn, known = wh.status().csn, _auxiliaries(wh)
        again = _apply(wh, _choice(wh, _v1))
        assert {s.what for s in again} == {KEPT}
        assert (wh.status().csn, _auxiliaries(wh)) == (csn, known)
        none = _apply(wh, _choice(wh, lambda _: False))
        assert {s.what for s in none} == {"own text", DROPPED}
        assert not _auxiliaries(wh)
        assert not _rewritten(wh)
        wh.sql(_STATEMENTS[0])
        _check(wh)


def test_a_death_between_two_steps_leaves_right_views_and_the_next_application_tidies_up(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _shop(tmp_path / "w", spark, "v1", "total") as wh:
        choice = _choice(wh, lambda d: _v1(d) or d == "lineitem ⋈ orders [lineitem.l_orderkey = orders.o_orderkey]")
        catalog = internals(wh).views.auxiliaries.rewritings

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        for method in ("attach", "drop_unread"):
            with monkeypatch.context() as patch:
                patch.setattr(type(catalog), method, die)
                with pytest.raises(KeyboardInterrupt):
                    _apply(wh, choice)
            wh.sql(_STATEMENTS[0 if method == "attach" else 2])
            _check(wh, "v1", "total")
        _apply(wh, _choice(wh, lambda _: False))
        assert not _auxiliaries(wh)
        wh.sql(_STATEMENTS[3])
        _check(wh)


def test_users_tables_and_views_can_be_dropped_replaced_and_renamed_whatever_is_stored(
    tmp_path: Path, spark: SparkSession
) -> None:
    with _shop(tmp_path / "w", spark, "v1", "by_nation", "sizes") as wh:
        _apply(wh, _choice(wh, _v1))
        (auxiliary,) = _auxiliaries(wh)
        assert _rewritten(wh) >= {"v1", "by_nation"}
        for statement in (
            f"ALTER MATERIALIZED VIEW {auxiliary.name} SET TBLPROPERTIES ('refresh'='full')",
            f"ALTER TABLE {auxiliary.name} RENAME TO mine",
            f"CREATE MATERIALIZED VIEW mine AS SELECT * FROM {auxiliary.name}",
        ):
            with pytest.raises(InvalidStatement, match="auxiliary"):
                wh.sql(statement)
        wh.sql("ALTER TABLE customer RENAME TO clients")
        wh.sql("UPDATE clients SET c_nationkey = 2 WHERE c_custkey = 1")
        _check(wh)
        assert _rewritten(wh) >= {"v1", "by_nation"}
        wh.sql("DROP MATERIALIZED VIEW by_nation")
        assert _auxiliaries(wh) == [auxiliary]
        wh.sql("DROP MATERIALIZED VIEW sizes")
        wh.sql("CREATE OR REPLACE MATERIALIZED VIEW v1 AS SELECT c_nationkey, count(*) n FROM clients GROUP BY 1")
        assert not _auxiliaries(wh)
        _check(wh)


def test_a_users_view_that_only_auxiliary_views_read_can_be_dropped(tmp_path: Path, spark: SparkSession) -> None:
    """They go with it, and what was rewritten over them goes on by its own text."""
    with _shop(tmp_path / "w", spark, "v1", "total") as wh:
        parts = internals(wh)
        facts = AuxiliaryFacts("v1", settings=settings_of(parts.relation("v1")))
        parts.views.lifecycle.create(CreateView("aux_x", "SELECT c_segment, quantity FROM v1"), facts)
        (auxiliary,) = _auxiliaries(wh)
        sources = {"aux_x": {"id": auxiliary.id, "columns": ["c_segment", "quantity"]}}
        rewriting = json.dumps({"text": "", "sources": sources})
        parts.views.auxiliaries.rewritings.attach(parts.relation("total"), rewriting, [auxiliary])
        wh.sql("DROP MATERIALIZED VIEW v1")
        assert not _auxiliaries(wh)
        assert not _rewritten(wh)
        wh.sql(_STATEMENTS[2])
        _check(wh)


def test_an_auxiliary_view_can_be_dropped_and_its_views_go_on_by_their_own_text(
    tmp_path: Path, spark: SparkSession
) -> None:
    with _shop(tmp_path / "w", spark, "v1") as wh:
        _apply(wh, _choice(wh, _v1))
        (auxiliary,) = _auxiliaries(wh)
        listed = {r["name"]: r for r in wh.sql("SHOW MATERIALIZED VIEWS").collect()}
        assert listed[auxiliary.name]["mode"] == "auxiliary"
        assert "for v1" in listed[auxiliary.name]["about"]
        assert listed["v1"]["about"] == f"rewritten over {auxiliary.name}"
        assert f"rewritten over: {auxiliary.name} (tested on" in str(wh.explain("v1"))
        wh.sql(f"DROP MATERIALIZED VIEW {auxiliary.name}")
        assert not _rewritten(wh)
        wh.sql(_STATEMENTS[0])
        _check(wh)


@pytest.mark.selftest
def test_a_rewriting_is_proven_on_random_tables(tmp_path: Path, spark: SparkSession) -> None:
    with _open(tmp_path / "w", spark) as wh:
        _tables(wh)
        wh.sql(f"CREATE MATERIALIZED VIEW v1 AS {_VIEWS['v1'] if IS_SOAK else _ORDERED}")
        steps = _apply(wh, _choice(wh, _v1))
        assert [s.what for s in steps] == [CREATED, REWRITTEN], steps
        (tested,) = re.findall(r"\(tested on (\d+) rows", str(wh.explain("v1")))
        assert int(tested) > 10
        wh.sql(_STATEMENTS[5])
        _check(wh)


@pytest.mark.selftest
def test_a_rewriting_that_does_not_hold_is_refused_with_an_example(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _open(tmp_path / "w", spark) as wh:
        _tables(wh)
        wh.sql(f"CREATE MATERIALIZED VIEW v1 AS {_ORDERED}")
        choice, attach = _choice(wh, _v1), Auxiliaries.rewrite

        def wrong(to: Auxiliaries, view: Relation, rewriting: Rewriting, sources: dict[str, Relation]) -> Rewriting:
            return attach(to, view, replace(rewriting, text=rewriting.text.replace("SUM(", "MAX(")), sources)

        monkeypatch.setattr(Auxiliaries, "rewrite", wrong)
        steps = _apply(wh, choice)
        assert [(s.what, s.name) for s in steps if s.what == REFUSED] == [(REFUSED, "v1")]
        assert not _rewritten(wh)
        assert not _auxiliaries(wh)
        _check(wh)


def test_eager_and_deferred_views_are_not_rewritten(tmp_path: Path, spark: SparkSession) -> None:
    with _shop(tmp_path / "w", spark, "v1", "total") as wh:
        wh.sql("ALTER MATERIALIZED VIEW v1 SET TBLPROPERTIES ('maintenance'='eager')")
        steps = _apply(wh, _choice(wh, _v1))
        assert [(s.what, s.name) for s in steps if s.name == "v1"] == [(REFUSED, "v1")]
        wh.sql("ALTER MATERIALIZED VIEW v1 SET TBLPROPERTIES ('maintenance'='lazy')")
        _apply(wh, _choice(wh, _v1))
        assert "v1" in _rewritten(wh)
        wh.sql("ALTER MATERIALIZED VIEW v1 SET TBLPROPERTIES ('maintenance'='deferred')")
        assert "v1" not in _rewritten(wh)
        wh.sql(_STATEMENTS[0])
        wh.refresh("v1")
        _check(wh)


def test_recomputing_reads_the_text_whatever_is_stored(tmp_path: Path, spark: SparkSession) -> None:
    with _shop(tmp_path / "w", spark, "v1") as wh:
        _apply(wh, _choice(wh, _v1))
        wh.sql(_STATEMENTS[0])
        wh.sql("REFRESH MATERIALIZED VIEW v1 FULL")
        wh.sql(_STATEMENTS[2])
        _check(wh)
        (auxiliary,) = _auxiliaries(wh)
        wh.sql(f"REFRESH MATERIALIZED VIEW {auxiliary.name} FULL")
        wh.sql(_STATEMENTS[3])
        _check(wh)


def test_auxiliary_views_that_are_left_to_the_background_stay_while_they_pay(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _shop(tmp_path / "w", spark, "v1", "total") as wh:
        views = internals(wh).views
        wh.sql("ALTER MATERIALIZED VIEW v1 SET TBLPROPERTIES ('auxiliary'='auto')")

        def propose(asked: Sequence[Relation]) -> Choice:
            return _choice(wh, _v1, [view.name for view in asked])

        assert views.auxiliaries.keep(propose) == ()  # nothing was measured yet
        wh.sql(_STATEMENTS[0])
        wh.maintain()
        assert [s.what for s in views.auxiliaries.keep(propose)] == [CREATED, REWRITTEN]
        assert _rewritten(wh) == {"v1"}  # 'total' was not left to it
        assert views.auxiliaries.keep(propose) == ()
        measured = [Benefit(jobs=3, cost=1.0, helped=9, saved=saved) for saved in (2.0, 0.5)]
        monkeypatch.setattr(auxiliaries, "benefit", lambda *_: measured.pop(0))
        assert views.auxiliaries.keep(propose) == ()
        assert {s.what for s in views.auxiliaries.keep(propose)} == {REFUSED, DROPPED}
        assert not _rewritten(wh)
        assert {s.what for s in views.auxiliaries.keep(propose)} == {REFUSED}
        _check(wh)
