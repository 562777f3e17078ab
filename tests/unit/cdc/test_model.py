"""The six sets and their flagged form: disjointness, and Figures 4, 5 and 6 cell by cell."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cdc.running_example import ADDR, addr_delta, cells, cust_delta, rows_of, schema_of

from freshview.cdc.captures import Capture
from freshview.cdc.flagged import Flagged, matches, to_flagged, to_partial, with_flag
from freshview.cdc.model import SETS, PartialDelta, partial_delta
from freshview.errors import CaptureFailed
from freshview.relation.schema import Schema

PAIR = schema_of("v string, b int, a string", "a", "b")  # a composite key, not in the order of the columns


def test_figure_5_of_a_log() -> None:
    change = to_flagged(cust_delta())
    assert cells(change.inserted) == [(1, "Adam", "5%", 1), (2, "Bob", "0%", 4), (4, "Dave", "0%", 4)]
    assert cells(change.removed) == [
        (1, "Adam", "0%", 1, "comp"),
        (2, "Bob", "0%", 2, "comp"),
        (3, "Carl", "0%", 3, "comp"),
    ]


def test_figure_5_of_change_tracking() -> None:
    change = to_flagged(addr_delta())
    assert cells(change.inserted) == [(1, "Aachen", "DE"), (4, "Dresden", "DE")]
    assert cells(change.removed) == [(1, None, None, "up"), (3, None, None, "up")]


@pytest.mark.parametrize(
    ("set_", "delta_cells", "nabla_cells"),
    [
        ("ins", [("new", 1, "k")], []),
        ("del", [], [("old", 1, "k", "comp")]),
        ("un/uo", [("new", 1, "k")], [("old", 1, "k", "comp")]),
        ("up", [("new", 1, "k")], [(None, 1, "k", "up")]),
        ("ups", [("new", 1, "k")], [(None, 1, "k", "ups")]),
        ("delk", [], [(None, 1, "k", "up")]),
    ],
)
def test_figures_4_and_6_set_by_set(set_: str, delta_cells: list[Any], nabla_cells: list[Any]) -> None:
    delta = _one(set_, (1, "k"))
    change = to_flagged(delta)
    assert (cells(change.inserted), cells(change.removed)) == (delta_cells, nabla_cells)
    back = to_partial(change, "r")
    assert back.filled == {set_}
    assert _cells(back) == _cells(delta)


def test_an_upsert_without_a_new_row_is_a_partial_deletion() -> None:
    """A selection may take the new row of an upsert away (Figure 8, row 3): what is left deletes by key."""
    removed = with_flag(rows_of(ADDR, (3, None, None)), "ups")
    back = to_partial(Flagged(ADDR, ADDR.arrow.empty_table(), removed), "Addr")
    assert back.filled == {"delk"}
    assert cells(back.delk) == [(3,)]


_keys = st.tuples(st.integers(0, 3), st.sampled_from("xyz"))


@given(st.dictionaries(_keys, st.sampled_from(SETS)))
def test_to_the_flagged_form_and_back_is_the_identity(changes: dict[tuple[int, str], str]) -> None:
    delta = _many([(set_, key) for key, set_ in changes.items()])
    assert _cells(to_partial(to_flagged(delta), "r")) == _cells(delta)


@pytest.mark.parametrize("first", SETS)
@pytest.mark.parametrize("second", SETS)
def test_a_key_in_two_sets_is_an_error_that_names_both(first: str, second: str) -> None:
    in_order = sorted((first, second), key=SETS.index)
    with pytest.raises(CaptureFailed) as raised:
        _many([(first, (7, "k")), (second, (7, "k")), ("ins", (8, "k"))])
    assert f"changes of r: key (a='k', b=7) is in the sets {in_order[0]} and {in_order[1]}" in str(raised.value)


def test_a_null_in_a_key_is_an_error_that_names_the_set() -> None:
    with pytest.raises(CaptureFailed, match=r"a row of the set up has NULL in its key \(a=None, b=1\)"):
        partial_delta("r", PAIR, up=rows_of(PAIR, ("v", 1, None)))


def test_other_columns_than_the_relation_has_are_an_error() -> None:
    with pytest.raises(CaptureFailed, match=r"the set ins has the columns \(b int32\) instead of \(v string, b int32"):
        partial_delta("r", PAIR, ins=pa.table({"b": pa.array([1], pa.int32())}))
    with pytest.raises(CaptureFailed, match="the set delk has the columns"):
        partial_delta("r", PAIR, delk=PAIR.arrow.empty_table())
    with pytest.raises(CaptureFailed, match="the set un/uo has the columns"):
        partial_delta("r", PAIR, pairs=(PAIR.arrow.empty_table(), pa.table({"b": pa.array([], pa.int32())})))


def test_an_update_pair_has_one_key() -> None:
    with pytest.raises(CaptureFailed, match="un and uo have different keys"):
        partial_delta("r", PAIR, pairs=(rows_of(PAIR, ("v", 1, "k")), rows_of(PAIR, ("v", 2, "k"))))


def test_a_relation_without_a_key_has_no_partial_deltas() -> None:
    with pytest.raises(CaptureFailed, match="changes of r: it has no primary key"):
        partial_delta("r", Schema(PAIR.columns))


def test_null_joins_nothing() -> None:
    left = pa.table({"x": pa.array([1, None, 2, 1], pa.int32())})
    right = pa.table({"y": pa.array([None, 1, 2], pa.int32())})
    found = matches(left, right, ["x"], ["y"])
    assert [f.to_pylist() for f in found] == [[0, 2, 3], [1, 2, 1]]


def _one(set_: str, key: tuple[int, str]) -> PartialDelta:
    return _many([(set_, key)])


def _many(changes: list[tuple[str, tuple[int, str]]]) -> PartialDelta:
    def images(set_: str, state: str) -> pa.Table:
        return rows_of(PAIR, *((state, *key) for s, key in changes if s == set_))

    return partial_delta(
        "r",
        PAIR,
        ins=images("ins", "new"),
        deleted=images("del", "old"),
        pairs=(images("un/uo", "new"), images("un/uo", "old")),
        up=images("up", "new"),
        ups=images("ups", "new"),
        delk=images("delk", "old").select(["a", "b"]),
    )


def _cells(delta: PartialDelta) -> list[list[tuple[Any, ...]]]:
    return [cells(rows) for rows in (*delta.sets.values(), delta.uo)]


@pytest.mark.parametrize(
    ("delivered", "missing"),
    [
        ({"up"}, ("un/uo",)),
        ({"ups"}, ("ins", "un/uo")),
        ({"delk"}, ("del",)),
        ({"ins", "ups", "del", "delk"}, ("un/uo",)),
        ({"ins", "up", "delk"}, ("un/uo", "del")),
        ({"up", "ups", "delk"}, ("un/uo", "ins", "del")),
        ({"ins", "un/uo", "del", "up", "ups", "delk"}, ()),
        ({"ins", "un/uo", "del"}, ()),
    ],
)
def test_figure_1(delivered: set[str], missing: tuple[str, ...]) -> None:
    """Each partial set lacks what complete sets have: up old images, ups also which rows are new, delk the rows."""
    assert Capture("some", frozenset(delivered)).missing_sets == missing
