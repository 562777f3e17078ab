"""Names for stored results and their columns that depend on what they hold, and on nothing else.

The same bag gets the same name in every process and beside any other views; two different bags, or two columns of one
bag, get different names (up to a collision of 60-bit digests).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields

from sqlglot import exp

from freshview.algebra.nodes import SetOperation, Union, column
from freshview.optimizer.dag import Dag
from freshview.optimizer.operations import Applied, Block, Equivalence, Grouping, Other, StoredRelation
from freshview.optimizer.terms import Term, conditions, substituted
from freshview.optimizer.words import column_in_words


class Identities:
    """The names of the nodes of one DAG and of their columns."""

    def __init__(self, dag: Dag) -> None:
        self._dag = dag
        self._nodes: dict[int, str] = {}
        self._columns: dict[str, str] = {}

    def table(self, node: Equivalence) -> str:
        """The name of a node as a stored result."""
        return f"aux_{self._node(node)}"

    def stored(self, name: str) -> str:
        """The name of a canonical column in a stored result, readable at its beginning."""
        words = re.sub("[^a-z0-9]+", "_", column_in_words(self._dag, name).lower()).strip("_")
        return f"{words[:40]}_{self._column(name)}"

    def _node(self, node: Equivalence) -> str:
        if node.number not in self._nodes:
            self._nodes[node.number] = _digest(*self._parts(node))
        return self._nodes[node.number]

    def _parts(self, node: Equivalence) -> list[str]:
        match node:
            case StoredRelation():
                return ["relation", node.name]
            case Block():
                leaves = sorted(f"{self._node(self._dag.nodes[n])} {k}" for n, k in node.leaves)
                return ["block", *leaves, *sorted(map(self._condition, node.conditions))]
            case Grouping():
                return ["grouping", self._node(node.input), *sorted(self._text(t) for _, t in node.keys)]
            case Other():
                below = [self._node(u.node) for u in node.operations[0].inputs]
                return [type(node.template).__name__, *below, *self._details(node)]
        raise TypeError(type(node).__name__)

    def _column(self, name: str) -> str:
        if name not in self._columns:
            owner, base, occurrence = self._dag.names.origins[name]
            node = self._dag.nodes[owner]
            self._columns[name] = _digest(self._node(node), str(occurrence), *self._role(node, base))
        return self._columns[name]

    def _role(self, node: Equivalence, base: str) -> list[str]:
        """What a column is in its node."""
        match node:
            case StoredRelation():
                return [node.fields[base]]
            case Grouping():
                key = dict(node.keys).get(base)
                if key is not None:
                    return ["key", self._text(key)]
                call = node.call_of(base)
                return ["call", call.kind, self._text(call.argument) if call.argument is not None else ""]
            case Other():
                applied = _applied(node)
                held = dict(applied.own)[base]
                passed = [self._text(t) for items in applied.given for c, t in items if c == held]
                sides = [str(i) for i, items in enumerate(applied.given) for c, _ in items if c == held]
                computed = [self._over(e, applied) for c, e in getattr(node.template, "items", ()) if c == held]
                place = [] if passed or computed else [str(node.template.columns.index(held))]
                return [*sides, *passed, "computed", *computed, *place]
        raise TypeError(type(node).__name__)

    def _text(self, given: Term) -> str:
        return self._named(given).sql(dialect="spark")

    def _condition(self, given: Term) -> str:
        return conditions(self._named(given))[0].text

    def _named(self, given: Term) -> exp.Expr:
        return substituted(given.expression, {c: column(self._column(c)) for c in given.columns})

    def _over(self, expression: exp.Expr, applied: Applied) -> str:
        """An expression of an operator as written, over the columns of its inputs."""
        below = {c: self._named(t) for items in applied.given for c, t in items}
        return substituted(expression, below).sql(dialect="spark")

    def _details(self, node: Other) -> list[str]:
        """What an operator does beside its kind: its expressions and numbers, and the columns that it is given."""
        applied = _applied(node)
        below = {c for items in applied.given for c, _ in items}
        found: list[str] = []

        def collect(value: object) -> None:
            match value:
                case exp.Expr():
                    found.append(self._over(value, applied))
                case str() if value in below:
                    collect(column(value))
                case int():
                    found.append(str(value))
                case tuple():
                    for part in value:
                        collect(part)

        for each in fields(node.template):
            collect(getattr(node.template, each.name))
        found.append(str(getattr(node.template, "kind", "")))
        for items in applied.given:  # matched by place in set operations, by name elsewhere
            texts = [self._text(t) for _, t in items]
            by_place = isinstance(node.template, Union | SetOperation)
            found += ["given", *(texts if by_place else sorted(texts))]
        return found


def _applied(node: Other) -> Applied:
    applied = node.operations[0]
    assert isinstance(applied, Applied)
    return applied


def _digest(*parts: str) -> str:
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=8).hexdigest()[:15]
