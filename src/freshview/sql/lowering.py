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
    IllegalTree,
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
    """The algebra of a SELECT over relations with these columns.

    Whether the text is right is for Spark to say. What cannot be understood here is Unsupported.
    """
    known: dict[str, object] = {fold(n): {fold(c): "string" for c in columns} for n, columns in schemas.items()}
    try:
        tree = qualify(sqlglot.parse_one(text, read="spark"), schema=known, dialect="spark", quote_identifiers=False)
    except sqlglot.errors.SqlglotError as error:
        raise Unsupported(f"a query that cannot be resolved ({str(error).splitlines()[0]})") from error
    try:
        relation = _Lowering(schemas).query(tree, {}, None)
    except IllegalTree as error:
        raise Unsupported(f"a column of an outer query in this place ({error.cause})") from error
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
                _refuse_limit(tree)
                return self.query(tree.this, ctes, outer)
            case exp.Select():
                return _Select(self, ctes, outer).lower(tree)
            case exp.SetOperation():
                return self._set_operation(tree, ctes, outer)
            case exp.Values():
                return self._values(tree)
        raise Unsupported(f"{type(tree).__name__.upper()} as a query")

    def _set_operation(self, tree: exp.SetOperation, ctes: _Ctes, outer: _Scope | None) -> _Relation:
        _refuse_limit(tree)
        if tree.args.get("by_name"):
            raise Unsupported("a set operation BY NAME")
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
        qualified = tree.args.get("qualify")
        conditions = [part.this for part in (having, qualified) if part is not None]
        rest = [e for _, e in items] + conditions + ordered
        group = tree.args.get("group")
        if group is not None or having is not None or any(_aggregates(e) for e in rest):
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
        if qualified is not None:  # windows of the items are over all rows, so they come first
            self._where(self._value(qualified.this))
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
        _require_order(tree)
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
        if join.args.get("using") or join.method:
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
        holder = exp.Paren(this=tree.copy())
        if _marks(holder):
            raise Unsupported("EXISTS or IN (query) inside an expression")
        for subquery in _outermost(holder, lambda n: isinstance(n, exp.Query)):
            if not isinstance(subquery, exp.Subquery) or isinstance(subquery.parent, exp.Any | exp.All):
                raise Unsupported(f"a subquery in {tree.sql(dialect='spark'):.60}")
            subquery.replace(self._scalar(subquery))
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
        if _is_mark(inner):
            self._mark(inner, negated, "anti" if negated else "semi")
        elif _marks(conjunct):
            self._where(self._marked(conjunct))
        else:
            self._where(self._value(conjunct))

    def _where(self, predicate: exp.Expr) -> None:
        if names_in(predicate) <= set(self._node.columns):
            self._node = Filter(self._node, predicate)
        else:
            self.correlated.append(predicate)

    def _mark(self, tree: exp.Expr, negated: bool, kind: str) -> None:
        """Keep the rows for which [NOT] EXISTS or IN holds; by the other kind of join, those for which not."""
        if isinstance(tree, exp.In):
            self._in(tree, negated, kind)
        else:
            self._exists(tree.this, kind)

    def _marked(self, tree: exp.Expr) -> exp.Expr:
        """EXISTS and IN inside a condition: a column that is TRUE for rows where they hold.

        EXISTS is never unknown. For IN, unknown counts as FALSE, which is right where no NOT stands above.
        """
        holder = exp.Paren(this=tree.copy())
        placed: list[exp.Column] = []
        for mark in _marks(holder):
            whole = _negation(mark)
            if isinstance(mark, exp.In) and not _only_and_or(whole, holder):
                raise Unsupported("IN (query) inside an expression")
            negated = whole is not mark
            kinds = ("anti", "semi") if negated else ("semi", "anti")
            name = self._lowering.fresh("mark")
            base = self._node
            sides = []
            for kind, value in zip(kinds, (True, False), strict=True):
                self._node = base
                self._mark(mark, negated, kind)
                items = tuple((c, column(c)) for c in base.columns)
                sides.append(Project(self._node, (*items, (name, exp.Boolean(this=value)))))
            names = self._renamed_union(tuple(sides))
            placed.append(column(name))
            whole.replace(placed[-1])
            for earlier in placed:
                earlier.set("this", exp.to_identifier(names[earlier.name], quoted=True))
        return self._windows(self._resolved(self._without_subqueries(holder.this)))

    def _subselect(self, query: exp.Select) -> _Select:
        """FROM and WHERE of a subquery of this SELECT."""
        if query.args.get("with_"):
            raise Unsupported("WITH in a correlated subquery")
        inner = _Select(self._lowering, self._ctes, self._scope)
        inner.prepare(query)
        return inner

    def _uncorrelated(self, query: exp.Expr) -> _Relation | None:
        """A subquery that uses nothing of this query, if it is one."""
        try:
            return self._lowering.query(query, self._ctes, None)
        except Unsupported as reason:
            if str(reason).startswith("column "):
                return None
            raise

    def _exists(self, query: exp.Expr, kind: str) -> None:
        if not isinstance(query, exp.Select) or not _is_plain(query):
            relation = self._uncorrelated(query)
            if relation is None:
                raise Unsupported("EXISTS over a correlated subquery with more than SELECT … FROM … WHERE")
            self._node = Join(self._node, relation.node, kind)
            return
        inner = self._subselect(query)
        self._node = Join(self._node, inner._node, kind, _conjunction(inner.correlated))

    def _in(self, tree: exp.In, negated: bool, kind: str) -> None:
        query = tree.args["query"]
        relation = self._uncorrelated(query)
        conditions: list[exp.Expr] = []
        if relation is not None:
            node = relation.node
            values: list[exp.Expr] = [column(c) for _, c in relation.outputs]
        else:
            select = query.this if isinstance(query, exp.Subquery) else query
            if not isinstance(select, exp.Select) or not _is_plain(select):
                raise Unsupported("IN over a correlated subquery with more than SELECT … FROM … WHERE")
            inner = self._subselect(select)
            values = [inner._value(e.unalias()) for e in select.expressions]
            node, conditions = inner._node, list(inner.correlated)
        needles = tree.this.expressions if isinstance(tree.this, exp.Tuple) else [tree.this]
        if negated and len(needles) > 1:
            raise Unsupported("NOT IN over several columns")
        for needle, value in zip(needles, values, strict=True):
            equal: exp.Expr = exp.EQ(this=self._value(needle), expression=value)
            conditions.append(exp.Coalesce(this=equal, expressions=[exp.true()]) if negated else equal)
        self._node = Join(self._node, node, kind, _conjunction(conditions))

    def _scalar(self, subquery: exp.Subquery) -> exp.Expr:
        """A scalar subquery as a left join: no row gives NULL, a COUNT gives 0 (law 11.10)."""
        query = subquery.this
        if not isinstance(query, exp.Select) or not _is_plain(query, aggregate=True):
            return self._single_row(query)
        inner = self._subselect(query)
        items = [e.unalias() for e in query.expressions]
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
        calls = [c for e in rest for c in _outermost(e, lambda n: isinstance(n, exp.Grouping | exp.GroupingId))]
        columns, meaning = self._grouping_sets(columns, sets, [self._resolved(c) for c in calls])
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
        self, columns: list[str], sets: list[tuple[int, ...]], calls: list[exp.Expr]
    ) -> tuple[list[str], list[tuple[exp.Expr, str]]]:
        """One copy of the input per set, keys outside the set NULL; the set's place is part of the key (law 11.9).

        Gives the grouping columns, and what keys and calls of grouping() and grouping_id() mean after grouping.
        """
        if all(not s for s in sets):
            raise Unsupported("GROUPING SETS (())")
        base = self._node
        distinct = list(dict.fromkeys(columns))
        nulled = {c: self._lowering.fresh(c) for c in distinct}
        flags = [self._lowering.fresh("grouping") for _ in calls]
        place = self._lowering.fresh("set")
        parts: list[Node] = []
        for number, chosen in enumerate(sets):
            inside = {columns[i] for i in chosen}
            items: list[tuple[str, exp.Expr]] = [(c, column(c)) for c in base.columns]
            items += [(nulled[c], column(c) if c in inside else exp.Null()) for c in distinct]
            items += [(f, _grouping_value(c, inside, distinct)) for f, c in zip(flags, calls, strict=True)]
            items.append((place, exp.Literal.number(number)))
            parts.append(Project(base, tuple(items)))
        names = self._renamed_union(tuple(parts))
        meaning = [(c.transform(_renamer(names)), names[f]) for f, c in zip(flags, calls, strict=True)]
        meaning += [(column(names[c]), names[nulled[c]]) for c in distinct]
        keys = [*(names[nulled[c]] for c in distinct), *(names[f] for f in flags), names[place]]
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
        self.correlated = [e.transform(rename) for e in self.correlated]
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
            around = isinstance(node, exp.Window) or (windowed and isinstance(node, _AROUND))
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, exp.Expr):
                    walk(part, around and key == "this")

    walk(tree, False)
    return found


