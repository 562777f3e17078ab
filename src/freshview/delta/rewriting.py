"""The stored form of a view over other relations than those of its text: auxiliary views take the place of parts.

A *rewriting* is a tree with the view's stored columns. Its form stores the same columns as the view's own form, so
that a view goes from one to the other, and back, without touching a stored row.

    sums      the root of the rewriting is a grouping by the view's keys, over rows or over partial results of finer
              groups: counts and sums of parts are added, the best of parts is the best. What stands above the
              grouping (results, HAVING, projections) is the view's own.
    groups    the root is a grouping by the view's keys: affected groups are computed again over the rewritten input
    rows      everything else that adds up exactly, by the general rules

Law: in every state the rewritten tree gives the rows of the form's own tree, hidden columns included, and
stored rows ⊕ Δ of the rewritten form are the rows after the change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from freshview.algebra.nodes import Aggregate, Filter, Lowered, Node, Project, column, names_in, same
from freshview.delta.aggregates import State, StatePart, plain_call
from freshview.delta.forms import Form, from_state
from freshview.relation.types import NEGATED

_DECIMAL = re.compile(r"decimal\((\d+),\d+\)")


def rewritten(form: Form, lowered: Lowered, types: Mapping[str, str], tree: Node) -> Form | None:
    """The form of a view over a rewritten tree of its stored columns; None if its rows could not be kept by it.

    `lowered` is the view's own tree, `types` has Spark's types of the stored columns.
    """
    assert tree.columns == form.stored
    rows = Form("rows", tree, form.visible, member=form.member)
    match form.rule:
        case "rows":
            return rows
        case "sums":
            return _sums(form, lowered, types, tree) or rows
        case "groups":
            return _groups(form, tree)
    return None  # the rows beyond those of ORDER BY … LIMIT depend on the jobs of the past


def _sums(form: Form, lowered: Lowered, types: Mapping[str, str], tree: Node) -> Form | None:
    assert form.root is not None
    assert form.state is not None
    meaning, root = _below(tree, (Project,))
    keys = _keys(form, meaning, root)
    if keys is None or not isinstance(root, Aggregate):
        return None
    parts = [_part(part, types[part.name], _call(meaning[part.name], root)) for part in form.state.parts]
    found = tuple(part for part in parts if part is not None)
    if len(found) != len(parts):
        return None
    used = {name for p in found for e in (p.argument, p.times) if e is not None for name in names_in(e)}
    own = tuple((key, column(keys[key])) for key in form.root.keys)
    source = Project(root.input, (*own, *same(sorted(used - set(form.root.keys)))))
    state = State(found, form.state.results)
    made = replace(form, root=Aggregate(source, form.root.keys, ()), state=state)
    return replace(made, tree=from_state(made, lowered, state.of(source, form.root.keys)))


def _part(part: StatePart, type_: str, call: exp.Expr | None) -> StatePart | None:
    """A part of the state, computed from a call of the rewritten grouping; None if the call does not give it."""
    plain = plain_call(call) if call is not None else None
    if plain is None:
        return None
    kind, argument = plain
    if part.kind == "count":
        if kind == "count":
            return replace(part, argument=argument)
        return replace(part, argument=None, times=argument) if kind == "sum" else None
    if kind != part.kind or argument is None:
        return None
    if part.kind != "sum":
        return replace(part, argument=argument)
    digits = _DECIMAL.fullmatch(type_)
    if digits is not None and int(digits[1]) > NEGATED:
        return None  # a partial sum could not be taken away
    return replace(part, argument=argument, type=type_ if digits is not None else "")


def _groups(form: Form, tree: Node) -> Form | None:
    assert form.root is not None
    meaning, root = _below(tree, (Project, Filter))
    keys = _keys(form, meaning, root)
    if keys is None or not isinstance(root, Aggregate):
        return None
    names = {keys[key]: name for key, name in form.keys}
    own = tuple((key, names[key]) for key in root.keys)  # deltas pair them with the grouping's keys by place
    return Form("groups", tree, form.visible, root, (), own, member=form.member)


def _keys(form: Form, meaning: Mapping[str, exp.Expr], root: Node) -> dict[str, str] | None:
    """The keys of a rewritten grouping, by the view's own ones; None if it groups otherwise."""
    if not isinstance(root, Aggregate):
        return None
    found = {key: meaning[name].name for key, name in form.keys if isinstance(meaning[name], exp.Column)}
    return found if len(found) == len(form.keys) and set(found.values()) == set(root.keys) else None


def _call(meaning: exp.Expr, root: Aggregate) -> exp.Expr | None:
    """The call behind a column: the sum of partial results has a wider type, that of no rows is NULL."""
    while isinstance(meaning, exp.Cast | exp.Coalesce | exp.Paren):
        meaning = meaning.this
    return dict(root.items).get(meaning.name) if isinstance(meaning, exp.Column) else None


def _below(tree: Node, kinds: tuple[type[Project | Filter], ...]) -> tuple[dict[str, exp.Expr], Node]:
    """The node below the projections (and filters) at the root of a tree, and the tree's columns over that node's."""
    meaning: dict[str, exp.Expr] = {c: column(c) for c in tree.columns}
    while isinstance(tree, kinds):
        if isinstance(tree, Project):
            items = dict(tree.items)
            meaning = {c: _replaced(e, items) for c, e in meaning.items()}
        tree = tree.input
    return meaning, tree


def _replaced(expression: exp.Expr, items: Mapping[str, exp.Expr]) -> exp.Expr:
    """An expression with the columns of a projection replaced by what they are made of."""
    return expression.copy().transform(lambda e: items[e.name].copy() if isinstance(e, exp.Column) else e)
