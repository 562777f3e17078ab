"""Whatever is chosen, views come out right: by their rewritten trees, recomputed or by delta rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, evaluate, plus, signed
from tests.unit.delta.cases import VIEWS
from tests.unit.optimizer.sets import RULE_SETS, built, changes, view
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, lowered_view, states

from freshview.algebra.nodes import Node, Scan, Shared, Table
from freshview.algebra.traversal import rewrite
from freshview.delta.derive import at_version, derive
from freshview.optimizer.choice import Choice, choice_of, optimise
from freshview.optimizer.cost import Costs, Share, Store
from freshview.optimizer.dag import View
from freshview.optimizer.greedy import Limits, Selection, Taken
from freshview.optimizer.prices import Prices
from freshview.optimizer.statistics import Facts

laws = settings(deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))
_SETS = [*RULE_SETS.values(), *([t] for t in VIEWS.values())]
_sets = st.lists(st.sampled_from(_SETS), min_size=1, max_size=2).map(lambda sets: [t for s in sets for t in s])
_rows = st.sampled_from([0.0, 1.0, 1e3, 1e7])
_facts = st.fixed_dictionaries(
    {t: st.builds(Facts, _rows, st.just({}), inserted=_rows, deleted=_rows) for t in SCHEMAS}
)


def _by_name(tree: Node) -> Node:
    """The tree with shared results read under names, as delta rules read relations."""

    def named(node: Node) -> Node:
        if isinstance(node, Scan) and isinstance(node.source, Shared):
            return replace(node, source=Table(f"shared {node.source.number}"))
        return node

    return rewrite(tree, named)


def _check(choice: Choice, views: list[View], run: list[State]) -> None:
    """Compute what is chosen, lower results first, over the old and the new state; then each view from it."""
    old, new = (dict(state) for state in run)
    schemas = dict(SCHEMAS)
    made: dict[str, Node] = {v.name: v.form.tree for v in views}
    parts = [(a.node, a.name, a.tree) for a in choice.auxiliaries]
    parts += [(s.node, f"shared {s.number}", s.tree) for s in choice.shared]
    position = choice.selection.costs.position
    for name, tree in made.items():
        _evaluated(name, tree, old, new, schemas)
    for _, name, tree in sorted(parts, key=lambda p: position[p[0]]):
        _evaluated(name, _by_name(tree), old, new, schemas)
    change = Change(old, new, schemas=schemas)
    for plan in choice.views:
        tree = _by_name(plan.tree)
        assert tree.columns == made[plan.name].columns
        for version, state in (("old", old), ("new", new)):
            assert evaluate(at_version(tree, version), change.read) == state[plan.name], f"{plan.name} {version}"
        delta = derive(tree, change.changed)
        moved: Bag = Counter() if delta is None else signed(delta, change.read)
        assert plus(old[plan.name], moved) == new[plan.name], f"{plan.name} by delta rules"


def _evaluated(
    name: str, tree: Node, old: dict[str, Bag], new: dict[str, Bag], schemas: dict[str, tuple[str, ...]]
) -> None:
    change = Change(old, new, schemas=schemas)
    old[name], new[name] = (evaluate(at_version(tree, v), change.read) for v in ("old", "new"))
    schemas[name] = tree.columns


def _views(texts: list[str]) -> list[View]:
    return [view(f"view{i}", lowered_view(t)) for i, t in enumerate(texts)]


@laws
@given(texts=_sets, facts=_facts, permanent=st.booleans(), transient=st.booleans(), run=states(2))
def test_wrong_statistics_cost_time_never_correctness(
    texts: list[str], facts: dict[str, Facts], permanent: bool, transient: bool, run: list[State]
) -> None:
    views = _views(texts)
    note(str(texts))
    limits = Limits(permanent=permanent, transient=transient)
    _check(optimise(built(views), facts, limits=limits, rounds=1e9), views, run)


@laws
@given(texts=_sets, facts=_facts, data=st.data(), run=states(2))
def test_any_forced_choice_gives_the_same_bags(
    texts: list[str], facts: dict[str, Facts], data: st.DataObject, run: list[State]
) -> None:
    views = _views(texts)
    note(str(texts))
    dag = built(views)
    costs = Costs(dag, facts, Prices())
    possible = [c for c in changes(costs) if isinstance(c, Store) or (isinstance(c, Share) and c.on)]
    taken = []
    if possible:
        for change in data.draw(st.lists(st.sampled_from(possible), max_size=6, unique_by=lambda c: (type(c), c.node))):
            if not isinstance(change, Store) or change.mode:
                costs.apply(change)
                taken.append(Taken(change, 1.0, 1.0))
    _check(choice_of(dag, Selection(costs, 0.0, tuple(taken), ())), views, run)
