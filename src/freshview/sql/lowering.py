"""SQL as algebra: a qualified sqlglot tree becomes nodes over uniquely named columns.

This file has queries and set operations; `select` has one SELECT. A query without algebra raises Unsupported with the
reason, and the view is recomputed instead.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.optimizer.qualify import qualify

from freshview.algebra.nodes import IllegalTree, Lowered, Node, Scan, SetOperation, Table, Union, Values, chosen
from freshview.algebra.pruning import pruned
from freshview.errors import InvalidStatement, first_line
from freshview.relation.schema import fold
from freshview.sql.fragments import (
    UnknownColumn,
    Unsupported,
    require_determinate,
    with_order_by_all_spelled_out,
    with_windows_spelled_out,
    without_limit_all,
)
from freshview.sql.generators import name_generators
from freshview.sql.misread import refuse_bare_calls, refuse_misread
from freshview.sql.one_row import without_idle_limits
from freshview.sql.select import Select, distinct, order_terms, top
from freshview.sql.sources import Cte, Ctes, LoweredQuery
from freshview.sql.spelling import (
    is_free,
    names_of,
    refuse_names_from_columns,
    refuse_other_variables,
    refuse_star_arguments,
    remember_spelling,
    restore_spelling,
)
from freshview.sql.using import natural_as_using, remember_using

__all__ = ["Unsupported", "lower"]


def lower(
    text: str, schemas: Mapping[str, Sequence[str]], names: Sequence[str] | None = None, used: Iterable[str] = ()
) -> Lowered:
    """The algebra of a SELECT over relations with these columns.

    The text is one that Spark accepts. Raises Unsupported for a text that is not understood here, or that Spark
    understands in another way: `names` are its names of the result's columns. No column of the tree gets a `used` name.
    """
    known = {fold(n): {fold(c): "string" for c in columns} for n, columns in schemas.items()}
    try:
        tree = _resolved(text, known)
        taken = {
            *names_of(tree),
            *(c for columns in known.values() for c in columns),
            *map(fold, (*(names or ()), *used)),
        }
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
        without_idle_limits(tree)
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
        with_order_by_all_spelled_out(tree, {c for columns in known.values() for c in columns})
    except (Unsupported, InvalidStatement, RecursionError):
        raise
    except Exception as error:  # of the parser, over a text that Spark can read
        raise Unsupported(f"a query that cannot be resolved ({first_line(error)})") from error
    return tree


def _require_names(own: Sequence[str], theirs: Sequence[str]) -> None:
    """Raise unless both lists name the same columns in the same order; names made up by the parser are ignored."""
    agree = len(own) == len(theirs) and all(
        fold(a) == fold(b) or _MADE_UP.fullmatch(a) for a, b in zip(own, theirs, strict=True)
    )
    if not agree:
        raise Unsupported(f"a result that Spark gives as ({', '.join(theirs)}), not as ({', '.join(own)}),")


_MADE_UP = re.compile(r"_c(ol_)?\d+")


class Lowering:
    """Lowers the queries of one text, each column under a name that is unique in it."""

    def __init__(self, schemas: Mapping[str, Sequence[str]], taken: Collection[str]) -> None:
        self._schemas = {fold(n): (n, tuple(c)) for n, c in schemas.items()}
        self._numbers = itertools.count(1)
        self._taken = taken

    def fresh(self, name: str) -> str:
        """A new column name, different from all columns and lambda variables in the text."""
        stem = re.sub(r"[^A-Za-z0-9_]", "_", name)[:40] or "c"
        return next(n for i in self._numbers if is_free(n := f"{stem}_{i}", self._taken))

    def query(self, tree: exp.Expr, ctes: Ctes) -> LoweredQuery:
        """Lower a query that may use these WITH queries."""
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
        """The WITH queries that a query may use: those of the queries around it and its own."""
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
        sets = bool(tree.args.get("distinct"))
        if isinstance(tree, exp.Union):
            node = Union((a, b), names)
        else:
            if sets:
                a, b = distinct(a), distinct(b)
            node = SetOperation(a, b, "except" if isinstance(tree, exp.Except) else "intersect", names, sets)
        if sets:
            node = distinct(node)
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
        """A table or view, under new column names."""
        found = self._schemas.get(fold(name))
        if found is None:
            raise Unsupported(f"table {name} of another catalog")
        relation, columns = found
        fields = tuple((c, self.fresh(c)) for c in columns)
        return LoweredQuery(Scan(Table(relation), fields), list(fields))


def _chosen(relation: LoweredQuery) -> Node:
    """The node of a query with just its output columns."""
    wanted = tuple(c for _, c in relation.outputs)
    if len(set(wanted)) < len(wanted):
        raise Unsupported("a column that is selected twice in a set operation")
    return chosen(relation.node, wanted)


def _limited(relation: LoweredQuery, tree: exp.Expr) -> LoweredQuery:
    """A set operation or a query in brackets, under its ORDER BY … LIMIT."""
    if tree.args.get("limit") is None and tree.args.get("offset") is None:
        return relation
    places = {fold(n): c for n, c in relation.outputs} | {str(i + 1): c for i, (_, c) in enumerate(relation.outputs)}
    terms = [term.this for term in order_terms(tree)]
    if not all(isinstance(t, exp.Column | exp.Literal) and fold(t.name) in places for t in terms):
        raise Unsupported("LIMIT of a set operation in the order of an expression")
    return top(relation, tree, [places[fold(t.name)] for t in terms])
