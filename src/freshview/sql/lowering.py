"""SQL as algebra: a qualified sqlglot tree becomes nodes over uniquely named columns.

Here are queries, and a SELECT's WHERE, items and what follows them; `sources`, `subqueries` and `grouping` do
their parts. What has no algebra raises Unsupported with the reason, and the view is recomputed instead.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import sqlglot
from sqlglot import exp
from sqlglot.optimizer.qualify import qualify

from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    IllegalTree,
    Lowered,
    Node,
    Project,
    Scan,
    SetOperation,
    Table,
    TopK,
    Union,
    Values,
    Window,
    chosen,
    column,
    conjuncts,
    names_in,
    same,
)
from freshview.algebra.pruning import pruned
from freshview.errors import InvalidStatement, first_line
from freshview.relation.schema import fold
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
    require_determinate,
    substituted,
    unaliased,
    with_windows_spelled_out,
    without_limit_all,
)
from freshview.sql.generators import Generators, name_generators
from freshview.sql.grouping import group_by
from freshview.sql.misread import refuse_bare_calls, refuse_misread
from freshview.sql.sources import Cte, Ctes, LoweredQuery, Scope, add, join, lateral_view
from freshview.sql.spelling import (
    is_free,
    names_of,
    refuse_names_from_columns,
    refuse_other_variables,
    refuse_star_arguments,
    remember_spelling,
    restore_spelling,
)
from freshview.sql.subqueries import keep, marked, without_subqueries
from freshview.sql.using import natural_as_using, remember_using, shared_column

__all__ = ["Unsupported", "lower"]


def lower(text: str, schemas: Mapping[str, Sequence[str]], names: Sequence[str] | None = None) -> Lowered:
    """The algebra of a SELECT over relations with these columns.

    Whether the text is right is for Spark to say. What cannot be understood here is Unsupported; so is what Spark
    understands otherwise: `names` are its names of the result's columns.
    """
    known = {fold(n): {fold(c): "string" for c in columns} for n, columns in schemas.items()}
    try:
        tree = _resolved(text, known)
        taken = {*names_of(tree), *(c for columns in known.values() for c in columns), *map(fold, names or ())}
        relation = Lowering(schemas, taken).query(tree, {})
        outputs = tuple((c, name) for name, c in relation.outputs)
        lowered = Lowered(pruned(relation.node, {c for c, _ in outputs}), outputs)
    except IllegalTree as error:
        raise Unsupported("a column of an outer query, or a subquery, in this place") from error
    except UnknownColumn as error:
        raise Unsupported(f"{error} of an outer query in this place") from error
    except RecursionError as error:
        raise Unsupported("a query that is nested so deeply") from error
    if names is not None:
        _require_names([name for _, name in outputs], names)
    return lowered


def _resolved(text: str, known: Mapping[str, Mapping[str, str]]) -> exp.Expr:
    """The tree of a text, its columns qualified by the tables that have them."""
    try:
        tree = sqlglot.parse_one(text, read="spark")
        without_limit_all(tree)
        refuse_bare_calls(tree, {c for columns in known.values() for c in columns})
        require_determinate(tree)
        refuse_misread(text, tree)
        refuse_star_arguments(tree)
        refuse_other_variables(tree)
        refuse_names_from_columns(tree)
        name_generators(tree)
        remember_spelling(tree)
        with_windows_spelled_out(tree)
        natural_as_using(tree, known)
        remember_using(text, tree)
        tree = qualify(tree, schema={n: dict(c) for n, c in known.items()}, dialect="spark", quote_identifiers=False)
        restore_spelling(tree)
    except (Unsupported, InvalidStatement, RecursionError):
        raise
    except Exception as error:  # of the parser: what it cannot read, others can
        raise Unsupported(f"a query that cannot be resolved ({first_line(error)})") from error
    return tree


def _require_names(own: Sequence[str], theirs: Sequence[str]) -> None:
    """The same columns in the same order, as far as names tell; names that are made up say nothing."""
    agree = len(own) == len(theirs) and all(
        fold(a) == fold(b) or _MADE_UP.fullmatch(a) for a, b in zip(own, theirs, strict=True)
    )
    if not agree:
        raise Unsupported(f"a result that Spark gives as ({', '.join(theirs)}), not as ({', '.join(own)}),")


_MADE_UP = re.compile(r"_c(ol_)?\d+")


class Lowering:
    def __init__(self, schemas: Mapping[str, Sequence[str]], taken: Collection[str]) -> None:
        self._schemas = {fold(n): (n, tuple(c)) for n, c in schemas.items()}
        self._numbers = itertools.count(1)
        self._taken = taken

    def fresh(self, name: str) -> str:
        """A column name that nothing in the text has: neither a column, nor a lambda variable."""
        stem = re.sub(r"[^A-Za-z0-9_]", "_", name)[:40] or "c"
        return next(n for i in self._numbers if is_free(n := f"{stem}_{i}", self._taken))

    # -- queries -----------------------------------------------------------------------------------

    def query(self, tree: exp.Expr, ctes: Ctes) -> LoweredQuery:
        ctes = self.visible(tree, ctes)
        match tree:
            case exp.Subquery():
                return _limited(self.query(tree.this, ctes), tree)
            case exp.Select():
                return Select(self, ctes, None).lower(tree)
            case exp.SetOperation():
                return _limited(self._set_operation(tree, ctes), tree)
            case exp.Values():
                return self._values(tree)
        raise Unsupported(f"{type(tree).__name__.upper()} as a query")

    def visible(self, tree: exp.Expr, ctes: Ctes) -> Ctes:
        """The WITH queries that a query may use: those around it and its own."""
        with_ = tree.args.get("with_")
        if with_ is None:
            return ctes
        if with_.args.get("recursive"):
            raise Unsupported("a recursive query")
        for cte in with_.expressions:
            ctes = {**ctes, fold(cte.alias): Cte(cte.this, ctes)}
        return ctes

    def _set_operation(self, tree: exp.SetOperation, ctes: Ctes) -> LoweredQuery:
        if tree.args.get("by_name"):
            raise Unsupported("a set operation BY NAME")
        left, right = (self.query(side, ctes) for side in (tree.left, tree.right))
        if len(left.outputs) != len(right.outputs):
            raise InvalidStatement("set operation", "its sides have different numbers of columns", "Select as many.")
        names = tuple(self.fresh(n) for n, _ in left.outputs)
        a, b = _chosen(left), _chosen(right)
        node: Node
        distinct = bool(tree.args.get("distinct"))
        if isinstance(tree, exp.Union):
            node = Union((a, b), names)
        else:
            if distinct:  # EXCEPT and INTERSECT of sets
                a, b = _distinct(a), _distinct(b)
            node = SetOperation(a, b, "except" if isinstance(tree, exp.Except) else "intersect", names, distinct)
        if distinct:
            node = _distinct(node)
        return LoweredQuery(node, [(n, c) for (n, _), c in zip(left.outputs, names, strict=True)])

    def _values(self, tree: exp.Values) -> LoweredQuery:
        rows = tuple(tuple(r.expressions if isinstance(r, exp.Tuple) else [r]) for r in tree.expressions)
        if any(value.find(exp.Query, exp.Column) for row in rows for value in row):
            raise Unsupported("VALUES over columns or subqueries")
        alias = tree.args.get("alias")
        given = [c.name for c in alias.columns] if alias is not None else []
        names = given or [f"col{i + 1}" for i in range(len(rows[0]))]
        columns = tuple(self.fresh(n) for n in names)
        return LoweredQuery(Values(columns, rows), list(zip(names, columns, strict=True)))

    def scan(self, name: str) -> LoweredQuery:
        found = self._schemas.get(fold(name))
        if found is None:
            raise Unsupported(f"table {name} of another catalog")
        relation, columns = found
        fields = tuple((c, self.fresh(c)) for c in columns)
        return LoweredQuery(Scan(Table(relation), fields), list(fields))


class Select:
    """One SELECT: FROM, WHERE, GROUP BY, HAVING, windows, items, DISTINCT, ORDER BY … LIMIT."""

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
        self.prepare(tree)
        relation = self.finish(tree)
        if self.correlated:
            raise Unsupported("a condition over columns of an outer query in this place")
        return relation

    def prepare(self, tree: exp.Select) -> None:
        """FROM and WHERE."""
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
            # Plain conditions first: subqueries are joined to what they leave.
            for conjunct in sorted(factored(where.this), key=lambda c: c.find(exp.Query) is not None):
                self.filter(conjunct)

    def finish(self, tree: exp.Select) -> LoweredQuery:
        """GROUP BY and everything after it."""
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
        outputs = []
        projected = []
        for name, expression in items:
            column_name = self.lowering.fresh(name)
            projected.append((column_name, self.value(expression)))
            outputs.append((name, column_name))
        if qualified is not None:  # windows of the items are over all rows, so they come first
            self.where(self.value(qualified.this))
        distinct = tree.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise Unsupported("DISTINCT ON")
        keys = [(self.lowering.fresh("order"), self.value(e)) for e in ordered if distinct is None]
        self.node = Project(self.node, (*projected, *keys))
        order_columns = [name for name, _ in keys]
        if distinct is not None:
            self.node = _distinct(self.node)
            order_columns = [_place(e, items, outputs) for e in ordered]
        return (
            _top(LoweredQuery(self.node, outputs), tree, order_columns) if limited else LoweredQuery(self.node, outputs)
        )

    # -- expressions -------------------------------------------------------------------------------

    def plain(self, tree: exp.Expr) -> exp.Expr:
        """An expression without subqueries, over columns of the tree."""
        if tree.find(exp.Query):
            raise Unsupported("a subquery in a join condition")
        return self.resolved(tree)

    def resolved(self, tree: exp.Expr) -> exp.Expr:
        """An expression over columns of the tree."""
        return substituted(self.below_grouping(tree), self.grouped)

    def below_grouping(self, tree: exp.Expr) -> exp.Expr:
        """The same inside an aggregate, or where nothing is grouped yet."""

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
        """An expression; its scalar subqueries are joined to the node, its windows computed beside it."""
        return self._windows(self.single(tree))

    def single(self, tree: exp.Expr) -> exp.Expr:
        """The same for an expression without windows."""
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
        """The node with one more window call. Calls of one SELECT over the same partitions stay together.

        Equal rows have no order of their own: row_number() = 1 and the lag() that is NULL must mean the same row.
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
        """The column that holds an expression, computed into one if it is not a column yet."""
        if isinstance(expression, exp.Column) and expression.name in self.node.columns:
            return expression.name
        name = self.lowering.fresh("key")
        self.node = _extended(self.node, ((name, expression),))
        return name

    # -- WHERE and HAVING --------------------------------------------------------------------------

    def filter(self, conjunct: exp.Expr) -> None:
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
        if names_in(predicate) <= set(self.node.columns):
            self.node = Filter(self.node, predicate)
        else:
            self.correlated.append(predicate)

    def subselect(self, query: exp.Select) -> Select:
        """FROM and WHERE of a subquery of this SELECT."""
        inner = Select(self.lowering, self.lowering.visible(query, self.ctes), self.scope)
        inner.prepare(query)
        return inner

    def uncorrelated(self, query: exp.Expr) -> LoweredQuery | None:
        """A subquery that uses nothing of this query, if it is one."""
        try:
            return self.lowering.query(query, self.ctes)
        except UnknownColumn:
            return None

    def renamed_union(self, parts: tuple[Node, ...]) -> dict[str, str]:
        """Union parts that have the same columns, under new names everywhere; old name → new."""
        names = {c: self.lowering.fresh(c) for c in parts[0].columns}
        self.node = Union(parts, tuple(names.values()))
        self.scope.rename(names)
        rename = renamer(names)
        self.computed = [(e.transform(rename), names.get(n, n)) for e, n in self.computed]
        self.grouped = [(e.transform(rename), names.get(n, n)) for e, n in self.grouped]
        self.correlated = [e.transform(rename) for e in self.correlated]
        return names


