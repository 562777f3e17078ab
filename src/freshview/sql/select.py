"""One SELECT as algebra: WHERE, items, HAVING, windows, DISTINCT and ORDER BY … LIMIT.

`sources` has FROM, `subqueries` has EXISTS, IN and scalar subqueries, `grouping` has GROUP BY, `generators` explode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Node,
    Project,
    TopK,
    Union,
    Values,
    Window,
    column,
    conjuncts,
    names_in,
    same,
)
from freshview.sql.fragments import (
    UnknownColumn,
    Unsupported,
    aggregates,
    count,
    factored,
    is_mark,
    marks,
    only,
    renamer,
    substituted,
    unaliased,
)
from freshview.sql.generators import Generators
from freshview.sql.grouping import group_by
from freshview.sql.sources import Ctes, LoweredQuery, Scope, add, join, lateral_view
from freshview.sql.subqueries import keep, marked, without_subqueries
from freshview.sql.using import shared_column

if TYPE_CHECKING:
    from freshview.sql.lowering import Lowering


class Select:
    """A SELECT while it is lowered: `node` is the algebra of the clauses so far."""

    def __init__(self, lowering: Lowering, ctes: Ctes, outer: Scope | None) -> None:
        self.lowering = lowering
        self.ctes = ctes
        self.scope = Scope(outer)
        self.node: Node = Values((), ((),))
        self.computed: list[tuple[exp.Expr, str]] = []  # expressions that a column holds, below GROUP BY
        self.grouped: list[tuple[exp.Expr, str]] = []  # aggregates and keys, and their columns above GROUP BY
        self.partitions: list[tuple[exp.Expr, str]] = []  # what windows partition by, and the columns that hold it
        self.correlated: list[exp.Expr] = []  # conjuncts that use columns of an outer query

    def lower(self, tree: exp.Select) -> LoweredQuery:
        """Lower a whole SELECT."""
        self.prepare(tree)
        relation = self.finish(tree)
        if self.correlated:
            raise Unsupported("a condition over columns of an outer query in this place")
        return relation

    def prepare(self, tree: exp.Select) -> None:
        """Lower FROM and WHERE."""
        for clause in ("pivots", "connect", "cluster", "sort", "distribute", "match"):
            if tree.args.get(clause):
                raise Unsupported(f"{clause.upper()} in a SELECT")
        source = tree.args.get("from_")
        if source is not None:
            add(self, source.this)
        for part in tree.args.get("joins") or ():
            join(self, part)
        for part in tree.args.get("laterals") or ():
            lateral_view(self, part)
        where = tree.args.get("where")
        if where is not None:
            # Conditions without subqueries first: subqueries are joined to the rows that are left.
            for conjunct in sorted(factored(where.this), key=lambda c: c.find(exp.Query) is not None):
                self.filter(conjunct)

    def finish(self, tree: exp.Select) -> LoweredQuery:
        """Lower GROUP BY and everything after it."""
        generators = Generators(self, tree)
        items = generators.items
        having, order = tree.args.get("having"), tree.args.get("order")
        limited = tree.args.get("limit") is not None or tree.args.get("offset") is not None
        ordered = [unaliased(o.this, items) for o in order.expressions] if order is not None and limited else []
        qualified = tree.args.get("qualify")
        conditions = [part.this for part in (having, qualified) if part is not None]
        rest = [e for _, e in items] + generators.expressions + conditions + ordered
        group = tree.args.get("group")
        grouped = group is not None or having is not None or any(aggregates(e) for e in rest)
        if grouped:
            group_by(self, group, items, rest)
        generators.apply(self, grouped=grouped)
        if having is not None:
            for conjunct in conjuncts(having.this):
                self.filter(conjunct)
        outputs, projected = [], []
        for name, expression in items:
            column_name = self.lowering.fresh(name)
            projected.append((column_name, self.value(expression)))
            outputs.append((name, column_name))
        if qualified is not None:  # windows of the items are over all rows, so they come first
            self.where(self.value(qualified.this))
        unique = tree.args.get("distinct")
        if unique is not None and unique.args.get("on"):
            raise Unsupported("DISTINCT ON")
        keys = [(self.lowering.fresh("order"), self.value(e)) for e in ordered if unique is None]
        self.node = Project(self.node, (*projected, *keys))
        order_columns = [name for name, _ in keys]
        if unique is not None:
            self.node = distinct(self.node)
            order_columns = [_place(e, items, outputs) for e in ordered]
        relation = LoweredQuery(self.node, outputs)
        return top(relation, tree, order_columns) if limited else relation

    # -- expressions -------------------------------------------------------------------------------

    def plain(self, tree: exp.Expr) -> exp.Expr:
        """An expression over columns of the tree; raises Unsupported if it has a subquery."""
        if tree.find(exp.Query):
            raise Unsupported("a subquery in a join condition")
        return self.resolved(tree)

    def resolved(self, tree: exp.Expr) -> exp.Expr:
        """An expression over columns of the tree."""
        return substituted(self.below_grouping(tree), self.grouped)

    def below_grouping(self, tree: exp.Expr) -> exp.Expr:
        """An expression over columns of the tree below GROUP BY: inside an aggregate, or before grouping."""

        def rename(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Coalesce) and (shared := shared_column(node)) is not None:
                return column(self.scope.find_shared(*shared))
            if isinstance(node, exp.Column) and node.table:
                found = self.scope.find(node.table, node.name)
                if found is None:
                    raise UnknownColumn(f"column {node.sql(dialect='spark')}")
                return column(found)
            return node

        tree = tree.copy().transform(rename)
        for known in self.computed:  # one by one: a later key may be over an earlier one
            tree = substituted(tree, [known])
        return tree

    def value(self, tree: exp.Expr) -> exp.Expr:
        """An expression over columns of the tree; its scalar subqueries and windows are added to the node."""
        return self._windows(self.single(tree))

    def single(self, tree: exp.Expr) -> exp.Expr:
        """An expression over columns of the tree; its scalar subqueries are added to the node, windows are not."""
        return self.resolved(without_subqueries(self, tree))

    def _windows(self, tree: exp.Expr) -> exp.Expr:
        if not tree.find(exp.Window):
            return tree
        result = exp.Paren(this=tree.copy())
        for window in list(result.find_all(exp.Window)):
            name = self.lowering.fresh("window")
            partition = tuple(self._partition_key(key) for key in window.args.get("partition_by") or ())
            if partition:
                window.set("partition_by", [column(p) for p in partition])
            self.node = self._with_window(partition, name, window.copy())
            window.replace(column(name))
        return only(result)

    def _with_window(self, partition: tuple[str, ...], name: str, call: exp.Expr) -> Window:
        """The node with one more window call. Calls of one SELECT over the same partitions are in one Window:

        equal rows have no order of their own, and row_number() = 1 and the lag() that is NULL must be the same row.
        """
        node = self.node
        if isinstance(node, Window) and node.partition == partition and names_in(call) <= set(node.input.columns):
            return replace(node, items=(*node.items, (name, call)))
        return Window(node, partition, ((name, call),))

    def _partition_key(self, expression: exp.Expr) -> str:
        found = next((n for e, n in self.partitions if e == expression and n in self.node.columns), None)
        if found is None:
            found = self.column_of(expression)
            self.partitions.append((expression.copy(), found))
        return found

    def column_of(self, expression: exp.Expr) -> str:
        """The column that holds an expression, added to the node if the expression is no column."""
        if isinstance(expression, exp.Column) and expression.name in self.node.columns:
            return expression.name
        name = self.lowering.fresh("key")
        self.node = Project(self.node, (*same(self.node.columns), (name, expression)))
        return name

    # -- WHERE and HAVING --------------------------------------------------------------------------

    def filter(self, conjunct: exp.Expr) -> None:
        """Keep the rows that satisfy a condition of the text."""
        conjunct = conjunct.unnest()
        negated = isinstance(conjunct, exp.Not)
        inner = conjunct.this.unnest() if negated else conjunct
        if is_mark(inner):
            keep(self, inner, negated, "anti" if negated else "semi")
        elif marks(conjunct):
            self.where(marked(self, conjunct))
        else:
            self.where(self.value(conjunct))

    def where(self, predicate: exp.Expr) -> None:
        """Keep the rows that satisfy a resolved condition; one with outer columns goes to `correlated`."""
        if names_in(predicate) <= set(self.node.columns):
            self.node = Filter(self.node, predicate)
        else:
            self.correlated.append(predicate)

    def subselect(self, query: exp.Select) -> Select:
        """A subquery of this SELECT, lowered up to its WHERE."""
        inner = Select(self.lowering, self.lowering.visible(query, self.ctes), self.scope)
        inner.prepare(query)
        return inner

    def uncorrelated(self, query: exp.Expr) -> LoweredQuery | None:
        """The lowered subquery, if it uses no column of this query; else None."""
        try:
            return self.lowering.query(query, self.ctes)
        except UnknownColumn:
            return None

    def renamed_union(self, parts: tuple[Node, ...]) -> dict[str, str]:
        """Make the union of parts with the same columns the node, under new names; return old name → new name."""
        names = {c: self.lowering.fresh(c) for c in parts[0].columns}
        self.node = Union(parts, tuple(names.values()))
        self.scope.rename(names)
        rename = renamer(names)
        self.computed = [(e.transform(rename), names.get(n, n)) for e, n in self.computed]
        self.grouped = [(e.transform(rename), names.get(n, n)) for e, n in self.grouped]
        self.correlated = [e.transform(rename) for e in self.correlated]
        return names


def order_terms(tree: exp.Expr) -> list[exp.Expr]:
    """The terms of the ORDER BY of a query with LIMIT or OFFSET."""
    order = tree.args.get("order")
    if order is None:
        raise Unsupported("LIMIT or OFFSET without ORDER BY")
    return list(order.expressions)


def top(relation: LoweredQuery, tree: exp.Expr, keys: list[str]) -> LoweredQuery:
    """The first rows of a relation by the ORDER BY of `tree`; `keys` are the columns of its terms, ties go by row."""
    terms = [
        exp.Ordered(this=column(key), desc=term.args.get("desc"), nulls_first=term.args.get("nulls_first"))
        for key, term in zip(keys, order_terms(tree), strict=True)
    ]
    terms += [exp.Ordered(this=column(c), desc=False) for _, c in relation.outputs]
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    first, skipped = (count(part) if part is not None else None for part in (limit, offset))
    node = TopK(relation.node, tuple(terms), first, skipped or 0)
    return LoweredQuery(Project(node, same(c for _, c in relation.outputs)), relation.outputs)


def _place(term: exp.Expr, items: list[tuple[str, exp.Expr]], outputs: list[tuple[str, str]]) -> str:
    """The output column of a term in the ORDER BY of a SELECT DISTINCT."""
    for (_, item), (_, name) in zip(items, outputs, strict=True):
        if term.unnest() == item.unnest():
            return name
    raise Unsupported("DISTINCT in the order of what it does not select")


def distinct(node: Node) -> Node:
    """The rows of a node, each once."""
    return Aggregate(node, node.columns, ())
