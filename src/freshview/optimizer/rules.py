"""The rules that add ways to compute a node: one function each, with its law; `RULES` has their order.

Joins need no rule: a block has all its subsets (see `dag`). N[C] is a block of leaves N under the conditions C, γ[K] a
grouping by keys K whose calls add up: a count or sum of parts is their sum, a minimum or maximum of parts the best.
A law that computes an expression from group keys asks for keys in which equal values have the same bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from sqlglot import exp

from freshview.algebra.nodes import column
from freshview.delta.aggregates import one_image
from freshview.optimizer.dag import MOST_LEAVES, Dag
from freshview.optimizer.operations import (
    SUM,
    Block,
    Equivalence,
    Finer,
    Group,
    Grouping,
    Joined,
    Leaf,
    OperationInput,
    Relabel,
    conditions_of,
    leaves_of,
)
from freshview.optimizer.terms import Term, implies, renamed, term

MOST_FINER = 3  # groupings that a coarser one is computed from, those of the fewest keys
MOST_EAGER = 16  # subsets of one block below whose joins a grouping is pushed, the smallest first

Rule = Callable[[Dag], None]


def expand(dag: Dag) -> None:
    """Apply all rules once, in their order."""
    for rule in RULES:
        rule(dag)


# -- selections ------------------------------------------------------------------------------------


def common_selection(dag: Dag) -> None:
    """N[C1], …, N[Cn] can all be taken from N[C], C the conditions that each Ci implies."""
    for blocks in _by_leaves(dag):
        if len(blocks) > 1:
            every = dict.fromkeys(t for b in blocks for t in conditions_of(b))
            common = [t for t in every if all(implies(conditions_of(b), t, dag.type_of) for b in blocks)]
            if _is_joined(dag, leaves_of(blocks[0]), common):
                dag.block(leaves_of(blocks[0]), common)


def select_subsumption(dag: Dag) -> None:
    """N[C] = σ[C − C'] N[C'] if C implies C' (σ[x < 5] from σ[x < 10], x = 3 from x IN (3, 4))."""
    for blocks in _by_leaves(dag):
        for strict in blocks:
            for loose in _looser(dag, strict, blocks):
                if isinstance(loose, Block):
                    strict.add(Joined("select subsumption", (OperationInput(loose, _same(dag)),), _rest(strict, loose)))


def _by_leaves(dag: Dag) -> Iterable[list[Equivalence]]:
    """The nodes over equal leaves, which differ in their conditions; a leaf alone has none."""
    found: dict[tuple[Leaf, ...], list[Equivalence]] = defaultdict(list)
    for node in dag.nodes:
        found[leaves_of(node)].append(node)
    return list(found.values())


def _is_joined(dag: Dag, leaves: tuple[Leaf, ...], conditions: Iterable[Term]) -> bool:
    """Do conditions connect all leaves? Else what they leave would be a product of large relations."""
    edges = [_leaves(dag, t) for t in conditions]
    reached = {leaves[0]}
    while more := [e for e in edges if e & reached and not e <= reached]:
        reached.update(*more)
    return reached == set(leaves)


def _looser(dag: Dag, strict: Equivalence, blocks: list[Equivalence]) -> list[Equivalence]:
    """Up to two of the nodes with looser conditions: a loosest one, and a tightest one that a view stores."""
    stored = {r.node for r in dag.roots}
    loosest: Equivalence | None = None
    tightest: Equivalence | None = None
    for block in blocks:
        if _is_stricter(dag, strict, block):
            if loosest is None or _is_stricter(dag, loosest, block):
                loosest = block
            if block in stored and (tightest is None or _is_stricter(dag, block, tightest)):
                tightest = block
    return list(dict.fromkeys(b for b in (loosest, tightest) if b is not None))


def _is_stricter(dag: Dag, strict: Equivalence, loose: Equivalence) -> bool:
    own, others = conditions_of(strict), conditions_of(loose)
    if strict is loose or not all(t in own or implies(own, t, dag.type_of) for t in others):
        return False
    return not all(t in others or implies(others, t, dag.type_of) for t in own)


def _rest(strict: Equivalence, loose: Equivalence) -> tuple[Term, ...]:
    return tuple(t for t in conditions_of(strict) if t not in conditions_of(loose))


