"""Cycles of dimension views without Spark: random worlds on a real server, random deaths, and the server as the oracle.

Only what the embedded engine is proven for stands in these views; the first rows of a view come from the server itself.
"""

from __future__ import annotations

import json
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.helpers import contents
from tests.cdc.remote_world import World
from tests.cdc.servers import TECHNIQUES
from tests.effort import examples
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.algebra.nodes import Project
from freshview.catalog.records import DIMENSION, Relation
from freshview.cdc.postgres.tables import PostgresTable
from freshview.definition.analysis import Definition, sources_to_json
from freshview.local.plans import translated
from freshview.refresh.evaluation import Evaluation
from freshview.relation.delta import INSERT, tag
from freshview.relation.ingest import to_table
from freshview.relation.schema import Column, Schema
from freshview.sql.lowering import lower
from freshview.transactions.transaction import Transaction
from freshview.views.dimensions import DimensionViews, _New
from freshview.warehouse.dimensions import explain_dimension

pytestmark = pytest.mark.postgres


class _Killed(BaseException):
    """The process ends here."""


def _types(_: Evaluation, plan: Project, schema: Schema) -> tuple[Column, ...]:
    known = {c.name: c.type for c in schema.columns}
    return tuple(Column(name, type_) for name, type_ in translated(plan, lambda _: known).columns)


def _definition(query: str, names: tuple[str, ...], sources: dict[str, Relation]) -> Definition:
    lowered = lower(query, {n: r.schema.names for n, r in sources.items()}, names)
    return Definition(query, sources, names, "auto", lowered, None, {}, "")


@dataclass
class _Definitions:
    """The definitions of stored views, read anew from their texts."""

    wh: Warehouse
    views: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def of(self, view: Relation) -> Definition:
        catalog = internals(self.wh).catalog
        given = json.loads(view.facts["sources"])
        sources = {name: catalog.relation_by_id(entry["id"]) for name, entry in given.items()}
        names = tuple(json.loads(view.facts["columns"]))
        return _definition(view.facts["definition"], names, {n: r for n, r in sources.items() if r is not None})


def _without_spark(wh: Warehouse) -> DimensionViews:
    dimensions = internals(wh).dimensions
    dimensions.definitions = _Definitions(wh)  # type: ignore[assignment]
    return dimensions


