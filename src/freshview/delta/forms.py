"""How a view is stored, and the plan of its delta in that form.

    rows     the view's rows as a bag; Δ by the general rules.
    groups   γ at the root: stored with its group keys; Δ = γ(new(E) ⋉ K) − stored ⋉ K. What is taken away is
             read from the stored rows, so sums of doubles are retracted exactly as they were stored (law 11.5).
    sums     γ at the root with COUNT and SUM on exact types: stored with its state (row count, sums and counts of
             non-NULL arguments); Δ-groups are added to the state. A group dies when its row count is 0 (LAZY §3.3);
             a SUM over only NULLs is NULL (law 11.8); without keys there is always one row (law 11.9).

Columns beyond the view's own are hidden from queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from freshview.algebra.nodes import WEIGHT, Aggregate, Filter, Join, Lowered, Node, Project, Scan, Union, column
from freshview.algebra.traversal import rewrite
from freshview.delta.derive import at_version, derive, null_safe, weighted

STORED = "\0stored"  # the relation name under which a delta plan reads the view's own rows


@dataclass(frozen=True)
class Form:
    """A view's stored form. `tree` computes all stored columns from scratch, named as stored."""

    rule: str  # "rows" | "groups" | "sums"
    tree: Node
    visible: tuple[str, ...]
    root: Aggregate | None = None
    chain: tuple[Node, ...] = ()  # projections and filters above the aggregate, outermost first
    keys: tuple[tuple[str, str], ...] = ()  # (group key in the tree, stored column)

    @property
    def stored(self) -> tuple[str, ...]:
        return self.tree.columns


def rows_form(lowered: Lowered, names: tuple[str, ...]) -> Form:
    items = tuple((n, column(c)) for n, (c, _) in zip(names, lowered.outputs, strict=True))
    return Form("rows", Project(lowered.node, items), names)


def choose_form(lowered: Lowered, names: tuple[str, ...], exact_sums: bool) -> Form:
    """The best form that a definition allows; `names` are the view's column names."""
    chain: list[Node] = []
    node = lowered.node
    while isinstance(node, Project | Filter):
        chain.append(node)
        node = node.input
    if not isinstance(node, Aggregate) or (not node.items and not node.keys):
        return rows_form(lowered, names)
    if (
        exact_sums
        and node.items
        and all(_is_sum(e) for _, e in node.items)
        and not any(isinstance(n, Filter) for n in chain)
    ):
        return _sums_form(lowered, names, tuple(chain), node)
    return _groups_form(lowered, names, tuple(chain), node)


def _is_sum(expression: exp.Expr) -> bool:
    if isinstance(expression, exp.Count):
        argument = expression.this
        return not isinstance(argument, exp.Distinct) and not expression.expressions
    return isinstance(expression, exp.Sum) and not isinstance(expression.this, exp.Distinct)


def _hidden(name: str, visible: tuple[str, ...]) -> str:
    """The name of a hidden column, one that no visible column has."""
    name = f"__{name}"
    while any(name == v.casefold() for v in visible):
        name += "_"
    return name


