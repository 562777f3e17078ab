"""The stored form of a view, and the plan of its delta in that form.

    rows     the view's rows as a bag; Δ by the general rules.
    groups   γ at the root: stored with its group keys; Δ = γ(new(E) ⋉ K) − stored ⋉ K. Deleted rows are read
             from the stored rows, so sums of doubles are retracted exactly as they were stored (law 11.5). Without
             keys all rows are one group, which is computed again if Δ(E) has a row.
    sums     γ at the root whose aggregates all have an exact state (delta/aggregates.py): stored with it, and Δ-groups
             are added to it. A group dies when its row count is 0 (LAZY §3.3); without keys there is always one row
             (law 11.9). Groups whose MIN or MAX may have been deleted are computed again, from new(E) ⋉ those keys.
             All groups are stored, also those that HAVING drops: the hidden column `member` marks rows of the view.
    top      ORDER BY … LIMIT at the root: stored with a buffer of rows beyond it, not marked as members (delta/top.py).

Columns beyond the view's own are hidden from queries.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from freshview.algebra.facts import only_grows
from freshview.algebra.nodes import (
    WEIGHT,
    Aggregate,
    Filter,
    Generate,
    Join,
    Lowered,
    Node,
    Project,
    Scan,
    Stored,
    TopK,
    Union,
    column,
    same,
)
from freshview.algebra.traversal import rewrite
from freshview.delta.aggregates import State, TypesOf, case, one_image, state_of, stored
from freshview.delta.derive import at_version, derive, difference, null_safe
from freshview.delta.top import Top, alike, kept, root_top


@dataclass(frozen=True)
class Form:
    """A view's stored form. `tree` computes all stored columns from scratch, named as stored."""

    rule: str  # "rows" | "groups" | "sums" | "top"
    tree: Node
    visible: tuple[str, ...]
    root: Aggregate | None = None
    chain: tuple[Node, ...] = ()  # projections and filters directly above the aggregate, outermost first
    keys: tuple[tuple[str, str], ...] = ()  # (group key in the tree, stored column)
    state: State | None = None
    member: str | None = None  # the hidden column that is true for rows that belong to the view; None: all do
    top: Top | None = None

    @property
    def stored(self) -> tuple[str, ...]:
        return self.tree.columns

    @property
    def proviso(self) -> str:
        """When a change is recomputed although there are rules for it; empty: never."""
        return self.top.proviso if self.top is not None else ""


def rows_form(lowered: Lowered, names: tuple[str, ...]) -> Form:
    """The form "rows", which every definition allows."""
    return Form("rows", Project(lowered.node, _outputs(lowered, names)), names)


def choose_form(lowered: Lowered, names: tuple[str, ...], types_of: TypesOf) -> Form:
    """The best form that a definition allows; `names` are the view's column names."""
    first = root_top(lowered, names)
    if first is not None:
        return _top_form(*first, names, types_of)
    chain, node = _under(lowered.node)
    if not isinstance(node, Aggregate) or (not node.items and not node.keys):
        return rows_form(lowered, names)
    state = state_of(node, lambda name: hidden(name, names), types_of)
    if state is None:
        return _groups_form(lowered, names, chain, node)
    return _sums_form(lowered, names, chain, node, state)


def _under(node: Node) -> tuple[tuple[Node, ...], Node]:
    """The projections and filters at the root of a tree, outermost first, and what stands below them."""
    chain: list[Node] = []
    while isinstance(node, Project | Filter):
        chain.append(node)
        node = node.input
    return tuple(chain), node


def hidden(name: str, visible: tuple[str, ...]) -> str:
    """The name of a hidden column, different from all visible columns."""
    name = f"__{name}"
    while any(name == v.casefold() for v in visible):
        name += "_"
    return name


