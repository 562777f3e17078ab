"""The change of a view as delta rows: of a key one image goes and one comes, and the last one is what is laid over."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.delta.cases import laws

from freshview.algebra.nodes import WEIGHT
from freshview.delta import signed as signed_module
from freshview.delta.signed import net, net_images, part, undone, weighted
from freshview.errors import SnapshotExpired, ViewUnusable
from freshview.relation.delta import DELETE, INSERT, actions, is_live, overlay, untag
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

VIEW = Schema((Column("k", parse_type("INT")), Column("v", parse_type("STRING"))), ("k",))
State = dict[int | None, str | None]
_states = st.dictionaries(st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, "a", "b"]))


def _rows(state: State) -> pa.Table:
    return pa.table([list(state), list(state.values())], schema=VIEW.arrow)


def _state(rows: pa.Table) -> State:
    assert rows.num_rows == len({r["k"] for r in rows.to_pylist()})
    return {r["k"]: r["v"] for r in rows.to_pylist()}


def _change(old: State, new: State) -> pa.Table:
    return net(pa.concat_tables([weighted(_rows(new), 1, VIEW), weighted(_rows(old), -1, VIEW)]), VIEW)


@laws
@given(run=st.lists(_states, min_size=1, max_size=5))
def test_changes_laid_over_by_key_or_as_bags_give_the_last_state(run: list[State]) -> None:
    changes = [_change(old, new) for old, new in pairwise(run)]
    for schema in (VIEW, part(VIEW, None)):
        net_effect = overlay(changes, schema)
        assert _state(net_effect.apply(_rows(run[0]))) == run[-1]
    assert overlay(changes, VIEW).rows.num_rows == len({r["k"] for c in changes for r in c.to_pylist()})  # Table 1


@laws
@given(run=st.lists(_states, min_size=2, max_size=5), order=st.randoms(use_true_random=False))
def test_versions_in_between_leave_nothing_by_key_nor_as_a_bag(run: list[State], order: random.Random) -> None:
    """Law: of all versions that a run went through, in any order of their rows, the first old and the last new image of
    each key are left, if they differ: what cancelling equal rows leaves."""
    signs = [(sign, state) for old, new in pairwise(run) for sign, state in ((-1, old), (1, new))]
    signed = pa.concat_tables([weighted(_rows(state), sign, VIEW) for sign, state in signs])
    places = list(range(signed.num_rows))
    order.shuffle(places)
    signed = signed.take(pa.array(places, pa.int64()))
    by_key, as_bag = (_delta_rows(net(signed, schema)) for schema in (VIEW, part(VIEW, None)))
    assert by_key == as_bag == _delta_rows(_change(run[0], run[-1]))
    old, new = run[0], run[-1]
    moved = {k for k in old.keys() | new.keys() if (k in old, old.get(k)) != (k in new, new.get(k))}
    expected = [(k, old[k], DELETE) for k in moved if k in old] + [(k, new[k], INSERT) for k in moved if k in new]
    assert by_key == Counter(expected)


def _delta_rows(rows: pa.Table) -> Counter[tuple[int | None, str | None, int]]:
    """Delta rows; deleted images come first."""
    found = actions(rows).to_pylist()
    assert found == sorted(found)
    return Counter(zip(*(rows.column(name).to_pylist() for name in ("k", "v")), found, strict=True))


_bags = st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "a", "b"])), max_size=6)


@laws
@given(old=_bags, new=_bags)
def test_images_net_to_the_difference_of_their_bags_in_any_columns(
    old: list[tuple[int | None, str | None]], new: list[tuple[int | None, str | None]]
) -> None:
    images = tuple(pa.table([[k for k, _ in s], [v for _, v in s]], schema=VIEW.arrow) for s in (old, new))
    for columns, places in ((("k", "v"), (0, 1)), (("v",), (1,))):
        found = net_images((images[0], images[1]), VIEW, part(VIEW, columns))
        counted: Counter[tuple[object, ...]] = Counter()
        for row in found.to_pylist():
            counted[tuple(row[c] for c in columns)] += row[WEIGHT]
        wanted = Counter(tuple(r[p] for p in places) for r in new)
        wanted.subtract(Counter(tuple(r[p] for p in places) for r in old))
        assert {r: n for r, n in counted.items() if n} == {r: n for r, n in wanted.items() if n}
        assert found.num_rows == sum(abs(n) for n in wanted.values())


@pytest.mark.parametrize("weight", [1, -1])
def test_rows_that_nothing_can_cancel_are_not_compared(weight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signed_module, "overlay")
    rows, none = pa.table([[2, 1, 1], ["a", "b", "b"]], schema=VIEW.arrow), VIEW.arrow.empty_table()
    found = net_images((none, rows) if weight > 0 else (rows, none), VIEW, part(VIEW, ["v"]))
    assert found.to_pylist() == [{"v": v, WEIGHT: weight} for v in ("a", "b", "b")]


def test_an_update_has_both_images_and_is_one_row_when_it_is_laid_over() -> None:
    """LAZY §4, Table 1: views above need the first and the last row, the view itself only the last."""
    change = _change({1: "a", 2: "a", 3: "a"}, {1: "b", 2: "a", 4: "a"})
    assert sorted(zip(untag(change).column("k").to_pylist(), actions(change).to_pylist(), strict=True)) == [
        (1, DELETE),
        (1, INSERT),
        (3, DELETE),
        (4, INSERT),
    ]
    assert sorted(untag(overlay([change], VIEW).rows).column("k").to_pylist()) == [1, 3, 4]


@pytest.mark.parametrize("weight", [1, -1])
def test_two_rows_of_one_key_are_no_change_of_a_keyed_view(weight: int) -> None:
    rows = pa.table([[None, None], ["a", "b"]], schema=VIEW.arrow)
    with pytest.raises(ViewUnusable, match=r"two of its rows have the key \(k=None\)"):
        net(weighted(rows, weight, VIEW), VIEW)
    assert net(weighted(rows, weight, part(VIEW, None)), part(VIEW, None)).num_rows == 2


_BAG = part(VIEW, None)
_bags = st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "a"])), max_size=8)
Rows = list[tuple[int | None, str | None]]


def _bag(rows: Rows) -> pa.Table:
    return pa.table([[k for k, _ in rows], [v for _, v in rows]], schema=_BAG.arrow)


@laws
@given(old=_bags, new=_bags, noise=_bags)
def test_undoing_a_change_gives_the_rows_before(old: Rows, new: Rows, noise: Rows) -> None:
    """PAST(L, R) on random bags; also if rows that did not change are in the log with both signs."""
    change = [weighted(_bag([*new, *noise]), 1, _BAG), weighted(_bag([*old, *noise]), -1, _BAG)]
    for delta in (pa.concat_tables(change), _signed(net(pa.concat_tables(change), _BAG))):
        before = undone(_bag(new), delta, _BAG)
        assert Counter(map(repr, before.to_pylist())) == Counter(map(repr, _bag(old).to_pylist()))


def _signed(delta: pa.Table) -> pa.Table:
    live = is_live(delta)
    parts = ((untag(delta.filter(mask)), sign) for mask, sign in ((live, 1), (pc.invert(live), -1)))
    return pa.concat_tables([weighted(rows, sign, _BAG) for rows, sign in parts])


def test_a_change_that_does_not_lead_to_the_rows_is_not_undone() -> None:
    with pytest.raises(SnapshotExpired, match="not there any more"):
        undone(_bag([(1, "a")]), weighted(_bag([(2, "a")]), 1, _BAG), _BAG)