def _key_columns(root: Aggregate, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((k, _hidden(f"key{i}", names)) for i, k in enumerate(root.keys))


def _outputs(lowered: Lowered, names: tuple[str, ...]) -> list[tuple[str, exp.Expr]]:
    return [(n, column(c)) for n, (c, _) in zip(names, lowered.outputs, strict=True)]


def _carried(chain: tuple[Node, ...], base: Node, extra: tuple[str, ...]) -> Node:
    """The chain over a base, with further columns of the base carried to the top."""
    node = base
    for step in reversed(chain):
        if isinstance(step, Filter):
            node = Filter(node, step.predicate)
        else:
            assert isinstance(step, Project)
            node = Project(node, (*step.items, *((c, column(c)) for c in extra)))
    return node


def _groups_form(lowered: Lowered, names: tuple[str, ...], chain: tuple[Node, ...], root: Aggregate) -> Form:
    keys = _key_columns(root, names)
    top = _carried(chain, root, root.keys)
    tree = Project(top, (*_outputs(lowered, names), *((s, column(k)) for k, s in keys)))
    return Form("groups", tree, names, root, chain, keys)


def _sums_form(lowered: Lowered, names: tuple[str, ...], chain: tuple[Node, ...], root: Aggregate) -> Form:
    keys = _key_columns(root, names)
    state = _state(root, names)
    base = Aggregate(root.input, root.keys, tuple((s.name, s.over_rows) for s in state))
    tree = _from_state(base, lowered, names, chain, root, keys)
    return Form("sums", tree, names, root, chain, keys)


@dataclass(frozen=True)
class _State:
    """A hidden column: what it is over rows, what it adds up to over a delta, and for a sum what counts its values."""

    name: str
    over_rows: exp.Expr
    over_delta: exp.Expr
    known: str | None = None


def _state(root: Aggregate, names: tuple[str, ...], types: Mapping[str, str] | None = None) -> list[_State]:
    """The state of a view. With types, integers add up as decimals: −1 × the smallest is no integer (law 11.8)."""
    weight = column(WEIGHT)
    state = [_State(_hidden("rows", names), exp.Count(this=exp.Star()), exp.Sum(this=weight.copy()))]
    for i, (_, call) in enumerate(root.items):
        argument = call.this
        if isinstance(argument, exp.Star):
            continue
        known = exp.Case(
            ifs=[exp.If(this=exp.Is(this=argument.copy(), expression=exp.Null()), true=exp.Literal.number(0))],
            default=weight.copy(),
        )
        count = _hidden(f"known{i}", names)
        state.append(_State(count, exp.Count(this=argument.copy()), exp.Sum(this=known)))
        if isinstance(call, exp.Sum):
            total = _hidden(f"sum{i}", names)
            whole = types is not None and types[total] == "bigint"
            positive = exp.GT(this=weight.copy(), expression=exp.Literal.number(0))
            wide = exp.cast(argument.copy(), "decimal(20, 0)") if whole else argument
            signed = exp.Case(ifs=[exp.If(this=positive, true=wide.copy())], default=exp.Neg(this=wide.copy()))
            state.append(_State(total, exp.Sum(this=argument.copy()), exp.Sum(this=signed), count))
    return state


def _from_state(
    base: Node, lowered: Lowered, names: tuple[str, ...], chain: tuple[Node, ...], root: Aggregate,
    keys: tuple[tuple[str, str], ...],
) -> Node:  # fmt: skip
    """The view's columns from its state: an aggregate that was asked for is a state column."""
    state = tuple(s.name for s in _state(root, names))
    items: list[tuple[str, exp.Expr]] = [(k, column(k)) for k in root.keys]
    for i, (name, call) in enumerate(root.items):
        kind = f"sum{i}" if isinstance(call, exp.Sum) else "rows" if isinstance(call.this, exp.Star) else f"known{i}"
        items.append((name, column(_hidden(kind, names))))
    results = Project(base, (*items, *((s, column(s)) for s in state)))
    top = _carried(chain, results, (*root.keys, *state))
    return Project(
        top, (*_outputs(lowered, names), *((s, column(k)) for k, s in keys), *((s, column(s)) for s in state))
    )


def delta_plan(
    form: Form, lowered: Lowered, changed: set[str], types: Mapping[str, str], *, small: bool = True
) -> Node | None:
    """The change of the stored rows, with a weight; None if the view reads nothing that changed.

    `types` gives Spark's type of each stored column.
    """
    if form.rule == "rows":
        return derive(form.tree, changed, small=small)
    assert form.root is not None
    delta = derive(form.root.input, changed, small=small)
    if delta is None:
        return None
    if form.rule == "sums":
        return _sums_delta(form, lowered, delta, types)
    return _groups_delta(form, delta, "right" if small else "")


def _stored_scan(form: Form) -> Scan:
    return Scan(STORED, tuple((c, f"{c}__old") for c in form.stored), "old")


def _groups_delta(form: Form, delta: Node, small: str) -> Node:
    assert form.root is not None
    affected = _touched_keys(form, delta)
    new_input = at_version(form.root.input, "new")
    if form.keys:
        new_input = Join(new_input, affected, "semi", null_safe(form.root.keys, affected.columns), small)
    fresh = _replaced(form, Aggregate(new_input, form.root.keys, form.root.items))
    return _difference(form, fresh, _stored_near(form, affected))


def _touched_keys(form: Form, delta: Node) -> Node:
    assert form.root is not None
    names = tuple(f"{k}__touched" for k in form.root.keys)
    keys = Project(delta, tuple((n, column(k)) for n, k in zip(names, form.root.keys, strict=True)))
    return Aggregate(keys, names, ())


def _stored_near(form: Form, affected: Node) -> Node:
    """The stored rows of the affected groups, named as stored."""
    stored: Node = _stored_scan(form)
    if form.keys:
        own = tuple(f"{s}__old" for _, s in form.keys)
        stored = Join(stored, affected, "semi", null_safe(own, affected.columns))
    return Project(stored, tuple((c, column(f"{c}__old")) for c in form.stored))


def _replaced(form: Form, root: Node) -> Node:
    """The stored columns over another root aggregate."""
    assert form.root is not None
    return _swap(form.tree, form.root, root)


def _swap(tree: Node, old: Node, new: Node) -> Node:
    return rewrite(tree, lambda n: new if n is old else n)


def _difference(form: Form, new: Node, old: Node) -> Node:
    return Union((weighted(new, 1), weighted(old, -1)), (*form.stored, WEIGHT))


def _sums_delta(form: Form, lowered: Lowered, delta: Node, types: Mapping[str, str]) -> Node:
    root = form.root
    assert root is not None
    names = form.visible
    state = _state(root, names, types)
    groups = Aggregate(delta, root.keys, tuple((f"{s.name}__add", s.over_delta) for s in state))
    own = tuple(f"{s}__old" for _, s in form.keys)
    condition = null_safe(root.keys, own) if form.keys else None
    joined = Join(groups, _stored_scan(form), "left", condition)
    items: list[tuple[str, exp.Expr]] = [(k, column(k)) for k in root.keys]
    for part in state:
        value: exp.Expr = exp.cast(_added(part.name), types[part.name], dialect="spark")
        if part.known is not None:
            empty = exp.EQ(this=_added(part.known), expression=exp.Literal.number(0))
            value = exp.Case(ifs=[exp.If(this=empty, true=exp.Null())], default=value)
        items.append((part.name, value))
    updated: Node = Project(joined, tuple(items))
    if root.keys:
        updated = Filter(updated, exp.GT(this=column(state[0].name), expression=exp.Literal.number(0)))
    fresh = _from_state(updated, lowered, names, form.chain, root, form.keys)
    touched = tuple(f"{k}__touched" for k in root.keys)
    affected = Project(groups, tuple((n, column(k)) for n, k in zip(touched, root.keys, strict=True)))
    return _difference(form, fresh, _stored_near(form, affected))


def _added(name: str) -> exp.Expr:
    """A state column: what is stored and what the delta adds."""
    return exp.Add(this=_or_zero(f"{name}__old"), expression=_or_zero(f"{name}__add"))


def _or_zero(name: str) -> exp.Expr:
    return exp.Coalesce(this=column(name), expressions=[exp.Literal.number(0)])