_AROUND = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)  # a call: f(x) FILTER (…) OVER (…)
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
        for part in group.args.get(kind) or ():  # GROUP BY a, b WITH ROLLUP is GROUP BY ROLLUP (a, b)
            parts = [*parts, part] if part.expressions else [type(part)(expressions=parts)]
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


def _grouping_value(call: exp.Expr, inside: set[str], keys: list[str]) -> exp.Expr:
    """grouping(k) and grouping_id(k, …) in one set: a bit per key, 1 if it is outside."""
    asked = [c.name for c in call.expressions] or keys
    if not set(asked) <= set(keys):
        raise Unsupported(f"{call.sql(dialect='spark')} of what is no key")
    bits = sum(1 << i for i, k in enumerate(reversed(asked)) if k not in inside)
    return exp.cast(exp.Literal.number(bits), "tinyint" if isinstance(call, exp.Grouping) else "bigint")


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


def _is_plain(query: exp.Select, *, aggregate: bool = False) -> bool:
    """SELECT … FROM … WHERE only, without or with aggregates in the items."""
    parts = ("with_", "group", "having", "qualify", "limit", "offset")
    return (
        not any(query.args.get(p) for p in parts)
        and not any(e.find(exp.Window) for e in query.expressions)
        and any(map(_aggregates, query.expressions)) == aggregate
    )


