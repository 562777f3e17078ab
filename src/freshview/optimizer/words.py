"""Columns and conditions of the search space in words, for people."""

from __future__ import annotations

from sqlglot import exp

from freshview.optimizer.dag import Dag
from freshview.optimizer.operations import Applied, Grouping, Other, StoredRelation
from freshview.optimizer.terms import Term, substituted


def column_in_words(dag: Dag, name: str) -> str:
    """A canonical column in words: relation.column, or what a grouping computes."""
    owner, base, occurrence = dag.names.origins[name]
    node = dag.nodes[owner]
    suffix = f"#{occurrence + 1}" if occurrence else ""
    if isinstance(node, StoredRelation):
        return f"{node.name}{suffix}.{node.fields[base]}"
    if isinstance(node, Grouping):
        for own, key in node.keys:
            if own == base:
                return text_in_words(dag, key) + suffix
        call = node.call_of(base)
        return f"{call.kind}({text_in_words(dag, call.argument) if call.argument is not None else '*'}){suffix}"
    assert isinstance(node, Other)
    return _of_other(dag, node, base) + suffix


def _of_other(dag: Dag, node: Other, base: str) -> str:
    """A column of another operator in words: what it passes on and from which input, what it computes, or where."""
    applied = node.operations[0]
    assert isinstance(applied, Applied)
    held = dict(applied.own)[base]
    for side, items in enumerate(applied.given):
        for name, given in items:
            if name == held:
                return (
                    text_in_words(dag, given) if len(applied.given) == 1 else f"{side + 1}:{text_in_words(dag, given)}"
                )
    words = {c: in_words(dag, t) for items in applied.given for c, t in items}
    computed = dict(getattr(node.template, "items", ()))
    if held in computed:
        return substituted(computed[held], words).sql(dialect="spark").replace("`", "")
    return f"column {node.template.columns.index(held) + 1}"


def in_words(dag: Dag, given: Term) -> exp.Expr:
    """A term over columns that are named in words."""
    words = {c: exp.column(exp.to_identifier(column_in_words(dag, c), quoted=True)) for c in given.columns}
    return substituted(given.expression, words)


def text_in_words(dag: Dag, given: Term) -> str:
    """A term in words."""
    return in_words(dag, given).sql(dialect="spark").replace("`", "")
