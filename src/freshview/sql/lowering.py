"""SQL as algebra: a qualified sqlglot tree becomes nodes over uniquely named columns.

Subqueries become joins: EXISTS and IN semi joins, their negations anti joins, scalar subqueries left
joins. NOT IN is an anti join on "equal or unknown", which is SQL's NULL rule word for word. What has no
algebra here raises Unsupported with the reason, and the view is recomputed instead.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp
from sqlglot.optimizer.qualify import qualify

from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Generate,
    Join,
    Lowered,
    Node,
    Project,
    Scan,
    SetOperation,
    TopK,
    Union,
    Values,
    Window,
    column,
    names_in,
)
from freshview.errors import InvalidStatement
from freshview.relation.schema import fold


class Unsupported(Exception):
    """The construct has no algebra; the message is the reason."""


def lower(text: str, schemas: Mapping[str, Sequence[str]]) -> Lowered:
    """The algebra of a SELECT over relations with these columns."""
    known: dict[str, object] = {fold(n): {fold(c): "string" for c in columns} for n, columns in schemas.items()}
    try:
        tree = qualify(sqlglot.parse_one(text, read="spark"), schema=known, dialect="spark", quote_identifiers=False)
    except sqlglot.errors.SqlglotError as error:
        raise InvalidStatement(
            f"query {' '.join(text.split()):.80}", str(error).splitlines()[0], "Check it."
        ) from error
    relation = _Lowering(schemas).query(tree, {}, None)
    return Lowered(relation.node, tuple((i, n) for n, i in relation.outputs))


@dataclass
class _Relation:
    """A lowered query: a node and its (name, column) pairs."""

    node: Node
    outputs: list[tuple[str, str]]


@dataclass
class _Scope:
    """What names mean inside one SELECT."""

    parent: _Scope | None
    sources: dict[str, dict[str, str]] = field(default_factory=dict)

    def find(self, table: str, name: str) -> str | None:
        scope: _Scope | None = self
        while scope is not None:
            found = scope.sources.get(fold(table), {}).get(fold(name))
            if found is not None:
                return found
            scope = scope.parent
        return None


@dataclass(frozen=True)
class _Cte:
    query: exp.Expr
    visible: dict[str, _Cte]


_Ctes = dict[str, _Cte]


class _Lowering:
    def __init__(self, schemas: Mapping[str, Sequence[str]]) -> None:
        self._schemas = {fold(n): (n, tuple(c)) for n, c in schemas.items()}
        self._numbers = itertools.count(1)

    def fresh(self, name: str) -> str:
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', name)[:40] or 'c'}_{next(self._numbers)}"

    # -- queries -----------------------------------------------------------------------------------

    def query(self, tree: exp.Expr, ctes: _Ctes, outer: _Scope | None) -> _Relation:
        with_ = tree.args.get("with_")
        if with_ is not None:
            if with_.args.get("recursive"):
                raise Unsupported("a recursive query")
            for cte in with_.expressions:
                ctes = {**ctes, fold(cte.alias): _Cte(cte.this, ctes)}
        match tree:
            case exp.Subquery():
                return self.query(tree.this, ctes, outer)
            case exp.Select():
                return _Select(self, ctes, outer).lower(tree)
            case exp.SetOperation():
                return self._set_operation(tree, ctes, outer)
            case exp.Values():
                return self._values(tree)
        raise Unsupported(f"{type(tree).__name__.upper()} as a query")

    def _set_operation(self, tree: exp.SetOperation, ctes: _Ctes, outer: _Scope | None) -> _Relation:
        if tree.args.get("by_name") or tree.args.get("limit"):
            raise Unsupported("a set operation BY NAME or with LIMIT")
        left, right = (self.query(side, ctes, outer) for side in (tree.left, tree.right))
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
            node = SetOperation(a, b, "except" if isinstance(tree, exp.Except) else "intersect", names)
        if distinct:
            node = _distinct(node)
        return _Relation(node, [(n, c) for (n, _), c in zip(left.outputs, names, strict=True)])

    def _values(self, tree: exp.Values) -> _Relation:
        rows = tuple(tuple(r.expressions if isinstance(r, exp.Tuple) else [r]) for r in tree.expressions)
        alias = tree.args.get("alias")
        given = [c.name for c in alias.columns] if alias is not None else []
        names = given or [f"col{i + 1}" for i in range(len(rows[0]))]
        columns = tuple(self.fresh(n) for n in names)
        return _Relation(Values(columns, rows), list(zip(names, columns, strict=True)))

    def scan(self, name: str) -> _Relation:
        found = self._schemas.get(fold(name))
        if found is None:
            raise Unsupported(f"table {name} of another catalog")
        relation, columns = found
        fields = tuple((c, self.fresh(c)) for c in columns)
        return _Relation(Scan(relation, fields), list(fields))


class _Select:
    """One SELECT: FROM, WHERE, GROUP BY, HAVING, windows, items, DISTINCT, ORDER BY … LIMIT."""

    def __init__(self, lowering: _Lowering, ctes: _Ctes, outer: _Scope | None) -> None:
        self._lowering = lowering
        self._ctes = ctes
        self._scope = _Scope(outer)
        self._node: Node = Values((), ((),))
        self._started = False
        self._known: list[tuple[exp.Expr, str]] = []  # expressions that a column stands for
        self.correlated: list[exp.Expr] = []  # conjuncts that use columns of an outer query

    def lower(self, tree: exp.Select) -> _Relation:
        self.prepare(tree)
        return self.finish(tree)

    def prepare(self, tree: exp.Select) -> None:
        """FROM and WHERE."""
        for part in ("pivots", "windows", "connect", "cluster", "sort", "distribute", "match"):
            if tree.args.get(part):
                raise Unsupported(f"{part.upper()} in a SELECT")
        source = tree.args.get("from_")
        if source is not None:
            self._add(source.this)
        for join in tree.args.get("joins") or ():
            self._join(join)
        for lateral in tree.args.get("laterals") or ():
            self._lateral(lateral)
        where = tree.args.get("where")
        if where is not None:
            for conjunct in _conjuncts(where.this):
                self._filter(conjunct)

    def finish(self, tree: exp.Select) -> _Relation:
        """GROUP BY and everything after it."""
        items = [(e.alias_or_name or f"_c{i}", e.unalias()) for i, e in enumerate(tree.expressions)]
        having, order = tree.args.get("having"), tree.args.get("order")
        limited = tree.args.get("limit") is not None or tree.args.get("offset") is not None
        ordered = [_unaliased(o.this, items) for o in order.expressions] if order is not None and limited else []
        rest = [e for _, e in items] + ([having.this] if having is not None else []) + ordered
        group = tree.args.get("group")
        if group is not None or any(_aggregates(e) for e in rest):
            self._aggregate(group, items, rest)
        if having is not None:
            for conjunct in _conjuncts(having.this):
                self._filter(conjunct)
        outputs = []
        projected = []
        for name, expression in items:
            column_name = self._lowering.fresh(name)
            projected.append((column_name, self._value(expression)))
            outputs.append((name, column_name))
        limit, offset = tree.args.get("limit"), tree.args.get("offset")
        distinct = tree.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise Unsupported("DISTINCT ON")
        if limit is None and offset is None:
            self._node = Project(self._node, tuple(projected))
            if distinct is not None:
                self._node = _distinct(self._node)
            return _Relation(self._node, outputs)
        return self._top(tree, projected, outputs, ordered)

    def _top(
        self,
        tree: exp.Select,
        projected: list[tuple[str, exp.Expr]],
        outputs: list[tuple[str, str]],
        ordered: list[exp.Expr],
    ) -> _Relation:
        if tree.args.get("distinct") is not None:
            raise Unsupported("DISTINCT with LIMIT")
        if not ordered:
            raise InvalidStatement(
                "LIMIT without ORDER BY",
                "which rows it keeps is not determined",
                "Add an ORDER BY, or leave LIMIT out.",
            )
        keys = [(self._lowering.fresh("order"), self._value(e)) for e in ordered]
        self._node = Project(self._node, (*projected, *keys))
        terms = []
        for term, (name, _) in zip(tree.args["order"].expressions, keys, strict=True):
            terms.append(
                exp.Ordered(this=column(name), desc=term.args.get("desc"), nulls_first=term.args.get("nulls_first"))
            )
        terms += [exp.Ordered(this=column(c), desc=False) for _, c in outputs]  # ties: by the row itself
        limit, offset = tree.args.get("limit"), tree.args.get("offset")
        node = TopK(self._node, tuple(terms), _count(limit), _count(offset) if offset is not None else 0)
        self._node = Project(node, tuple((c, column(c)) for _, c in outputs))
        return _Relation(self._node, outputs)

    # -- FROM --------------------------------------------------------------------------------------

    def _source(self, tree: exp.Expr) -> tuple[str, _Relation]:
        for part in ("pivots", "sample", "version", "when"):
            if tree.args.get(part):
                raise Unsupported(f"{part.upper()} on a table")
        match tree:
            case exp.Table() if isinstance(tree.this, exp.Identifier):
                cte = self._ctes.get(fold(tree.name)) if not tree.args.get("db") else None
                if cte is not None:
                    relation = self._lowering.query(cte.query, cte.visible, None)
                elif tree.args.get("db"):
                    raise Unsupported(f"table {tree.sql(dialect='spark')} of another catalog")
                else:
                    relation = self._lowering.scan(tree.name)
            case exp.Subquery():
                relation = self._lowering.query(tree.this, self._ctes, None)
            case exp.Values():
                relation = self._lowering.query(tree, self._ctes, None)
            case _:
                raise Unsupported(f"{tree.sql(dialect='spark'):.60} in FROM")
        alias = tree.args.get("alias")
        renamed = [c.name for c in alias.columns] if alias is not None else []
        if renamed:
            relation = _Relation(relation.node, [(n, c) for n, (_, c) in zip(renamed, relation.outputs, strict=True)])
        return tree.alias_or_name, relation

    def _add(self, tree: exp.Expr) -> None:
        name, relation = self._source(tree)
        self._scope.sources[fold(name)] = {fold(n): c for n, c in relation.outputs}
        self._node = relation.node if not self._started else Join(self._node, relation.node, "inner")
        self._started = True
        for join in tree.args.get("joins") or ():
            self._join(join)

    def _join(self, join: exp.Join) -> None:
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        if join.args.get("using") or (join.method or "").upper() not in ("", "NATURAL"):
            raise Unsupported(f"join {join.sql(dialect='spark'):.60}")
        if isinstance(join.this, exp.Lateral | exp.Unnest):
            raise Unsupported("a LATERAL join")
        name, relation = self._source(join.this)
        left, right = self._node, relation.node
        columns = {fold(n): c for n, c in relation.outputs}
        visible = dict(self._scope.sources)
        self._scope.sources[fold(name)] = columns
        on = join.args.get("on")
        condition = self._plain(on) if on is not None else None
        if kind in ("SEMI", "ANTI"):
            self._node = Join(left, right, kind.lower(), condition)
            self._scope.sources = visible
        elif side == "LEFT":
            self._node = Join(left, right, "left", condition)
        elif side == "RIGHT":
            self._node = Join(right, left, "left", condition)
        elif side == "FULL":
            self._full_join(left, right, condition)
        elif kind in ("", "INNER", "CROSS"):
            self._node = Join(left, right, "inner", condition)
        else:
            raise Unsupported(f"{side} {kind} JOIN")

    def _full_join(self, left: Node, right: Node, condition: exp.Expr | None) -> None:
        """L ⟗ R  =  (L ⟕ R) ⊎ (NULLs, R ▷ L)."""
        matched = Join(left, right, "left", condition)
        alone = Join(right, left, "anti", condition)
        padded = Project(alone, tuple((self._lowering.fresh("none"), exp.Null()) for _ in left.columns)
                         + tuple((self._lowering.fresh(c), column(c)) for c in right.columns))  # fmt: skip
        names = {c: self._lowering.fresh(c) for c in matched.columns}
        self._node = Union((matched, padded), tuple(names.values()))
        for columns in self._scope.sources.values():
            for name, old in columns.items():
                columns[name] = names.get(old, old)

    def _lateral(self, lateral: exp.Lateral) -> None:
        alias = lateral.args.get("alias")
        if not lateral.args.get("view") or alias is None:
            raise Unsupported("a LATERAL subquery")
        outputs = [c.name for c in alias.columns]
        columns = {fold(n): self._lowering.fresh(n) for n in outputs}
        generator = self._plain(lateral.this)
        self._node = Generate(self._node, generator, tuple(columns.values()), bool(lateral.args.get("outer")))
        self._scope.sources[fold(alias.name)] = columns

    # -- expressions -------------------------------------------------------------------------------

    def _plain(self, tree: exp.Expr) -> exp.Expr:
        """An expression without subqueries, over columns of the tree."""
        if tree.find(exp.Query):
            raise Unsupported("a subquery in a join condition")
        return self._resolved(tree)

    def _resolved(self, tree: exp.Expr) -> exp.Expr:
        """Known subexpressions become their column; names become columns of the tree."""
        tree = tree.copy()

        def rename(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Column) and node.table:
                found = self._scope.find(node.table, node.name)
                if found is None:
                    raise Unsupported(f"column {node.sql(dialect='spark')}")
                return column(found)
            return node

        renamed = tree.transform(rename)

        def known(node: exp.Expr) -> exp.Expr:
            for expression, name in self._known:
                if node == expression:
                    return known(column(name)) if node != column(name) else node
            return node

        return renamed.transform(known) if self._known else renamed

    def _value(self, tree: exp.Expr) -> exp.Expr:
        """An expression; its scalar subqueries are joined to the node, its windows computed beside it."""
        tree = self._without_subqueries(tree)
        tree = self._resolved(tree)
        return self._windows(tree)

    def _without_subqueries(self, tree: exp.Expr) -> exp.Expr:
        tree = tree.copy()
        holder = exp.Paren(this=tree)
        for subquery in list(holder.find_all(exp.Subquery)):
            if subquery.find_ancestor(exp.Subquery, exp.Exists, exp.In) is not None and _inside(subquery, holder):
                continue
            if isinstance(subquery.parent, exp.In | exp.Exists):
                continue
            subquery.replace(self._scalar(subquery))
        if holder.find(exp.Exists) or any(i.args.get("query") for i in holder.find_all(exp.In)):
            raise Unsupported("EXISTS or IN (query) inside an expression")
        return _only(holder)

    def _windows(self, tree: exp.Expr) -> exp.Expr:
        if not tree.find(exp.Window):
            return tree
        result = exp.Paren(this=tree.copy())
        for window in list(result.find_all(exp.Window)):
            if window.args.get("alias"):
                raise Unsupported("a named window")
            name = self._lowering.fresh("window")
            partition = [self._column_of(key) for key in window.args.get("partition_by") or ()]
            if partition:
                window.set("partition_by", [column(p) for p in partition])
            self._node = Window(self._node, tuple(partition), ((name, window.copy()),))
            window.replace(column(name))
        return _only(result)

    def _column_of(self, expression: exp.Expr) -> str:
        """The column that holds an expression, computed into one if it is not a column yet."""
        if isinstance(expression, exp.Column) and expression.name in self._node.columns:
            return expression.name
        name = self._lowering.fresh("key")
        self._node = _extended(self._node, ((name, expression),))
        return name

    # -- WHERE and HAVING --------------------------------------------------------------------------

    def _filter(self, conjunct: exp.Expr) -> None:
        conjunct = conjunct.unnest()
        negated = isinstance(conjunct, exp.Not)
        inner = conjunct.this.unnest() if negated else conjunct
        if isinstance(inner, exp.Exists):
            self._exists(inner.this, "anti" if negated else "semi")
        elif isinstance(inner, exp.In) and inner.args.get("query") is not None:
            self._in(inner, negated)
        elif _has_marks(conjunct):
            self._where(self._marked(conjunct))
        else:
            self._where(self._value(conjunct))

    def _where(self, predicate: exp.Expr) -> None:
        if names_in(predicate) <= set(self._node.columns):
            self._node = Filter(self._node, predicate)
        else:
            self.correlated.append(predicate)

    def _marked(self, tree: exp.Expr) -> exp.Expr:
        """EXISTS and IN under OR: a column that is TRUE for rows with a match.

        Unknown counts as FALSE, which is right where no NOT stands above.
        """
        holder = exp.Paren(this=tree.copy())
        for mark in list(holder.find_all(exp.Exists, exp.In)):
            if isinstance(mark, exp.In) and mark.args.get("query") is None:
                continue
            above = mark.parent
            while above is not None and above is not holder:
                negated = isinstance(above, exp.Not) and isinstance(mark, exp.Exists) and above is mark.parent
                if not negated and not isinstance(above, exp.And | exp.Or | exp.Paren):
                    raise Unsupported("EXISTS or IN (query) inside an expression")
                above = above.parent
            name = self._lowering.fresh("mark")
            base = self._node
            sides = []
            for kind, value in (("semi", True), ("anti", False)):
                self._node = base
                if isinstance(mark, exp.Exists):
                    self._exists(mark.this, kind)
                elif isinstance(mark, exp.In):
                    self._in(mark, negated=False, kind=kind)
                sides.append(
                    Project(self._node, (*((c, column(c)) for c in base.columns), (name, exp.Boolean(this=value))))
                )
            names = self._renamed_union(tuple(sides))
            mark.replace(column(names[name]))
        return self._windows(self._resolved_marks(holder.this))

    def _resolved_marks(self, tree: exp.Expr) -> exp.Expr:
        return self._resolved(self._without_subqueries(tree))

    def _subselect(self, query: exp.Expr) -> tuple[_Select, exp.Select]:
        query = query.this if isinstance(query, exp.Subquery) else query
        if not isinstance(query, exp.Select) or query.args.get("with_"):
            raise Unsupported("a set operation or WITH in a subquery")
        inner = _Select(self._lowering, self._ctes, self._scope)
        inner.prepare(query)
        return inner, query

    def _uncorrelated(self, query: exp.Expr) -> _Relation | None:
        """A subquery that uses nothing of this query, if it is one."""
        try:
            return self._lowering.query(query, self._ctes, None)
        except Unsupported as reason:
            if str(reason).startswith("column "):
                return None
            raise

    def _exists(self, query: exp.Expr, kind: str) -> None:
        inner, tree = self._subselect(query)
        if (
            tree.args.get("group")
            or tree.args.get("having")
            or tree.args.get("limit")
            or any(map(_aggregates, tree.expressions))
        ):
            relation = self._uncorrelated(query)
            if relation is None:
                raise Unsupported("EXISTS over a correlated aggregate")
            self._node = Join(self._node, relation.node, kind)
            return
        self._node = Join(self._node, inner._node, kind, _conjunction(inner.correlated))

    def _in(self, tree: exp.In, negated: bool, kind: str | None = None) -> None:
        query = tree.args["query"]
        relation = self._uncorrelated(query)
        conditions: list[exp.Expr] = []
        if relation is not None:
            node, columns = relation.node, [column(c) for _, c in relation.outputs]
        else:
            inner, select = self._subselect(query)
            if select.args.get("group") or any(map(_aggregates, select.expressions)) or select.args.get("distinct"):
                raise Unsupported("IN over a correlated aggregate")
            values = [inner._value(e.unalias()) for e in select.expressions]
            names = [self._lowering.fresh("in") for _ in values]
            node = _extended(inner._node, tuple(zip(names, values, strict=True)))
            columns, conditions = [column(n) for n in names], list(inner.correlated)
        needles = tree.this.expressions if isinstance(tree.this, exp.Tuple) else [tree.this]
        for needle, found in zip(needles, columns, strict=True):
            equal: exp.Expr = exp.EQ(this=self._value(needle), expression=found)
            conditions.append(equal)
        if negated and len(needles) == 1:
            conditions[-1] = exp.Coalesce(this=conditions[-1], expressions=[exp.true()])
        elif negated:
            raise Unsupported("NOT IN over several columns")
        self._node = Join(self._node, node, kind or ("anti" if negated else "semi"), _conjunction(conditions))

    def _scalar(self, subquery: exp.Subquery) -> exp.Expr:
        """A scalar subquery as a left join: no row gives NULL, a COUNT gives 0 (law 11.10)."""
        query = subquery.this
        if (
            not isinstance(query, exp.Select) or query.args.get("group") or query.args.get("having")
            or query.args.get("limit") or query.args.get("with_") or not _aggregates(query.expressions[0])
        ):  # fmt: skip
            return self._single_row(query)
        inner, tree = self._subselect(subquery)
        items = [e.unalias() for e in tree.expressions]
        if len(items) != 1:
            raise Unsupported("a scalar subquery of several columns")
        keys, conditions = [], []
        for conjunct in inner.correlated:
            own, foreign = _equality(conjunct, set(inner._node.columns))
            keys.append(inner._column_of(own))
            conditions.append(exp.EQ(this=column(keys[-1]), expression=foreign))
        keys = list(dict.fromkeys(keys))
        inner._group(keys, items)
        value = self._lowering.fresh("scalar")
        found = self._lowering.fresh("found")
        result = inner._value(items[0])
        right = Project(inner._node, (*((k, column(k)) for k in keys), (value, result), (found, exp.true())))
        renamed = {k: self._lowering.fresh(k) for k in keys}
        right = Project(
            right, (*((renamed[k], column(k)) for k in keys), (value, column(value)), (found, column(found)))
        )
        on = [c.transform(_renamer(renamed)) for c in conditions]
        self._node = Join(self._node, right, "left", _conjunction(on))
        empty = _on_empty(items[0])
        if isinstance(empty, exp.Null):
            return column(value)
        return exp.Case(ifs=[exp.If(this=column(found), true=column(value))], default=empty)

    def _single_row(self, query: exp.Expr) -> exp.Expr:
        """Any other scalar subquery: its only row, NULL if there is none, Spark's error if there are more."""
        relation = self._uncorrelated(query)
        if relation is None or len(relation.outputs) != 1:
            raise Unsupported("a correlated scalar subquery that is not a single aggregate")
        value, rows = self._lowering.fresh("scalar"), self._lowering.fresh("rows")
        only = column(relation.outputs[0][1])
        grouped = Aggregate(relation.node, (), ((value, exp.Max(this=only)), (rows, exp.Count(this=exp.Star()))))
        self._node = Join(self._node, grouped, "inner")
        many = exp.GT(this=column(rows), expression=exp.Literal.number(1))
        error = exp.Anonymous(this="raise_error", expressions=[exp.Literal.string("SCALAR_SUBQUERY_TOO_MANY_ROWS")])
        return exp.Case(ifs=[exp.If(this=many, true=error)], default=column(value))

    # -- GROUP BY ----------------------------------------------------------------------------------

    def _aggregate(self, group: exp.Group | None, items: list[tuple[str, exp.Expr]], rest: list[exp.Expr]) -> None:
        sets: list[tuple[int, ...]] | None = None
        keys: list[exp.Expr] = []
        if group is not None:
            keys, sets = _grouping(group, [e for _, e in items])
        columns = []
        for key in keys:
            resolved = self._resolved(self._without_subqueries(key))
            name = self._column_of(resolved)
            columns.append(name)
            if not isinstance(resolved, exp.Column):
                self._known.append((resolved, name))
        if sets is None:
            self._group(columns, rest)
            return
        columns, meaning = self._grouping_sets(columns, sets)
        self._group(columns, rest)
        self._known += meaning  # outside aggregates, a key means its nulled copy

    def _group(self, keys: list[str], expressions: Iterable[exp.Expr]) -> None:
        """Aggregate the node; from here on, aggregate calls are columns."""
        items: list[tuple[str, exp.Expr]] = []
        for expression in expressions:
            for call in _aggregates(expression):
                if call.find(exp.Query):
                    raise Unsupported("a subquery inside an aggregate")
                resolved = self._resolved(call)
                if not isinstance(resolved, exp.Column):  # else it is known already
                    name = self._lowering.fresh(call.key)
                    items.append((name, resolved))
                    self._known.append((resolved, name))
        self._node = Aggregate(self._node, tuple(dict.fromkeys(keys)), tuple(items))

    def _grouping_sets(
        self, columns: list[str], sets: list[tuple[int, ...]]
    ) -> tuple[list[str], list[tuple[exp.Expr, str]]]:
        """One copy of the input per set, keys outside the set NULL; the set's place is part of the key (law 11.9).

        Gives the grouping columns, and what keys and grouping() mean after grouping.
        """
        if all(not s for s in sets):
            raise Unsupported("GROUPING SETS (())")
        base = self._node
        distinct = list(dict.fromkeys(columns))
        nulled = {c: self._lowering.fresh(c) for c in distinct}
        flags = {c: self._lowering.fresh("grouping") for c in distinct}
        place = self._lowering.fresh("set")
        parts: list[Node] = []
        for number, chosen in enumerate(sets):
            inside = {columns[i] for i in chosen}
            items: list[tuple[str, exp.Expr]] = [(c, column(c)) for c in base.columns]
            items += [(nulled[c], column(c) if c in inside else exp.Null()) for c in distinct]
            items += [(flags[c], exp.Literal.number(int(c not in inside))) for c in distinct]
            items.append((place, exp.Literal.number(number)))
            parts.append(Project(base, tuple(items)))
        names = self._renamed_union(tuple(parts))
        meaning: list[tuple[exp.Expr, str]] = []
        meaning += [(column(names[c]), names[nulled[c]]) for c in distinct]
        meaning += [(exp.Grouping(expressions=[column(names[c])]), names[flags[c]]) for c in distinct]
        keys = [*(names[nulled[c]] for c in distinct), *(names[flags[c]] for c in distinct), names[place]]
        return keys, meaning

    def _renamed_union(self, parts: tuple[Node, ...]) -> dict[str, str]:
        """Union parts that have the same columns, under new names everywhere; old name → new."""
        names = {c: self._lowering.fresh(c) for c in parts[0].columns}
        self._node = Union(parts, tuple(names.values()))
        for source in self._scope.sources.values():
            for key, old in source.items():
                source[key] = names.get(old, old)
        rename = _renamer(names)
        self._known = [(e.transform(rename), names.get(n, n)) for e, n in self._known]
        return names