def _key_columns(root: Aggregate, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((k, hidden(f"key{i}", names)) for i, k in enumerate(root.keys))


def _outputs(lowered: Lowered, names: tuple[str, ...]) -> tuple[tuple[str, exp.Expr], ...]:
    return tuple((n, column(c)) for n, (c, _) in zip(names, lowered.outputs, strict=True))


def _carried(chain: tuple[Node, ...], base: Node, extra: tuple[str, ...]) -> Node:
    """The chain over a base, with `extra` columns of the base carried to the top."""
    node = base
    for step in reversed(chain):
        if isinstance(step, Filter):
            node = Filter(node, step.predicate)
        else:
            assert isinstance(step, Project)
            node = Project(node, (*step.items, *same(_missing(extra, step))))
    return node


def _groups_form(lowered: Lowered, names: tuple[str, ...], chain: tuple[Node, ...], root: Aggregate) -> Form:
    keys = _key_columns(root, names)
    top = _carried(chain, root, root.keys)
    tree = Project(top, (*_outputs(lowered, names), *((s, column(k)) for k, s in keys)))
    return Form("groups", tree, names, root, chain, keys)


def _sums_form(
    lowered: Lowered, names: tuple[str, ...], chain: tuple[Node, ...], root: Aggregate, state: State
) -> Form:
    keys = _key_columns(root, names)
    member = hidden("shown", names) if any(isinstance(n, Filter) for n in chain) else None
    base = Aggregate(root.input, root.keys, tuple((p.name, p.over_rows) for p in state.parts))
    form = Form("sums", base, names, root, chain, keys, state, member)
    return replace(form, tree=from_state(form, lowered, base))


def _top_form(node: TopK, visible: tuple[tuple[str, str], ...], names: tuple[str, ...], types_of: TypesOf) -> Form:
    """The form "top". Over a grouping whose keys have an order, the groups in the buffer are known by their keys."""
    chain, below = _under(node.input)
    root = below if isinstance(below, Aggregate) and below.keys and _have_order(below, types_of) else None
    keys = root.keys if root is not None else ()
    over = _carried(chain, root, keys) if root is not None else node.input
    own = (hidden(f"order{i}", names) for i in itertools.count())
    top = kept(node, over, visible, keys, own, (hidden("shown", names), hidden("more", names)))
    stored_as, one = dict(top.columns), alike(over, (c for _, c in visible))
    own_keys = tuple((k, stored_as[one[k]]) for k in keys)
    return Form("top", top.tree, names, root, chain if root is not None else (), own_keys, None, top.member, top)


def _have_order(root: Aggregate, types_of: TypesOf) -> bool:
    """Have all keys of a grouping an order? Those of doubles have one image, too: a grouping makes −0.0 and 0.0 one."""
    types = types_of(root)
    return all(one_image(types[k]) or types[k] in ("double", "float") for k in root.keys)


def with_buffer(form: Form, size: int) -> Form:
    """The form "top" with a buffer that ends at another place."""
    assert form.top is not None
    top = replace(form.top, size=size)
    return replace(form, tree=top.tree, top=top)


def from_state(form: Form, lowered: Lowered, base: Node, extra: tuple[str, ...] = ()) -> Node:
    """The stored columns over a base that has keys and state, and `extra` columns of the base."""
    assert form.root is not None
    assert form.state is not None
    results = Project(base, (*same(form.root.keys), *form.state.results, *same((*form.state.names, *extra))))
    top = _marked(form.chain, results, (*form.root.keys, *form.state.names, *extra), form.member)
    rest = (*form.state.names, *((form.member,) if form.member else ()), *extra)
    own = tuple((s, column(k)) for k, s in form.keys)
    return Project(top, (*_outputs(lowered, form.visible), *own, *same(rest)))


def _marked(chain: tuple[Node, ...], base: Node, extra: tuple[str, ...], member: str | None) -> Node:
    """The chain over a base, where a filter drops no rows but marks those it keeps in the column `member`.

    Expressions above a filter are computed only for the rows it keeps: on other rows they might fail.
    """
    node, marked = base, False
    for step in reversed(chain):
        if isinstance(step, Filter):
            assert member is not None
            kept = exp.and_(column(member), step.predicate.copy()) if marked else step.predicate.copy()
            others = tuple(c for c in node.columns if c != member)
            node = Project(node, (*same(others), (member, case(kept, exp.true(), exp.false()))))
            marked = True
            continue
        assert isinstance(step, Project)
        items = step.items
        if marked and member is not None:
            items = tuple((n, e if isinstance(e, exp.Column) else case(column(member), e.copy())) for n, e in items)
            extra = (*(c for c in extra if c != member), member)
        node = Project(node, (*items, *same(_missing(extra, step))))
    return node


def _missing(names: tuple[str, ...], step: Project) -> list[str]:
    """The columns among `names` that a projection does not have."""
    return [n for n in names if n not in step.columns]


def delta_plan(
    form: Form,
    lowered: Lowered,
    changed: set[str],
    types: Mapping[str, str],
    *,
    small: bool = True,
    inserts_only: frozenset[str] = frozenset(),
) -> Node | None:
    """The change of the stored rows, with a weight; None if the view reads nothing that changed.

    `types` has Spark's type of each stored column; `small` is passed to `derive`; `inserts_only` names changed
    relations whose change has no negative weight.
    """
    if form.rule == "rows":
        return derive(form.tree, changed, small=small)
    if form.top is not None and form.root is None:
        change = derive(form.top.node.input, changed, small=small)
        return form.top.delta(change, _stored_scan(form)) if change is not None else None
    assert form.root is not None
    delta = derive(form.root.input, changed, small=small)
    if delta is None:
        return None
    if form.top is not None:
        groups = _groups_delta(form, form.top.node.input, form.top.columns, delta, "right" if small else "")
        return form.top.delta(groups, _stored_scan(form))
    if form.rule == "sums":
        grows = only_grows(form.root.input, changed, inserts_only)
        return _sums_delta(form, lowered, delta, types, grows, "right" if small else "")
    return _groups_delta(form, form.tree, _as_stored(form), delta, "right" if small else "")


def _stored_scan(form: Form) -> Scan:
    return Scan(Stored(), tuple((c, stored(c)) for c in form.stored), "old")


def _as_stored(form: Form) -> tuple[tuple[str, str], ...]:
    return tuple((c, c) for c in form.stored)


def _groups_delta(form: Form, tree: Node, columns: tuple[tuple[str, str], ...], delta: Node, small: str) -> Node:
    """γ(new ⋉ K) − stored ⋉ K over a tree above the root; `columns` pairs its columns, in order, with stored ones."""
    assert form.root is not None
    touched = _touched_keys(form.root, delta)
    new_input = at_version(form.root.input, "new")
    if not form.keys:  # one group, which has a row even of no rows: it is left alone if no row has changed
        alone = Join(Aggregate(new_input, (), form.root.items), touched, "semi", None, small)
        fresh = rewrite(tree, lambda n: alone if n is form.root else n)
        return difference(tree.columns, fresh, Join(_stored_at_keys(form, touched, columns), touched, "semi", None))
    affected = Aggregate(touched, touched.columns, ())
    met = Join(new_input, affected, "semi", null_safe(form.root.keys, affected.columns), small)
    root = Aggregate(met, form.root.keys, form.root.items)
    fresh = rewrite(tree, lambda n: root if n is form.root else n)
    return difference(tree.columns, fresh, _stored_at_keys(form, affected, columns))


def _touched_keys(root: Aggregate, rows: Node) -> Project:
    return Project(rows, tuple((f"{k}__touched", column(k)) for k in root.keys))


def _stored_at_keys(form: Form, affected: Node, columns: tuple[tuple[str, str], ...]) -> Node:
    """The stored rows of the affected groups, by (name, stored column) pairs."""
    old: Node = _stored_scan(form)
    if form.keys:
        old = Join(old, affected, "semi", null_safe(tuple(stored(s) for _, s in form.keys), affected.columns))
    return Project(old, tuple((name, column(stored(c))) for name, c in columns))


def _sums_delta(form: Form, lowered: Lowered, delta: Node, types: Mapping[str, str], grows: bool, small: str) -> Node:
    root, state = form.root, form.state
    assert root is not None
    assert state is not None
    sums = tuple(item for p in state.parts for item in p.over_delta(types[p.name], grows=grows))
    groups = Aggregate(delta, root.keys, sums)
    condition = null_safe(root.keys, tuple(stored(s) for _, s in form.keys)) if form.keys else None
    joined = Join(groups, _stored_scan(form), "left", condition)
    doubts = [] if grows else [p.in_doubt for p in state.parts if p.in_doubt is not None]
    if not doubts:
        return _in_one_pass(form, lowered, joined, types)
    updated = Project(joined, (*same(root.keys), *((p.name, p.merged(types[p.name])) for p in state.parts)))
    fresh = _recomputed_where(exp.or_(*doubts), root, state, updated, small)
    old = _stored_at_keys(form, _touched_keys(root, groups), _as_stored(form))
    return difference(form.stored, from_state(form, lowered, fresh), old)


def _in_one_pass(form: Form, lowered: Lowered, joined: Join, types: Mapping[str, str]) -> Node:
    """Every touched group twice, with its new state and with its stored one: the groups are computed once.

    The view's expressions are computed only for groups that have rows: on others they might fail.
    """
    root, state = form.root, form.state
    assert root is not None
    assert state is not None
    signs = exp.Explode(this=exp.Array(expressions=[exp.Literal.number(1), exp.Neg(this=exp.Literal.number(1))]))
    comes = exp.GT(this=column(WEIGHT), expression=exp.Literal.number(0))
    there = exp.Not(this=exp.Is(this=column(stored(state.rows)), expression=exp.Null()))

    def chosen(new: exp.Expr, old: str) -> exp.Expr:
        return case(comes.copy(), new, column(stored(old)))

    both = Filter(Generate(joined, signs, (WEIGHT,)), exp.or_(comes.copy(), there))
    read = (*form.visible, *((form.member,) if form.member else ()))
    old = tuple(map(stored, read))
    # A stored key that equals the group's has the same bits, except for doubles and their like. A CASE would be right
    # for all types, but it hides from Spark that a key is a CHAR(n), and so how to compare it.
    keys = tuple((k, column(k) if one_image(types[s]) else chosen(column(k), s)) for k, s in form.keys)
    parts = tuple((p.name, chosen(p.merged(types[p.name]), p.name)) for p in state.parts)
    living = _alive(root, state, Project(both, (*keys, *parts, *same((*old, WEIGHT)))))
    full = from_state(form, lowered, living, (*old, WEIGHT))
    items = tuple((c, chosen(column(c), c) if c in read else column(c)) for c in form.stored)
    return Project(full, (*items, (WEIGHT, column(WEIGHT))))


def _alive(root: Aggregate, state: State, groups: Node) -> Node:
    """The groups that have rows; the one group of an aggregate without keys never dies (law 11.9)."""
    if not root.keys:
        return groups
    return Filter(groups, exp.GT(this=column(state.rows), expression=exp.Literal.number(0)))


def _recomputed_where(doubt: exp.Expr, root: Aggregate, state: State, updated: Project, small: str) -> Node:
    """The updated groups; those whose best value is in doubt are computed again from their new rows."""
    mark = f"{state.rows}__doubt"
    marked = Project(updated.input, (*updated.items, (mark, case(doubt, exp.true(), exp.false()))))
    living = _alive(root, state, marked)
    kept = Project(Filter(living, exp.Not(this=column(mark))), same(updated.columns))
    doubtful = Project(Filter(living, column(mark)), tuple((f"{k}__doubt", column(k)) for k in root.keys))
    match = null_safe(root.keys, doubtful.columns) if root.keys else None
    met = Join(at_version(root.input, "new"), doubtful, "semi", match, small)
    again = state.of(met, root.keys)
    if not root.keys:  # without keys, an aggregate of no rows has one row
        again = Join(again, doubtful, "semi", None, small)
    return Union((kept, again), updated.columns)
