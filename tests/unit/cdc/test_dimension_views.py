"""Whatever changes, and however it is captured, a dimension view equals its recomputation after every cycle."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.cdc.applying import applied, applied_to_bag
from tests.unit.cdc.running_example import cells, rows_of, schema_of
from tests.unit.cdc.worlds import InMemory, recomputed

from freshview.cdc.application import delta_rows
from freshview.cdc.captures import (
    LOG,
    LOG_CHEAP,
    LOG_WITHOUT_OLD_IMAGES,
    ONE_AUDIT_COLUMN,
    SNAPSHOTS,
    THREE_AUDIT_COLUMNS,
    TRACKING,
    TWO_AUDIT_COLUMNS,
    Capture,
)
from freshview.cdc.dimension import (
    Extend,
    KeyJoin,
    Projection,
    Remote,
    RemoteNode,
    RowFilter,
    RowTest,
    check_maintainable,
    is_stored,
    keyed,
    remotes,
)
from freshview.cdc.model import SETS, PartialDelta, partial_delta
from freshview.cdc.rules import propagate
from freshview.cdc.trade import delivered
from freshview.errors import NotMaintainable
from freshview.relation.delta import overlay
from freshview.relation.schema import Column, Schema
from freshview.relation.types import INTEGERS, parse_type

_MIXED = Capture("several techniques", frozenset(SETS))
_CAPTURES = (
    LOG,
    LOG_CHEAP,
    LOG_WITHOUT_OLD_IMAGES,
    ONE_AUDIT_COLUMN.without("deletions"),
    SNAPSHOTS,
    THREE_AUDIT_COLUMNS,
    TRACKING,
    TWO_AUDIT_COLUMNS.without("deletions"),
    _MIXED,
)
_COMPLETE = (LOG, SNAPSHOTS)
_TABLES = 4
Row = tuple[Any, ...]


class _Source:
    """A remote table whose rows change at random, captured by one technique."""

    def __init__(self, number: int, rng: random.Random, capture: Capture) -> None:
        n, self._rng, self._capture = number, rng, capture
        self._composite = n == 2
        key = (f"k{n}", f"l{n}") if self._composite else (f"k{n}",)
        self.schema = schema_of(f"k{n} int, l{n} int, a{n} bigint, b{n} smallint, v{n} string", *key)
        self.remote = Remote(f"t{n}", self.schema, capture)
        self._rows: dict[Row, Row] = {}
        for _ in range(rng.randrange(5)):
            self._put(self._key())

    @property
    def rows(self) -> pa.Table:
        return rows_of(self.schema, *self._rows.values())

    def _key(self) -> Row:
        return (self._rng.randrange(3), self._rng.randrange(2)) if self._composite else (self._rng.randrange(4),)

    def _put(self, key: Row) -> None:
        rng = self._rng
        reference = [None, 0, 1, 2, 3]
        rest = () if self._composite else (rng.choice(reference),)
        self._rows[key] = (*key, *rest, rng.choice(reference), rng.choice(reference), rng.choice("xyz"))

    def change(self) -> PartialDelta:
        """Random changes, with changed keys among them, and what the technique delivers of them."""
        rng, old = self._rng, dict(self._rows)
        for _ in range(rng.randrange(5)):
            key = self._key()
            may_delete = "deletions" not in self._capture.never
            what = rng.choice(["put", "put", "delete", "rekey"] if may_delete else ["put"])
            if what == "put":
                self._put(key)
            elif what == "delete":
                self._rows.pop(key, None)
            elif self._rows and key not in self._rows:
                moved = rng.choice(list(self._rows))
                row = self._rows.pop(moved)
                self._rows[key] = (*key, *row[len(key) :])
        return self._captured(old)

    def _captured(self, old: Mapping[Row, Row]) -> PartialDelta:
        rng, sets = self._rng, self._capture.sets
        chosen: dict[str, list[Row]] = {name: [] for name in (*SETS, "uo")}
        for key in sorted({*old, *self._rows}):
            before, after = old.get(key), self._rows.get(key)
            if before == after and rng.random() < 0.8:
                continue
            # Updates to equal values are reported by those who cannot compare.
            if before is None:
                kinds = {"ins", "ups"}
            elif after is None:
                kinds = {"del", "delk"}
            else:
                kinds = {"up", "ups"} if before == after else {"un/uo", "up", "ups"}
            options = sorted(kinds & sets)
            if not options:
                continue  # an update to equal values, which a complete technique does not report
            kind = rng.choice(options)
            row = before if kind in ("del", "delk") else after
            assert row is not None
            chosen[kind].append(row)
            if kind == "un/uo":
                assert before is not None
                chosen["uo"].append(before)
        if "delk" in sets and self._capture is LOG_CHEAP:  # inserted and deleted in one cycle
            for key in [self._key()]:
                if key not in old and key not in self._rows:
                    chosen["delk"].append((*key, *[None] * (5 - len(key))))
        full = {name: rows_of(self.schema, *rows) for name, rows in chosen.items()}
        return partial_delta(
            self.remote.name,
            self.schema,
            ins=full["ins"],
            deleted=full["del"],
            pairs=(full["un/uo"], full["uo"]),
            up=full["up"],
            ups=full["ups"],
            delk=full["delk"].select(list(self.schema.key)),
        )


class _Views:
    """Random dimension views: nested joins, selections and projections; every column has a name of its own."""

    def __init__(self, rng: random.Random, sources: list[_Source]) -> None:
        self._rng, self._sources, self._occurrences = rng, sources, 0

    def view(self, joins: int) -> RemoteNode:
        node = self._wrapped(self._leaf())
        while joins:
            inner = self._rng.randrange(joins)
            right = self.view(inner)
            joins -= inner + 1
            numbers = [c.name for c in node.schema.columns if c.type.kind in INTEGERS and is_stored(node, c.name)]
            node = self._wrapped(KeyJoin(node, right, tuple(self._rng.choice(numbers) for _ in right.schema.key)))
        return node

    def _leaf(self) -> RemoteNode:
        self._occurrences += 1
        remote = self._rng.choice(self._sources).remote
        return Projection(remote, tuple((f"{c}_{self._occurrences}", c) for c in remote.schema.names))

    def _wrapped(self, node: RemoteNode) -> RemoteNode:
        rng = self._rng
        if rng.random() < 0.4:
            column = rng.choice(node.schema.columns)
            accepted = ["x", "y"] if column.type.kind == "string" else [0, 1, 2]
            node = RowFilter(node, _among(column.name, accepted, rng.random() < 0.3))
        if rng.random() < 0.3:
            self._occurrences += 1
            node = _sums(
                node, f"c_{self._occurrences}", [c.name for c in node.schema.columns if c.type.kind in INTEGERS]
            )
        if rng.random() < 0.4:
            kept = [n for n in node.schema.names if n in node.schema.key or rng.random() < 0.7]
            node = Projection(node, tuple((n, n) for n in kept))
        return node


def _sums(node: RemoteNode, name: str, columns: list[str]) -> Extend:
    def compute(rows: pa.Table) -> pa.Table:
        values = [sum(v or 0 for v in row) for row in zip(*(rows.column(c).to_pylist() for c in columns), strict=True)]
        return pa.table({name: pa.array(values, pa.int64())})

    return Extend(node, (Column(name, parse_type("bigint")),), compute)


def _among(column: str, accepted: list[Any], or_null: bool) -> RowTest:
    def test(rows: pa.Table) -> pa.ChunkedArray:
        values = rows.column(column)
        found = pc.is_in(values, pa.array(accepted, values.type))
        known = pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))  # NULL, as in SQL
        return pc.fill_null(known, True) if or_null else known

    return RowTest((column,), test)


@settings(max_examples=examples(150, commit=75))
@given(st.integers(0, 2**32), st.integers(0, 5), st.booleans())
def test_a_view_equals_its_recomputation_after_every_cycle(seed: int, joins: int, effectiveness: bool) -> None:
    rng = random.Random(seed)
    sources = [_Source(n, rng, rng.choice(_CAPTURES)) for n in range(_TABLES)]
    view = _Views(rng, sources).view(joins)
    check_maintainable(view, "v")
    stored = rows_of(view.schema, *recomputed(view, _states(sources)))
    folded = stored
    for cycle in range(3):
        deltas = {s.remote.name: s.change() for s in sources}
        new = _states(sources)
        delta = propagate(view, "v", deltas, InMemory(new), effectiveness=effectiveness)
        old_images = {*cells(delta.deleted), *cells(delta.uo)}
        assert old_images <= set(cells(stored)), "an old image is a row that was there"
        assert delta.filled <= delivered(view), "EXPLAIN lists all sets that may have rows"
        stored = applied(stored, delta)  # checks that ins is new, and that up and un/uo are there
        assert cells(stored) == recomputed(view, new)
        folded = overlay([delta_rows(delta, cycle)], view.schema).apply(folded)
        assert cells(folded) == cells(stored)


@settings(max_examples=examples(60, commit=30))
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_a_view_without_its_key_equals_its_recomputation_if_deltas_are_complete(seed: int, joins: int) -> None:
    rng = random.Random(seed)
    sources = [_Source(n, rng, rng.choice(_COMPLETE)) for n in range(_TABLES)]
    full = _Views(rng, sources).view(joins)
    kept = [n for n in full.schema.names if n not in full.schema.key] or [full.schema.names[-1]]
    view = Projection(full, tuple((n, n) for n in kept))
    check_maintainable(view, "v")
    wide, bag = keyed(view), Schema(view.schema.columns)
    stored = rows_of(bag, *recomputed(view, _states(sources)))
    for _ in range(3):
        deltas = {s.remote.name: s.change() for s in sources}
        new = _states(sources)
        stored = applied_to_bag(stored, propagate(wide, "v", deltas, InMemory(new)), bag)
        assert cells(stored) == recomputed(view, new)


def _states(sources: list[_Source]) -> dict[str, pa.Table]:
    return {s.remote.name: s.rows for s in sources}


# -- which views can be kept -----------------------------------------------------------------------------------------

_ORDERS = schema_of("id int, customer int, total int", "id")
_CUSTOMER = schema_of("cid int, name string", "cid")


def _orders(capture: Capture) -> Remote:
    return Remote("orders", _ORDERS, capture)


def _customers(capture: Capture) -> Remote:
    return Remote("customers", _CUSTOMER, capture)


def test_the_key_of_the_referencing_table_identifies_a_join() -> None:
    view = KeyJoin(_orders(TRACKING), _customers(TRACKING), ("customer",))
    assert view.schema.key == ("id",)
    assert Projection(view, (("o", "id"), ("name", "name"))).schema.key == ("o",)  # cid depends on id (§5.6)


def test_a_column_that_a_join_equates_with_the_key_serves_as_well() -> None:
    """customers ⋈ details on cid = did: did stays, cid may go, and partial rows still have their key."""
    details = Remote("details", schema_of("did int, note string", "did"), LOG)
    join = KeyJoin(_customers(LOG_CHEAP), details, ("cid",))
    view = Projection(join, (("d", "did"), ("name", "name")))
    assert view.schema.key == ("d",)
    new = {
        "customers": rows_of(_CUSTOMER, (1, "Ada")),
        "details": rows_of(details.schema, (1, "n"), (2, "n")),
    }
    gone = partial_delta(
        "customers", _CUSTOMER, ups=rows_of(_CUSTOMER, (1, "Ada")), delk=pa.table({"cid": pa.array([2], pa.int32())})
    )
    delta = propagate(view, "v", {"customers": gone}, InMemory(new))
    assert (cells(delta.ups), cells(delta.delk)) == ([(1, "Ada")], [(2,)])


def test_a_view_that_drops_its_key_is_refused_if_a_table_is_captured_in_part() -> None:
    view = Projection(KeyJoin(_orders(LOG), _customers(TRACKING), ("customer",)), (("name", "name"),))
    with pytest.raises(NotMaintainable) as raised:
        check_maintainable(view, "names")
    assert str(raised.value) == (
        "view names: it drops orders.id, and change tracking of customers delivers up, delk where un/uo, del would be "
        "needed to find the rows that changed. Add orders.id to the view, capture customers by a log with old images "
        "or by snapshots, or copy the table into the warehouse."
    )
    check_maintainable(Projection(KeyJoin(_orders(LOG), _customers(LOG), ("customer",)), (("name", "name"),)), "names")


def test_the_cheap_net_effect_lacks_insertions_too() -> None:
    with pytest.raises(NotMaintainable, match="delivers ups, delk where ins, un/uo, del would be needed"):
        check_maintainable(Projection(_orders(LOG_CHEAP), (("total", "total"),)), "totals")


@pytest.mark.parametrize("capture", [ONE_AUDIT_COLUMN, TWO_AUDIT_COLUMNS])
def test_deletions_that_nobody_reports_are_a_reason_to_refuse(capture: Capture) -> None:
    with pytest.raises(NotMaintainable) as raised:
        check_maintainable(_orders(capture), "o")
    assert f"deletions of orders are not captured: {capture.technique} delivers no del or delk" in str(raised.value)
    assert "declare that deletions never happen there" in str(raised.value)
    check_maintainable(_orders(capture.without("deletions")), "o")
    check_maintainable(_orders(THREE_AUDIT_COLUMNS), "o")


def test_a_join_that_is_not_to_a_primary_key_is_refused() -> None:
    orders = _orders(LOG)
    with pytest.raises(NotMaintainable, match=r"join on \(id, total\): the right side is not identified by \(cid\)"):
        KeyJoin(orders, _customers(LOG), ("id", "total"))
    with pytest.raises(NotMaintainable, match="which a projection dropped"):
        KeyJoin(orders, Projection(_customers(LOG), (("name", "name"),)), ("customer",))
    with pytest.raises(NotMaintainable, match="date and int do not compare by identity"):
        KeyJoin(Remote("r", schema_of("id int, c date", "id"), LOG), _customers(LOG), ("c",))
    computed = Extend(orders, (Column("c", parse_type("int")),), lambda rows: rows.select(["customer"]))
    with pytest.raises(NotMaintainable, match="one side is computed"):
        KeyJoin(computed, _customers(LOG), ("c",))
    with pytest.raises(NotMaintainable, match=r"char\(3\) and string do not compare"):
        KeyJoin(
            Remote("r", schema_of("id int, c char(3)", "id"), LOG),
            Remote("t", schema_of("name string", "name"), LOG),
            ("c",),
        )


def test_a_remote_table_needs_a_key() -> None:
    with pytest.raises(NotMaintainable, match="remote table r: it has no primary key"):
        Remote("r", Schema(_ORDERS.columns), LOG)


def test_remote_tables_are_named_from_left_to_right() -> None:
    view = KeyJoin(_orders(LOG), _customers(LOG), ("customer",))
    assert [r.name for r in remotes(view)] == ["orders", "customers"]
