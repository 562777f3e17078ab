"""The rules for projection, selection and join: the running example (Figures 7, 8, 11), cell by cell."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.cdc.applying import applied, applied_to_bag
from tests.unit.cdc.running_example import (
    ADDR,
    ADDR_NEW,
    ADDR_OLD,
    CUST,
    CUST_NEW,
    CUST_OLD,
    addr_delta,
    cells,
    cust_delta,
    rows_of,
)
from tests.unit.cdc.worlds import InMemory, recomputed

from freshview.cdc.application import delta_rows
from freshview.cdc.captures import LOG, SNAPSHOTS, TRACKING
from freshview.cdc.dimension import (
    KeyJoin,
    Projection,
    Remote,
    RemoteNode,
    RowFilter,
    RowTest,
    check_maintainable,
    keyed,
)
from freshview.cdc.flagged import Flagged
from freshview.cdc.model import SETS, keys_of, partial_delta
from freshview.cdc.rules import _Propagation, propagate
from freshview.cdc.trade import BLIND
from freshview.errors import CaptureFailed
from freshview.relation.delta import DELETE, DELETE_KEY, INSERT, UPSERT, overlay
from freshview.relation.schema import Schema

DELTAS = {"Cust": cust_delta(), "Addr": addr_delta()}
OLD = {"Cust": CUST_OLD, "Addr": ADDR_OLD}
NEW = {"Cust": CUST_NEW, "Addr": ADDR_NEW}

GERMAN = RowTest(("ACountry",), lambda t: pc.equal(t.column("ACountry"), "DE"))
CUST_ = Projection(Remote("Cust", CUST, LOG), tuple((c, c) for c in ("CID", "CName", "CAddr")))
ADDR_ = RowFilter(Remote("Addr", ADDR, TRACKING), GERMAN)
D = KeyJoin(CUST_, ADDR_, ("CAddr",))


def _flagged(view: RemoteNode, *, effectiveness: bool = True) -> Flagged:
    return _Propagation(DELTAS, InMemory(NEW), effectiveness).change(view)


def test_figure_7_projection_drops_the_update_that_does_not_matter() -> None:
    change = _flagged(CUST_)
    assert cells(change.inserted) == [(2, "Bob", 4), (4, "Dave", 4)]
    assert cells(change.removed) == [(2, "Bob", 2, "comp"), (3, "Carl", 3, "comp")]


def test_projection_without_the_effectiveness_test_passes_it_on() -> None:
    change = _flagged(CUST_, effectiveness=False)
    assert cells(change.inserted) == [(1, "Adam", 1), (2, "Bob", 4), (4, "Dave", 4)]
    assert cells(change.removed) == [(1, "Adam", 1, "comp"), (2, "Bob", 2, "comp"), (3, "Carl", 3, "comp")]


def test_projection_never_tests_partial_rows() -> None:
    """πA,flag(∇S) − πA,comp(ΔS): a partial row is no old image, even where its columns look like the new one."""
    view = Projection(Remote("Addr", ADDR, TRACKING), (("AID", "AID"),))
    change = _flagged(view)
    assert cells(change.inserted) == [(1,), (4,)]
    assert cells(change.removed) == [(1, "up"), (3, "up")]


def test_figure_8_selection_turns_partial_updates_into_upserts() -> None:
    change = _flagged(ADDR_)
    assert cells(change.inserted) == [(1, "Aachen", "DE"), (4, "Dresden", "DE")]
    assert cells(change.removed) == [(1, None, None, "ups"), (3, None, None, "ups")]


def test_selection_of_complete_rows_asks_both_states() -> None:
    discounted = RowTest(("CDiscount",), lambda t: pc.not_equal(t.column("CDiscount"), "0%"))
    delta = propagate(RowFilter(Remote("Cust", CUST, LOG), discounted), "v", DELTAS, InMemory(NEW))
    assert delta.filled == {"ins"}
    assert cells(delta.ins) == [(1, "Adam", "5%", 1)]


def test_figure_11_join() -> None:
    """The figure prints CID, CName, CAddr, ACity, ACountry; the join's own column AID is checked with them."""
    change = _flagged(D)
    assert cells(change.inserted) == [
        (1, "Adam", 1, 1, "Aachen", "DE"),
        (2, "Bob", 4, 4, "Dresden", "DE"),
        (4, "Dave", 4, 4, "Dresden", "DE"),
    ]
    assert cells(change.removed) == [
        (1, "Adam", 1, 1, None, None, "ups"),
        (2, "Bob", 2, 2, "Berlin", "DE", "comp"),
        (3, "Carl", 3, 3, None, None, "ups"),
    ]


def test_example_5_the_view_s_changes() -> None:
    """An insertion (4), an upsert (1), an update pair (2) and a partial deletion (3)."""
    delta = propagate(D, "D", DELTAS, InMemory(NEW))
    assert delta.filled == {"ins", "ups", "un/uo", "delk"}
    assert cells(delta.ins) == [(4, "Dave", 4, 4, "Dresden", "DE")]
    assert cells(delta.ups) == [(1, "Adam", 1, 1, "Aachen", "DE")]
    assert cells(delta.un) == [(2, "Bob", 4, 4, "Dresden", "DE")]
    assert cells(delta.uo) == [(2, "Bob", 2, 2, "Berlin", "DE")]
    assert cells(delta.delk) == [(3,)]


def test_the_running_example_is_kept() -> None:
    check_maintainable(D, "D")
    before = rows_of(D.schema, *recomputed(D, OLD))
    after = applied(before, propagate(D, "D", DELTAS, InMemory(NEW)))
    assert cells(after) == recomputed(D, NEW)