# -- groupings -------------------------------------------------------------------------------------


def grouped_selection(dag: Dag) -> None:
    """γ[K] N[C] = γ[K] σ[C − C'] γ[K ∪ columns of C − C'] N[C'] if C implies C'."""
    over = {groupings[0].input: groupings for groupings in _by_input(dag)}
    for blocks in _by_leaves(dag):
        for strict in [b for b in blocks if b in over]:
            for loose in _looser(dag, strict, blocks):
                for coarse in over[strict]:
                    _from_looser(dag, coarse, strict, loose)


def _from_looser(dag: Dag, coarse: Grouping, strict: Equivalence, loose: Equivalence) -> None:
    rest = _rest(strict, loose)
    columns = sorted(set[str]().union(*(t.columns for t in rest)))
    if not all(one_image(dag.type_of(c)) for c in columns):
        return
    finer = dag.grouping(loose, [*(t for _, t in coarse.keys), *(term(column(c)) for c in columns)])
    names = {c: finer.key_of[term(column(c)).text] for c in columns}
    filters = tuple(term(renamed(t.expression, names)) for t in rest)
    keys = tuple((own, term(column(finer.key_of[t.text]))) for own, t in coarse.keys)
    _add(
        dag,
        coarse,
        Group("grouped selection", (OperationInput(finer, _same(dag)),), coarse, keys, filters, _finer(dag, finer)),
    )


def common_grouping(dag: Dag) -> None:
    """γ[K1] E, …, γ[Kn] E can all be taken from γ[K1 ∪ … ∪ Kn] E."""
    for groupings in _by_input(dag):
        if len(groupings) > 1:
            dag.grouping(groupings[0].input, [t for g in groupings for _, t in g.keys])


def coarser_grouping(dag: Dag) -> None:
    """γ[K] E = γ[K] γ[K'] E if every key of K is one of K', or an expression over keys of K'."""
    for groupings in _by_input(dag):
        for coarse in groupings:
            linked = 0
            for fine in sorted(groupings, key=lambda g: len(g.keys)):
                keys = _keys_from(dag, coarse, fine) if linked < MOST_FINER else None
                if keys is not None and _keys_from(dag, fine, coarse) is None:
                    linked += 1
                    operation = Group(
                        "coarser grouping", (OperationInput(fine, _same(dag)),), coarse, keys, finer=_finer(dag, fine)
                    )
                    _add(dag, coarse, operation)


def _keys_from(dag: Dag, coarse: Grouping, fine: Grouping) -> tuple[tuple[str, Term], ...] | None:
    """The keys of one grouping as expressions over the columns of another; None if they cannot be computed."""
    plain = {t.expression.name: own for own, t in fine.keys if isinstance(t.expression, exp.Column)}
    found = []
    for own, key in coarse.keys:
        if key.text in fine.key_of:
            found.append((own, term(column(fine.key_of[key.text]))))
        elif key.columns <= plain.keys() and all(one_image(dag.type_of(c)) for c in key.columns):
            found.append((own, term(renamed(key.expression, plain))))
        else:
            return None
    return tuple(found)


def eager_aggregation(dag: Dag) -> None:
    """γ[K] (S ⋈ R) = γ[K] (γ[K ∩ S ∪ J] S ⋈ R), J the columns of S in conditions with R; counts are carried.

    S has the arguments of all sums. A count over R adds the counts of S; a minimum or maximum over R is the same.
    With R the table of a coarser key this is a grouping by that key from the finer one (γ by nation from γ by
    customer, joined with customer).
    """
    waiting = _groupings(dag)
    for grouping in waiting:  # grows: what was pushed down is pushed further
        below = grouping.input
        if isinstance(below, Block) and 1 < len(below.leaves) <= MOST_LEAVES:
            for part in _parts(dag, grouping, below):
                finer = _pushed(dag, grouping, below, part)
                if finer is not None and finer not in waiting:
                    waiting.append(finer)