def _chosen(relation: LoweredQuery) -> Node:
    wanted = tuple(c for _, c in relation.outputs)
    if len(set(wanted)) < len(wanted):
        raise Unsupported("a column that is selected twice in a set operation")
    return chosen(relation.node, wanted)


def _limited(relation: LoweredQuery, tree: exp.Expr) -> LoweredQuery:
    """ORDER BY … LIMIT of a set operation or of a query in parentheses."""
    if tree.args.get("limit") is None and tree.args.get("offset") is None:
        return relation
    places = {fold(n): c for n, c in relation.outputs} | {str(i + 1): c for i, (_, c) in enumerate(relation.outputs)}
    terms = [term.this for term in _order(tree)]
    if not all(isinstance(t, exp.Column | exp.Literal) and fold(t.name) in places for t in terms):
        raise Unsupported("LIMIT of a set operation in the order of an expression")
    return _top(relation, tree, [places[fold(t.name)] for t in terms])


def _order(tree: exp.Expr) -> list[exp.Expr]:
    order = tree.args.get("order")
    if order is None:
        raise Unsupported("LIMIT or OFFSET without ORDER BY")
    return list(order.expressions)


def _top(relation: LoweredQuery, tree: exp.Expr, keys: list[str]) -> LoweredQuery:
    """The first rows of a relation in the tree's order, of which `keys` hold the terms. Ties: by the row itself."""
    terms = [
        exp.Ordered(this=column(key), desc=term.args.get("desc"), nulls_first=term.args.get("nulls_first"))
        for key, term in zip(keys, _order(tree), strict=True)
    ]
    terms += [exp.Ordered(this=column(c), desc=False) for _, c in relation.outputs]
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    first, skipped = (count(part) if part is not None else None for part in (limit, offset))
    node = TopK(relation.node, tuple(terms), first, skipped or 0)
    return LoweredQuery(Project(node, same(c for _, c in relation.outputs)), relation.outputs)


def _place(term: exp.Expr, items: list[tuple[str, exp.Expr]], outputs: list[tuple[str, str]]) -> str:
    """The output column that an ORDER BY of a SELECT DISTINCT means."""
    for (_, item), (_, name) in zip(items, outputs, strict=True):
        if term == item:
            return name
    raise Unsupported("DISTINCT in the order of what it does not select")


def _distinct(node: Node) -> Node:
    return Aggregate(node, node.columns, ())


def _extended(node: Node, items: tuple[tuple[str, exp.Expr], ...]) -> Node:
    return Project(node, (*same(node.columns), *items))