def _is_count(call: exp.Expr) -> bool:
    call = call.this if isinstance(call, exp.Filter) else call
    return isinstance(call, exp.Count | exp.CountIf | exp.ApproxDistinct)


def _is_mark(node: exp.Expr) -> bool:
    """EXISTS or IN over a query. (`exists(array, function)` is a function like others.)"""
    if isinstance(node, exp.Exists):
        return isinstance(node.this, exp.Query)
    return isinstance(node, exp.In) and node.args.get("query") is not None


def _marks(tree: exp.Expr) -> list[exp.Expr]:
    """The EXISTS and IN of a condition, not those of its subqueries."""
    return _outermost(tree, _is_mark)


def _outermost(tree: exp.Expr, wanted: Callable[[exp.Expr], bool]) -> list[exp.Expr]:
    """Parts of an expression that are wanted, none inside another or inside a subquery."""
    walk = tree.walk(bfs=False, prune=lambda n: wanted(n) or isinstance(n, exp.Query))
    return [n for n in walk if wanted(n)]


def _negation(mark: exp.Expr) -> exp.Expr:
    """The NOT around a mark, if there is one."""
    above = mark.parent
    while isinstance(above, exp.Paren) and above.parent is not None:
        above = above.parent
    return above if isinstance(above, exp.Not) else mark


def _only_and_or(node: exp.Expr, holder: exp.Expr) -> bool:
    """Does nothing but AND and OR stand above a node?"""
    above = node.parent
    while above is not None and above is not holder:
        if not isinstance(above, exp.And | exp.Or | exp.Paren):
            return False
        above = above.parent
    return True


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


def _refuse_limit(tree: exp.Expr) -> None:
    """LIMIT on a set operation or on a query in parentheses."""
    if tree.args.get("limit") is None and tree.args.get("offset") is None:
        return
    _require_order(tree)
    raise Unsupported("LIMIT on a set operation or on a query in parentheses")


def _require_order(tree: exp.Expr) -> None:
    if tree.args.get("order") is None:
        raise InvalidStatement(
            "LIMIT without ORDER BY",
            "which rows it keeps is not determined",
            "Add an ORDER BY, or leave LIMIT out.",
        )


def _count(node: exp.Expr | None) -> int:
    value = node.expression if node is not None else None
    if not isinstance(value, exp.Literal) or value.is_string:
        raise Unsupported("LIMIT that is not a number")
    return int(value.this)