# -- small pieces ----------------------------------------------------------------------------------


def _chosen(relation: _Relation) -> Node:
    wanted = tuple(c for _, c in relation.outputs)
    if relation.node.columns == wanted:
        return relation.node
    if len(set(wanted)) < len(wanted):
        raise Unsupported("a column that is selected twice in a set operation")
    return Project(relation.node, tuple((c, column(c)) for c in wanted))


def _distinct(node: Node) -> Node:
    return Aggregate(node, node.columns, ())


def _extended(node: Node, items: tuple[tuple[str, exp.Expr], ...]) -> Node:
    return Project(node, (*((c, column(c)) for c in node.columns), *items))


def _unaliased(tree: exp.Expr, items: list[tuple[str, exp.Expr]]) -> exp.Expr:
    """ORDER BY may name output columns."""
    by_name = {fold(n): e for n, e in items}

    def replace(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and not node.table and fold(node.name) in by_name:
            return by_name[fold(node.name)].copy()
        return node

    return tree.copy().transform(replace)


def _conjuncts(tree: exp.Expr) -> list[exp.Expr]:
    tree = tree.unnest()
    return [c for side in tree.flatten() for c in _conjuncts(side)] if isinstance(tree, exp.And) else [tree]


def _conjunction(conditions: Sequence[exp.Expr]) -> exp.Expr | None:
    return exp.and_(*conditions, copy=True) if conditions else None


def _aggregates(tree: exp.Expr) -> list[exp.Expr]:
    """Outermost aggregate calls with their FILTER, outside windows and subqueries; inside a window its inputs."""
    found: list[exp.Expr] = []

    def walk(node: exp.Expr, windowed: bool) -> None:
        if isinstance(node, exp.Query):
            return
        if (
            isinstance(node, exp.Filter | exp.WithinGroup)
            and not windowed
            and isinstance(node.this, exp.AggFunc | exp.WithinGroup)
        ):
            found.append(node)
            return
        if isinstance(node, exp.AggFunc) and not windowed and not isinstance(node, exp.Grouping | exp.GroupingId):
            found.append(node)
            return
        if isinstance(node, exp.Anonymous) and node.name.upper() in _MORE_AGGREGATES and not windowed:
            found.append(node)
            return
        for key, child in node.args.items():
            inside = isinstance(node, exp.Window | exp.IgnoreNulls | exp.RespectNulls) and key == "this"
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, exp.Expr):
                    walk(part, inside or (windowed and isinstance(node, exp.IgnoreNulls | exp.RespectNulls)))

    walk(tree, False)
    return found


