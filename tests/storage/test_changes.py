"""Δ between two CSNs, and rows near some values: both equal what the whole states say."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.internals import internals
from tests.storage.model import Model, play

import freshview
from freshview.algebra.nodes import WEIGHT
from freshview.refresh.deltas import changes
from freshview.refresh.span import Span
from freshview.relation.conditions import Among
from freshview.storage import reader as reader_module
from freshview.storage.reader import _literals

_DRAWS = 3  # of each law, over one history
Bag = Counter[tuple[Any, ...]]


def _bag(rows: pa.Table, names: tuple[str, ...]) -> Bag:
    return Counter(tuple(repr(row[n]) for n in names) for row in rows.to_pylist())


def _contents(model: Model, csn: int) -> pa.Table:
    """The table at a CSN, in the columns that it had then."""
    return internals(model.wh).rows("t", csn)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(keyed=st.booleans(), data=st.data())
def test_what_is_read_in_part_is_what_the_whole_states_say(keyed: bool, data: st.DataObject) -> None:
    """Two laws over one history, each for a few draws."""
    with (
        tempfile.TemporaryDirectory() as place,
        freshview.connect(Path(place) / "w") as wh,
        pytest.MonkeyPatch.context() as patch,
    ):
        model = play(wh, keyed, data, patch)
        for _ in range(_DRAWS):
            changes_are_the_difference_of_two_states(model, data)
        for _ in range(_DRAWS):
            rows_near_some_values_are_those_that_hold_them(model, data)


def changes_are_the_difference_of_two_states(model: Model, data: st.DataObject) -> None:
    """Δ(c0 → c1) = R@c1 − R@c0 over the columns asked for, each row net: none is both added and taken away."""
    c0, c1 = sorted(data.draw(st.lists(st.sampled_from(sorted(model.at)), min_size=2, max_size=2), label="csns"))
    rooms = internals(model.wh)
    relation = rooms.relation("t")
    names = tuple(data.draw(st.lists(st.sampled_from(relation.schema.names), min_size=1, unique=True)))
    found = changes(Span.between(rooms.catalog, rooms.storage, c0, c1), relation, names)
    difference = _bag(relation.schema.conform(_contents(model, c1)), names)
    difference.subtract(_bag(relation.schema.conform(_contents(model, c0)), names))
    signed: Bag = Counter()
    for row in found.to_pylist():
        signed[tuple(repr(row[n]) for n in names)] += row[WEIGHT]
    assert signed == Counter({r: n for r, n in difference.items() if n})
    assert found.num_rows == sum(abs(n) for n in difference.values())


def rows_near_some_values_are_those_that_hold_them(model: Model, data: st.DataObject) -> None:
    csn = data.draw(st.sampled_from(sorted(model.at)), label="csn")
    nulls = data.draw(st.booleans(), label="nulls")
    state = internals(model.wh).state("t", csn)
    schema = state.schema
    pools: list[tuple[int, Sequence[int | str]]] = [(0, [0, 1, 2, 3, 99]), (1, ["a", "b", "it's"])]
    column, pool = data.draw(st.sampled_from(pools), label="column")
    chosen = data.draw(st.lists(st.sampled_from(pool), unique=True), label="values")
    names = tuple(data.draw(st.lists(st.sampled_from(schema.names), min_size=1, unique=True)))
    values = pa.array(chosen, schema.columns[column].type.arrow)
    held = _contents(model, csn).to_pylist()
    kept = [r for r in held if (v := r[schema.names[column]]) in chosen or (nulls and v is None)]
    with freshview.connect(model.wh.path) as wh:  # one that holds nothing in memory yet
        for _ in ("from files", "from memory"):
            condition = (schema.names[column], Among(values, nulls))
            found = internals(wh).reader.matching(state, (condition,), columns=names, limit=1000)
            assert found is not None
            assert _bag(found, names) == Counter(tuple(repr(r[n]) for n in names) for r in kept)
            assert found.column_names == list(names)


def test_what_is_not_cheap_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many rows, too many values, types without literals, columns that main does not have yet: None."""
    with freshview.connect(tmp_path / "w") as wh:
        wh.sql("CREATE TABLE t (k INT, d DOUBLE, PRIMARY KEY (k))")
        with wh.transaction() as tx:
            tx.insert("t", [{"k": i, "d": 0.5} for i in range(100)])
        wh.sql("CHECKPOINT t")
        wh.sql("ALTER TABLE t ADD COLUMN n INT")
        state = internals(wh).state("t")

        def near(column: str, values: list[Any], limit: int = 1000) -> pa.Table | None:
            kind = state.schema.column(column).type.arrow
            condition = (column, Among(pa.array(values, kind)))
            return internals(wh).reader.matching(state, (condition,), columns=("k",), limit=limit)

        assert near("k", [1, 2, 3]) is not None
        for _ in ("from files", "from memory"):
            assert near("k", list(range(50)), limit=49) is None
        assert near("d", [0.5]) is None
        assert near("n", [1]) is None
        assert _literals(pa.array([-3_000_000], pa.date32())) is None  # a date that Python does not know
        monkeypatch.setattr(reader_module, "_LITERAL_KEYS", 2)
        monkeypatch.setattr(reader_module, "_INDEX_KEYS", 2)
        assert near("k", [1, 2, 3]) is None