def _create(wh: Warehouse, world: World, name: str, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CREATE MATERIALIZED VIEW, with Spark's parts taken by the server."""
    dimensions, catalog = _without_spark(wh), internals(wh).catalog
    tables = [f"r{i}" for i in range(len(world.tables)) if f"r{i} " in query]
    sources = {n: catalog.relation(n) for n in tables}
    names = tuple(part.split(" AS ")[1] for part in query.split(" FROM ")[0].removeprefix("SELECT ").split(", "))
    definition = _definition(query, names, sources)
    shape = dimensions._shapes.of(name, definition, {}, {})
    facts = {"definition": query, "sources": sources_to_json(sources), "settings": "{}", "columns": json.dumps(names)}

    def first_rows(transaction: Transaction, *_: Any) -> int:
        rows = to_table([dict(zip(names, row, strict=True)) for row in world.answer(query)], shape.schema, name)
        relation = transaction.create(name, shape.schema, {}, DIMENSION, facts)
        return transaction.apply_delta(relation, tag(rows, shape.schema, INSERT, transaction.next_stmtsn))

    with monkeypatch.context() as patch:
        patch.setattr(dimensions, "_create", first_rows)
        for table in shape.tables:
            if dimensions._position(table).text is None:
                dimensions.tables.install(table)
        dimensions._run(list(shape.tables), new=_New(name, definition, shape, {}, facts))


def _rows(wh: Warehouse, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in contents(wh, name))


@pytest.mark.parametrize("seed", range(examples(10)))
def test_views_equal_the_servers_answers_after_every_cycle_whatever_dies(
    seed: int, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    techniques = rng.sample(list(TECHNIQUES), 4)
    world = World(rng, database, techniques)
    monkeypatch.setattr(Evaluation, "types", _types)
    queries = {f"v{i}": world.query(joins) for i, joins in enumerate([0, rng.randrange(1, 4), 5])}
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        for name, query in queries.items():
            _create(wh, world, name, query, monkeypatch)
            world.change()
    for cycle in range(8):
        world.change()
        with freshview.connect(tmp_path / "warehouse") as wh:
            dimensions = _without_spark(wh)
            death = rng.choice(["", "", "polled", "committed"])
            with monkeypatch.context() as patch:
                if death == "polled":
                    patch.setattr(dimensions, "_commit", _dies)
                elif death:
                    for kind in (PostgresTable, *PostgresTable.__subclasses__()):
                        patch.setattr(kind, "confirm", _dies)
                if death:
                    with pytest.raises(_Killed):
                        dimensions.refresh(dimensions.all())
                    continue
                dimensions.refresh(dimensions.all())
            for name, query in queries.items():
                assert _rows(wh, name) == world.answer(query), (seed, cycle, name, techniques, query)


_QUERY = "SELECT x0.id AS k, x1.name AS n FROM r0 x0 JOIN r1 x1 ON x0.ref = x1.id WHERE x1.name IN ('x', 'y')"


@pytest.fixture
def world(database: str, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(Evaluation, "types", _types)
    return World(random.Random(5), database, ["tracking", "triggers"])


def test_a_view_that_is_created_during_a_cycle_of_another_process_misses_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position of the new view is that of the old one, on an idle server: nothing but the turn tells them apart."""
    with freshview.connect(tmp_path / "warehouse") as wh, freshview.connect(tmp_path / "warehouse") as other:
        world.name(wh)
        _create(wh, world, "v", _QUERY, monkeypatch)
        dimensions = _without_spark(wh)
        polled, overtaken = dimensions._polled, threading.Event()

        def overtaken_polled(*given: Any) -> Any:
            if not overtaken.is_set():
                overtaken.set()
                _create(other, world, "w", _QUERY, monkeypatch)
                with world.tables[0].connect() as connection:
                    world.tables[0].insert(connection, 50, 1, "x")
            return polled(*given)

        monkeypatch.setattr(dimensions, "_polled", overtaken_polled)
        dimensions.refresh(dimensions.all())
        for _ in range(3):
            assert _rows(wh, "v") == _rows(wh, "w") == world.answer(_QUERY)
            world.change()
            dimensions.refresh(dimensions.all())


def test_two_processes_take_each_change_once(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh, freshview.connect(tmp_path / "warehouse") as other:
        world.name(wh)
        _create(wh, world, "v", _QUERY, monkeypatch)
        mine, theirs = _without_spark(wh), _without_spark(other)
        commit = mine._commit

        def overtaken(*given: Any) -> Any:
            theirs.refresh(theirs.all())
            return commit(*given)

        monkeypatch.setattr(mine, "_commit", overtaken)
        for _ in range(5):
            world.change()
            mine.refresh(mine.all())
            assert _rows(wh, "v") == world.answer(_QUERY)


def test_views_of_one_server_show_one_state_in_one_commit(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        for name in ("v", "w"):
            _create(wh, world, name, _QUERY, monkeypatch)
        dimensions = _without_spark(wh)
        with world.tables[0].connect() as connection:
            world.tables[0].insert(connection, 50, 1, "x")
        with world.tables[1].connect() as connection:
            world.tables[1].insert(connection, 1, 1, "x")
        before = wh.status().csn
        dimensions.refresh([internals(wh).catalog.relation("v")])
        assert wh.status().csn == before + 1
        assert _rows(wh, "v") == _rows(wh, "w") == world.answer(_QUERY)
        dimensions.refresh(dimensions.all())
        assert wh.status().csn == before + 1, "a cycle that finds nothing commits nothing"


def test_explain_of_a_view_of_several_techniques(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh:
        world.name(wh)
        _create(wh, world, "v", _QUERY, monkeypatch)
        dimensions = _without_spark(wh)
        with world.tables[0].connect() as connection:
            world.tables[0].insert(connection, 50, 1, "x")
        dimensions.refresh(dimensions.all())
        text = explain_dimension(dimensions, internals(wh).catalog.relation("v"))
        for part in (
            f"r0 = s0.{world.tables[0].name}: change tracking delivers ins, up, delk; polled on query",
            f"r1 = s1.{world.tables[1].name}: log delivers ins, del, un/uo; polled on query",
            "σ ",
            "up becomes ups (§5.5) → ins, del, un/uo",
            "⋈ r1: flags by j, extra term for up, delk of the left side (§5.6) → ins, del, un/uo, ups, delk",
            "with the effectiveness test (§5.4)",
            "applied by: DELETE of an image (del), DELETE by key (delk), UPDATE by both images (un/uo), INSERT (ins), ",
            "here: views above look up the old rows of ups, delk",
            "computed by Spark: nothing",
            "last cycle: r0 1 ins",
        ):
            assert part in text, text


def test_sources_with_a_time_are_polled_when_it_has_come(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluation, "types", _types)
    world = World(random.Random(6), database, ["tracking", "tracking"])
    with freshview.connect(tmp_path / "warehouse") as wh:
        for i, table in enumerate(world.tables):
            options = f"url '{database}', poll 'every 1 hour'"
            wh.sql(f"CREATE SOURCE s{i} USING POSTGRES OPTIONS ({options})")
            wh.sql(f"CREATE REMOTE TABLE r{i} FROM s{i}.{table.name}")
        _create(wh, world, "v", _QUERY, monkeypatch)
        dimensions = _without_spark(wh)
        stale = _rows(wh, "v")
        with world.tables[1].connect() as connection:
            for key in range(5):
                world.tables[1].insert(connection, key, 1, "z")
        dimensions.refresh_due()
        first = _rows(wh, "v")
        assert first == world.answer(_QUERY)
        assert first != stale
        with world.tables[1].connect() as connection:
            world.tables[1].insert(connection, 1, 1, "x")
        dimensions.refresh_due()
        assert _rows(wh, "v") == first, "an hour has not passed"


def _dies(*_: object) -> None:
    raise _Killed
