"""How the greedy choice searches (MQO §6.2, §6.3): each optimisation is seen at work, and no choice is lost by it.

The set of views is one whose search takes several decisions, of which a later one makes an earlier one superfluous.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.unit.optimizer.sets import WITHOUT_INDEX, built, changes, from_sql

from freshview.bench import workload
from freshview.optimizer.cost import NOT_STORED, PERMANENT, TRANSIENT, Costs, Decision, Share, Store
from freshview.optimizer.dag import Dag
from freshview.optimizer.greedy import LEAST, Limits, Selection, select, sharing
from freshview.optimizer.operations import StoredRelation
from freshview.optimizer.statistics import Facts

VIEWS = ("balances", "large_returns", "scarce_parts", "shipped_by_supplier", "small_parts", "sold_types")
FACTS = {
    name: Facts(
        workload.ROWS[name],
        {column: workload.DISTINCT.get(column, workload.ROWS[name]) for column in columns},
        inserted=workload.ROWS[name] / 1000,
    )
    for name, columns in workload.TYPES.items()
}
PLAIN = Limits(clustering=False)


def _dag() -> Dag:
    return built(from_sql({name: workload.VIEWS[name] for name in VIEWS}, workload.TYPES), workload.TYPES)


def _costs(rounds: float = 1000.0) -> Costs:
    return Costs(_dag(), FACTS, WITHOUT_INDEX, rounds=rounds)


def _selection(limits: Limits = PLAIN, rounds: float = 1000.0) -> Selection:
    return select(_dag(), FACTS, WITHOUT_INDEX, limits, rounds=rounds)


@contextmanager
def _tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Decision]]:
    """The changes whose benefit a search asks for."""
    asked: list[Decision] = []
    tried = Costs.tried

    def noted(costs: Costs, change: Decision) -> float:
        asked.append(change)
        return tried(costs, change)

    with monkeypatch.context() as patch:
        patch.setattr(Costs, "tried", noted)
        yield asked


# -- §6.2: incremental cost update -----------------------------------------------------------------


def test_costs_are_followed_upwards_only_as_far_as_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is computed again if it uses the changed one, or one whose costs have changed; and no other node is."""
    costs, computed, computed_again = _costs(), Costs._computed, set[int]()
    stopped = False

    def noted(self: Costs, number: int) -> object:
        computed_again.add(number)
        return computed(self, number)

    monkeypatch.setattr(Costs, "_computed", noted)
    for change in changes(costs):
        before = {n: (v.full, v.deltas) for n, v in costs._values.items()}
        computed_again.clear()
        costs.apply(change)
        changed = {n for n, v in costs._values.items() if before[n] != (v.full, v.deltas)}
        above = costs._users[change.node].union(*(costs._users[n] for n in changed))
        assert computed_again == above
        stopped |= bool(computed_again - changed)
    assert stopped


# -- §6.2: monotonicity ----------------------------------------------------------------------------


def _benefits(costs: Costs, *, open_: set[int]) -> dict[Decision, float]:
    """What each full result would save now."""
    found = (Store(n, mode) for n in open_ for mode in (PERMANENT, TRANSIENT) if costs.mode[n] == NOT_STORED)
    return {change: costs.total - costs.tried(change) for change in found}


def test_each_decision_is_the_best_one_at_its_time() -> None:
    """The benefit that a candidate had earlier takes no decision: others have made it smaller since."""
    selection = _selection(replace(PLAIN, differentials=False))
    again = _costs()
    nodes = {n.number for n in again.nodes if not isinstance(n, StoredRelation) and n.number not in again.owner}
    first = _benefits(again, open_=nodes)
    assert len(selection.taken) > 2
    for taken in selection.taken:
        assert taken.benefit == pytest.approx(max(_benefits(again, open_=nodes).values()))
        again.apply(taken.change)
    assert any(taken.benefit < first[taken.change] - LEAST for taken in selection.taken)  # else nothing is shown


def test_a_benefit_is_looked_at_again_only_when_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    with _tried(monkeypatch) as asked:
        selection = _selection()
    candidates = len(set(asked))
    assert len(selection.taken) > 2
    assert len(asked) < candidates * len(selection.taken) / 2  # all of them, for every decision, are twice as many


# -- §6.2: sharability, unused results -------------------------------------------------------------


def test_no_differential_is_tried_that_no_plan_uses_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with _tried(monkeypatch) as asked:
        _selection()
    costs = _costs()
    degrees = sharing(costs)
    shares = {change.node for change in asked if isinstance(change, Share)}
    assert shares
    assert all(degrees[number] > 1 for number in shares)
    once = {n.number for n in costs.nodes if costs.changes[n.number] and degrees[n.number] == 1}
    assert once - costs.owner.keys()


def test_what_a_later_decision_makes_superfluous_is_dropped() -> None:
    """A result was kept for a while; in the end nothing reads it, and its own cost is saved."""
    selection = _selection()
    (gone,) = (r.change for r in selection.refused if "superfluous" in r.why)
    assert gone not in {t.change for t in selection.taken}
    assert selection.costs.tried(gone) > selection.after
    assert selection.before - selection.after > sum(t.benefit for t in selection.taken)


# -- §6.3: space; what building costs --------------------------------------------------------------


def test_under_a_budget_benefit_per_byte_decides() -> None:
    """Enough space for everything, so that only the order differs."""
    space = replace(PLAIN, permanent_bytes=1e12, transient_bytes=1e12)
    first, selection = (_selection(limits).taken[0] for limits in (PLAIN, space))
    assert first.benefit > selection.benefit > LEAST
    assert first.benefit / first.bytes < selection.benefit / selection.bytes


def test_building_a_stored_result_is_written_off_over_the_refreshes() -> None:
    often, once = _costs(1e12), _costs(1.0)
    number = next(n.number for n in often.nodes if n.number not in often.owner and not isinstance(n, StoredRelation))
    store = Store(number, PERMANENT)
    built_in = once.tried(store) - once.total - (often.tried(store) - often.total)
    assert built_in == pytest.approx(often.rmntcost(number))
    assert not [t for t in _selection(rounds=1.0).taken if t.change in _stores(often)]


def _stores(costs: Costs) -> set[Decision]:
    return {Store(node.number, PERMANENT) for node in costs.nodes}