_MORE_AGGREGATES = {
    "BOOL_AND",
    "BOOL_OR",
    "EVERY",
    "SOME",
    "ANY",
    "COUNT_IF",
    "MODE",
    "PERCENTILE",
    "REGR_COUNT",
    "KURTOSIS",
    "SKEWNESS",
}


def _grouping(group: exp.Group, items: list[exp.Expr]) -> tuple[list[exp.Expr], list[tuple[int, ...]] | None]:
    """Key expressions, and the grouping sets as places among them (None: one set of all)."""
    if group.args.get("all"):
        return [e for e in items if not _aggregates(e)], None
    parts = [*group.expressions]
    for kind in ("rollup", "cube", "grouping_sets"):
        parts += group.args.get(kind) or ()
    keys = [p for p in parts if not isinstance(p, _SETS)]
    sets: list[tuple[int, ...]] = [tuple(range(len(keys)))]
    for part in parts:
        if not isinstance(part, _SETS):
            continue
        choices = []
        for expressions in _sets(part):
            places = []
            for expression in expressions:
                if expression not in keys:
                    keys.append(expression)
                places.append(keys.index(expression))
            choices.append(tuple(places))
        sets = [tuple(dict.fromkeys(a + b)) for a in sets for b in choices]
    return keys, sets if any(isinstance(p, _SETS) for p in parts) else None