def _parts(dag: Dag, grouping: Grouping, block: Block) -> list[frozenset[Leaf]]:
    """The connected subsets of a block that hold the arguments of all sums, the smallest first."""
    summed = {dag.names.leaf(c) for call in grouping.calls if call.kind == SUM for c in call.columns}
    found: set[frozenset[Leaf]] = {frozenset([leaf]) for leaf in block.leaves}
    for size in range(2, len(block.leaves)):
        for part in [p for p in found if len(p) == size - 1]:
            for t in block.conditions:
                touched = {dag.names.leaf(c) for c in t.columns}
                if touched & part and len(touched - part) == 1:
                    found.add(part | touched)
    fitting = [p for p in found if summed <= p]
    return sorted(fitting, key=lambda p: (len(p), sorted(p)))[:MOST_EAGER]


def _pushed(dag: Dag, grouping: Grouping, block: Block, part: frozenset[Leaf]) -> Grouping | None:
    """Push a grouping below the joins between a part of a block and the rest; None if the law does not allow it."""
    inside = [t for t in block.conditions if _leaves(dag, t) <= part and t.columns]
    across = [t for t in block.conditions if t not in inside]
    whole = [t for _, t in grouping.keys if t.columns and _leaves(dag, t) <= part]
    mixed = [*across, *(t for _, t in grouping.keys if t not in whole)]
    joined = {c for t in mixed for c in t.columns if dag.names.leaf(c) in part}
    if not all(one_image(dag.type_of(c)) for c in joined):
        return None
    kept = {t.text: t for t in (*whole, *(term(column(c)) for c in sorted(joined)))}
    if not kept:
        return None  # without a key the part would have a row even if it is empty
    below, inner = dag.block(sorted(part), inside)
    finer = dag.grouping(below, map(inner.term, kept.values()))
    if finer is grouping:
        return None
    rest = [leaf for leaf in block.leaves if leaf not in part]
    occurrence = sum(owner == finer.number for owner, _ in rest)
    lift = Relabel(dag.names, {(finer.number, 0): occurrence})
    names = {text: lift.name(finer.key_of[inner.term(t).text]) for text, t in kept.items()}
    plain = {t.expression.name: names[text] for text, t in kept.items() if isinstance(t.expression, exp.Column)}
    moved = [term(renamed(t.expression, plain)) for t in across]
    above, outer = dag.block([(finer.number, occurrence), *rest], moved)
    lift = Relabel(dag.names, {(finer.number, 0): outer.leaf((finer.number, occurrence))[1]})
    keys = []
    for own, key in grouping.keys:
        over = term(column(names[key.text])) if key.text in names else term(renamed(key.expression, plain))
        keys.append((own, outer.term(over)))
    made = Finer(finer, inner, outer, lift, part)
    if not all(map(made.accepts, grouping.calls)):
        return None
    _add(
        dag,
        grouping,
        Group("eager aggregation", (OperationInput(above, _same(dag)),), grouping, tuple(keys), finer=made),
    )
    return finer


def _leaves(dag: Dag, given: Term) -> set[Leaf]:
    return {dag.names.leaf(c) for c in given.columns}


def _groupings(dag: Dag) -> list[Grouping]:
    return [n for n in dag.nodes if isinstance(n, Grouping)]


def _by_input(dag: Dag) -> Iterable[list[Grouping]]:
    found: dict[Equivalence, list[Grouping]] = defaultdict(list)
    for grouping in _groupings(dag):
        found[grouping.input].append(grouping)
    return list(found.values())


def _add(dag: Dag, grouping: Grouping, operation: Group) -> None:
    """Add a way to compute a grouping; the finer one has to keep the calls of the coarser one."""
    assert operation.finer is not None
    if any(o.key == operation.key for o in grouping.operations):
        return
    grouping.add(operation)
    for call in list(grouping.calls):
        name = operation.finer.column_for(call)
        if name is not None:
            dag.types[name] = operation.finer.grouping.call_of(name).type


def _finer(dag: Dag, finer: Grouping) -> Finer:
    return Finer(finer, _same(dag), _same(dag), _same(dag))


def _same(dag: Dag) -> Relabel:
    return Relabel(dag.names)


RULES: tuple[Rule, ...] = (
    common_selection,
    grouped_selection,
    common_grouping,
    eager_aggregation,
    coarser_grouping,
    select_subsumption,
)
