"""FROM: tables, CTEs, derived tables, joins and LATERAL VIEW as nodes, and the meaning of names in a SELECT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from freshview.algebra.nodes import Generate, Join, Node, Project, Union, column, conjunction, same
from freshview.relation.schema import fold
from freshview.sql.fragments import Unsupported, factored, is_plain
from freshview.sql.using import may_be_comma, using_of

if TYPE_CHECKING:
    from freshview.sql.select import Select


@dataclass
class LoweredQuery:
    """A lowered query: a node and its (name, column) pairs."""

    node: Node
    outputs: list[tuple[str, str]]


@dataclass
class Scope:
    """The meaning of names inside one SELECT."""

    parent: Scope | None
    sources: dict[str, dict[str, str]] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)  # the columns that joins USING made of two
    divided: bool = False  # two of the sources are joined by a comma

    def find(self, table: str, name: str) -> str | None:
        """The column that `table.name` means, in this SELECT or one around it."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.sources.get(fold(table), {}).get(fold(name))
            if found is not None:
                return found
            scope = scope.parent
        return None

    def find_shared(self, tables: Sequence[str], name: str) -> str:
        """The one column that joins USING made of the columns `name` of these tables."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.shared and all(fold(t) in scope.sources for t in tables):
                return scope.shared[name]
            scope = scope.parent
        raise Unsupported(f"the column {name} of USING in this place")

    def rename(self, names: Mapping[str, str]) -> None:
        """Give the sources' columns new names."""
        for columns in (*self.sources.values(), self.shared):
            for name, old in columns.items():
                columns[name] = names.get(old, old)


@dataclass(eq=False)
class Cte:
    """A WITH query and the WITH queries that it may use; lowered once, however often it is used."""

    query: exp.Expr
    visible: dict[str, Cte]
    lowered: LoweredQuery | None = None


Ctes = dict[str, Cte]


def _source(select: Select, tree: exp.Expr) -> tuple[str, LoweredQuery]:
    """A table, WITH query, subquery or VALUES of a FROM, with its name."""
    for part in ("pivots", "sample", "version", "when"):
        if tree.args.get(part):
            raise Unsupported(f"{part.upper()} on a table")
    match tree:
        case exp.Table() if isinstance(tree.this, exp.Identifier):
            cte = select.ctes.get(fold(tree.name)) if not tree.args.get("db") else None
            if cte is not None:
                relation = _used(select, cte)
            elif tree.args.get("db"):
                raise Unsupported(f"table {tree.sql(dialect='spark')} of another catalog")
            else:
                relation = select.lowering.scan(tree.name)
        case exp.Subquery():
            relation = select.lowering.query(tree.this, select.ctes)
        case exp.Values():
            relation = select.lowering.query(tree, select.ctes)
        case _:
            raise Unsupported(f"{tree.sql(dialect='spark'):.60} in FROM")
    alias = tree.args.get("alias")
    renamed = [c.name for c in alias.columns] if alias is not None else []
    if renamed:
        relation = LoweredQuery(relation.node, [(n, c) for n, (_, c) in zip(renamed, relation.outputs, strict=True)])
    return tree.alias_or_name, relation


def _used(select: Select, cte: Cte) -> LoweredQuery:
    """A WITH query at one place of use. All uses share its tree; every use but the first renames its columns."""
    if cte.lowered is None:
        cte.lowered = select.lowering.query(cte.query, cte.visible)
        return cte.lowered
    items = [(name, select.lowering.fresh(name), old) for name, old in cte.lowered.outputs]
    node = Project(cte.lowered.node, tuple((new, column(old)) for _, new, old in items))
    return LoweredQuery(node, [(name, new) for name, new, _ in items])


def add(select: Select, tree: exp.Expr) -> None:
    """Make the first source of a FROM the SELECT's node."""
    name, relation = _source(select, tree)
    select.scope.sources[fold(name)] = {fold(n): c for n, c in relation.outputs}
    select.node = relation.node
    for part in tree.args.get("joins") or ():
        join(select, part)