_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


def _sets(part: exp.Expr) -> list[list[exp.Expr]]:
    members = [e.expressions if isinstance(e, exp.Tuple) else [e.unnest()] for e in part.expressions]
    if isinstance(part, exp.Rollup):
        return [[e for m in members[:n] for e in m] for n in range(len(members), -1, -1)]
    if isinstance(part, exp.Cube):
        chosen = itertools.product((True, False), repeat=len(members))
        return [[e for m, keep in zip(members, bits, strict=True) if keep for e in m] for bits in chosen]
    result: list[list[exp.Expr]] = []
    for member, e in zip(members, part.expressions, strict=True):
        result += _sets(e) if isinstance(e, _SETS) else [member]
    return result


def _equality(conjunct: exp.Expr, own: set[str]) -> tuple[exp.Expr, exp.Expr]:
    """A correlated `inner = outer` as (inner, outer)."""
    conjunct = conjunct.unnest()
    if isinstance(conjunct, exp.EQ):
        a, b = conjunct.this, conjunct.expression
        if names_in(a) and names_in(a) <= own and not names_in(b) & own:
            return a, b
        if names_in(b) and names_in(b) <= own and not names_in(a) & own:
            return b, a
    raise Unsupported("a scalar subquery correlated by more than equality")


def _on_empty(item: exp.Expr) -> exp.Expr:
    """What an expression over aggregates is when there are no rows."""
    calls = _aggregates(item)
    if item in calls:
        return exp.Literal.number(0) if _is_count(item) else exp.Null()
    if not any(map(_is_count, calls)) and all(isinstance(n, _STRICT) for n in _above(item, calls)):
        return exp.Null()  # NULL in, NULL out
    holder = exp.Paren(this=item.copy())
    for call in _aggregates(holder):
        call.replace(exp.Literal.number(0) if _is_count(call) else exp.Null())
    return _only(holder)