def test_only_rows_that_meet_the_deltas_are_fetched() -> None:
    many = rows_of(CUST, *((i, "x", "0%", 2) for i in range(100, 200)))
    states = InMemory({"Cust": pa.concat_tables([CUST_NEW, many]), "Addr": ADDR_NEW})
    propagate(D, "D", DELTAS, states)
    assert states.fetched == 5  # customers 1, 2 and 4 by address; addresses 2 and 4 by key


def test_a_table_that_did_not_change_is_only_looked_up() -> None:
    delta = propagate(D, "D", {"Cust": cust_delta()}, InMemory({"Cust": CUST_NEW, "Addr": ADDR_OLD}))
    assert delta.filled == {"del"}  # the new address 4 is not there yet
    assert cells(delta.deleted) == [(2, "Bob", 2, 2, "Berlin", "DE"), (3, "Carl", 3, 3, "Chemnitz", "DE")]


_CHEAPEST = {
    "ins": {INSERT},
    "del": {DELETE},
    "un/uo": {DELETE, INSERT},
    "up": {UPSERT},
    "ups": {UPSERT},
    "delk": {DELETE_KEY},
}


@pytest.mark.parametrize("name", SETS)
def test_each_set_is_applied_by_its_cheapest_delta_rows(name: str) -> None:
    """Rows of complete sets have their images, those of partial sets are blind: nothing is read for either."""
    delta = propagate(D, "D", DELTAS, InMemory(NEW))
    assert delta.filled == {"ins", "delk", "un/uo", "ups"}
    whole = delta.ins
    one = {
        "ins": partial_delta("D", delta.schema, ins=whole),
        "del": partial_delta("D", delta.schema, deleted=whole),
        "un/uo": partial_delta("D", delta.schema, pairs=(whole, whole)),
        "up": partial_delta("D", delta.schema, up=whole),
        "ups": partial_delta("D", delta.schema, ups=whole),
        "delk": partial_delta("D", delta.schema, delk=keys_of(whole, delta.schema)),
    }[name]
    assert one.filled == {name}
    rows = delta_rows(one, 1)
    assert set(rows.column("_action").to_pylist()) == _CHEAPEST[name]
    assert rows.num_rows == len(_CHEAPEST[name])
    assert (name in BLIND) == bool(_CHEAPEST[name] & {UPSERT, DELETE_KEY})


def test_a_delta_of_all_sets_has_the_delta_rows_of_each() -> None:
    delta = propagate(D, "D", DELTAS, InMemory(NEW))
    actions = Counter(delta_rows(delta, 1).column("_action").to_pylist())
    sizes = {name: rows.num_rows for name, rows in delta.sets.items()}
    assert actions == {
        INSERT: sizes["ins"] + sizes["un/uo"],
        DELETE: sizes["del"] + sizes["un/uo"],
        UPSERT: sizes["up"] + sizes["ups"],
        DELETE_KEY: sizes["delk"],
    }


def test_rows_that_disagree_with_a_delta_are_an_error() -> None:
    with pytest.raises(CaptureFailed, match=r"changes of Addr: key \(AID=1\) is to be inserted and exists already"):
        applied(ADDR_OLD, partial_delta("Addr", ADDR, ins=ADDR_NEW))
    with pytest.raises(CaptureFailed, match=r"key \(AID=4\) is to be updated and does not exist"):
        applied(ADDR_OLD, partial_delta("Addr", ADDR, up=ADDR_NEW))
    assert cells(applied(ADDR_OLD, partial_delta("Addr", ADDR, delk=pa.table({"AID": pa.array([9], pa.int32())})))) == (
        cells(ADDR_OLD)
    )


@pytest.mark.parametrize("table", ["Cust", "Addr"])
def test_as_delta_rows_of_a_segment_they_lead_to_the_new_state(table: str) -> None:
    delta = DELTAS[table]
    rows = delta_rows(delta, 1)
    assert cells(overlay([rows], delta.schema).apply(OLD[table])) == cells(NEW[table])
    assert set(rows.column("_stmtsn").to_pylist()) == {1}


def test_a_view_without_its_key_is_kept_from_complete_sets() -> None:
    """Two customers of one city are two equal rows: the dropped key says how many there are."""
    complete = partial_delta(
        "Addr",
        ADDR,
        ins=rows_of(ADDR, (4, "Dresden", "DE")),
        pairs=(rows_of(ADDR, (1, "Aachen", "DE")), rows_of(ADDR, (1, "Austin", "US"))),
        deleted=rows_of(ADDR, (3, "Chemnitz", "DE")),
    )
    addresses = Projection(RowFilter(Remote("Addr", ADDR, SNAPSHOTS), GERMAN), (("a", "AID"), ("city", "ACity")))
    inner = Projection(Remote("Cust", CUST, LOG), (("at", "CAddr"), ("CID", "CName")))  # a name as of the dropped key
    view = Projection(KeyJoin(inner, addresses, ("at",)), (("city", "city"),))
    check_maintainable(view, "cities")
    wide = keyed(view)
    assert wide.schema.names == ("city", "CID_key")
    delta = propagate(wide, "cities", {"Cust": cust_delta(), "Addr": complete}, InMemory(NEW))
    before = pa.table({"city": [r[0] for r in recomputed(view, OLD)]})
    after = applied_to_bag(before, delta, Schema(view.schema.columns))
    assert cells(after) == recomputed(view, NEW) == [("Aachen",), ("Dresden",), ("Dresden",)]