def join(select: Select, tree: exp.Join) -> None:
    """Join one more source to the SELECT's node; a right join is a left join with its sides exchanged."""
    side, kind = (tree.side or "").upper(), (tree.kind or "").upper()
    using = using_of(tree)
    if tree.method:
        raise Unsupported(f"join {tree.sql(dialect='spark'):.60}")
    if select.scope.divided and (using or side in ("RIGHT", "FULL")):
        # To Spark `a, b RIGHT JOIN c` is `a, (b RIGHT JOIN c)`. For inner and left joins with ON this is no matter.
        raise Unsupported("a RIGHT or FULL join, or one with USING, after a comma")
    if select.correlated and side in ("RIGHT", "FULL"):
        # Such conditions are applied above all joins of the subquery, where these have added rows without a match.
        raise Unsupported("a RIGHT or FULL join after a condition over columns of an outer query")
    select.scope.divided = select.scope.divided or may_be_comma(tree)
    conditions: list[exp.Expr] = []
    if isinstance(tree.this, exp.Lateral):
        name, relation, conditions = _lateral(select, tree.this)
    else:
        name, relation = _source(select, tree.this)
    left, right = select.node, relation.node
    pairs = _shared_by(select.scope, using, relation)
    visible = dict(select.scope.sources)
    select.scope.sources[fold(name)] = {fold(n): c for n, c in relation.outputs}
    on = factored(tree.args["on"]) if tree.args.get("on") is not None and not using else []
    inner = side == "" and kind in ("", "INNER", "CROSS")
    later = [c for c in on if inner and c.find(exp.Query)]  # in an inner join, ON and WHERE mean the same
    conditions += [select.plain(c) for c in on if c not in later]
    conditions += [exp.EQ(this=column(a), expression=column(b)) for _, a, b in pairs]
    condition = conjunction(conditions)
    if kind in ("SEMI", "ANTI"):
        select.node = Join(left, right, kind.lower(), condition)
        select.scope.sources = visible
    elif side == "LEFT":
        select.node = Join(left, right, "left", condition)
    elif side == "RIGHT":
        select.node = Join(right, left, "left", condition)
    elif side == "FULL":
        _full_join(select, left, right, condition)
    elif inner:
        select.node = Join(left, right, "inner", condition)
    else:
        raise Unsupported(f"{side} {kind} JOIN")
    if kind not in ("SEMI", "ANTI"):
        _share(select, side, pairs, select.scope.sources[fold(name)])
    for conjunct in later:
        select.filter(conjunct)


def _shared_by(scope: Scope, using: Sequence[str], relation: LoweredQuery) -> list[tuple[str, str, str]]:
    """(name, left column, right column) of each column that a join USING compares."""
    right = {fold(n): c for n, c in relation.outputs}
    pairs = []
    for name in using:
        found = [columns[name] for columns in scope.sources.values() if name in columns]
        left = scope.shared.get(name) or (found[0] if len(found) == 1 else None)
        if left is None or name not in right:
            raise Unsupported(f"JOIN … USING ({name})")
        pairs.append((name, left, right[name]))
    return pairs


def _share(select: Select, side: str, pairs: Sequence[tuple[str, str, str]], joined: Mapping[str, str]) -> None:
    """Define `k` after JOIN … USING (k): the left column, for a right join the right one, for a full join either."""
    if not pairs:
        return
    before = dict(select.scope.shared)
    for name, left, right in pairs:
        if side == "FULL":
            # The full join has renamed the columns of both sides, also the one that `k` has meant so far.
            own = before.get(name) or next(c[name] for c in select.scope.sources.values() if name in c)
            either = exp.Coalesce(this=column(own), expressions=[column(joined[name])])
            select.scope.shared[name] = select.column_of(either)
        else:
            select.scope.shared[name] = right if side == "RIGHT" else left


def _lateral(select: Select, tree: exp.Lateral) -> tuple[str, LoweredQuery, list[exp.Expr]]:
    """LATERAL (SELECT … FROM … WHERE …) as (name, source, conditions over the sources before it)."""
    query = tree.this.this if isinstance(tree.this, exp.Subquery) else None
    if not isinstance(query, exp.Select) or not is_plain(query) or query.args.get("distinct"):
        raise Unsupported("a LATERAL join with more than SELECT … FROM … WHERE")
    inner = select.subselect(query)
    items = [(e.alias_or_name, select.lowering.fresh(e.alias_or_name), e.unalias()) for e in query.expressions]
    values = [(new, inner.value(e)) for _, new, e in items]
    node = Project(inner.node, (*same(inner.node.columns), *values))
    alias = tree.args.get("alias")
    names = [c.name for c in alias.columns] if alias is not None and alias.columns else [n for n, _, _ in items]
    outputs = [(n, new) for n, (_, new, _) in zip(names, items, strict=True)]
    return tree.alias_or_name, LoweredQuery(node, outputs), list(inner.correlated)


def _full_join(select: Select, left: Node, right: Node, condition: exp.Expr | None) -> None:
    """L ⟗ R  =  (L ⟕ R) ⊎ (NULLs, R ▷ L)."""
    matched = Join(left, right, "left", condition)
    alone = Join(right, left, "anti", condition)
    fresh = select.lowering.fresh
    nulls = [(fresh("none"), exp.Null()) for _ in left.columns]
    padded = Project(alone, (*nulls, *((fresh(c), column(c)) for c in right.columns)))
    names = {c: fresh(c) for c in matched.columns}
    select.node = Union((matched, padded), tuple(names.values()))
    select.scope.rename(names)


def lateral_view(select: Select, lateral: exp.Lateral) -> None:
    """Add LATERAL VIEW [OUTER] generator(…) name AS columns to the SELECT's node."""
    alias = lateral.args.get("alias")
    if not lateral.args.get("view") or alias is None:
        raise Unsupported("a LATERAL subquery")
    outputs = [c.name for c in alias.columns]
    columns = {fold(n): select.lowering.fresh(n) for n in outputs}
    generator = select.plain(lateral.this)
    select.node = Generate(select.node, generator, tuple(columns.values()), bool(lateral.args.get("outer")))
    select.scope.sources[fold(alias.name)] = columns