_STRICT = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren, exp.Literal)


def _above(item: exp.Expr, calls: list[exp.Expr]) -> list[exp.Expr]:
    """The parts of an expression that are not inside its aggregate calls."""
    inside = {id(n) for call in calls for n in call.walk()}
    return [n for n in item.walk() if id(n) not in inside]


def _is_count(call: exp.Expr) -> bool:
    call = call.this if isinstance(call, exp.Filter) else call
    return isinstance(call, exp.Count | exp.CountIf | exp.ApproxDistinct)


def _has_marks(tree: exp.Expr) -> bool:
    return bool(tree.find(exp.Exists)) or any(i.args.get("query") for i in tree.find_all(exp.In))


def _inside(node: exp.Expr, holder: exp.Expr) -> bool:
    """Is there a query between a node and the top?"""
    above = node.parent
    while above is not None and above is not holder:
        if isinstance(above, exp.Query) or (isinstance(above, exp.In) and above.args.get("query") is node):
            return True
        above = above.parent
    return False


def _only(holder: exp.Expr) -> exp.Expr:
    """What a holder holds, after replacements inside it."""
    inner: exp.Expr = holder.this
    return inner


def _renamer(names: Mapping[str, str]) -> Callable[[exp.Expr], exp.Expr]:
    def rename(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name in names:
            return column(names[node.name])
        return node

    return rename


def _count(node: exp.Expr | None) -> int:
    value = node.expression if node is not None else None
    if not isinstance(value, exp.Literal) or value.is_string:
        raise Unsupported("LIMIT that is not a number")
    return int(value.this)
