"""FROM: tables, CTEs, derived tables, joins and LATERAL VIEW as nodes, and what their names mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from freshview.algebra.nodes import Generate, Join, Node, Project, Union, column, conjunction, same
from freshview.relation.schema import fold
from freshview.sql.fragments import Unsupported, factored, is_plain

if TYPE_CHECKING:
    from freshview.sql.lowering import Select


@dataclass
class Relation:
    """A lowered query: a node and its (name, column) pairs."""

    node: Node
    outputs: list[tuple[str, str]]


@dataclass
class Scope:
    """What names mean inside one SELECT."""

    parent: Scope | None
    sources: dict[str, dict[str, str]] = field(default_factory=dict)

    def find(self, table: str, name: str) -> str | None:
        scope: Scope | None = self
        while scope is not None:
            found = scope.sources.get(fold(table), {}).get(fold(name))
            if found is not None:
                return found
            scope = scope.parent
        return None


@dataclass(eq=False)
class Cte:
    """A WITH query and those it may use; lowered once, however often it is used."""

    query: exp.Expr
    visible: dict[str, Cte]
    lowered: Relation | None = None


Ctes = dict[str, Cte]


def natural_as_using(tree: exp.Expr, tables: Mapping[str, Collection[str]]) -> None:
    """NATURAL joins of tables become joins USING the columns that both sides have. Changes the tree."""
    ctes = {fold(c.alias) for c in tree.find_all(exp.CTE)}

    def columns(source: exp.Expr | None) -> list[str] | None:
        known = isinstance(source, exp.Table) and not source.args.get("db") and fold(source.name) not in ctes
        return list(tables[fold(source.name)]) if source is not None and known and fold(source.name) in tables else None

    for select in tree.find_all(exp.Select):
        source = select.args.get("from_")
        left = columns(source.this) if source is not None else None
        for part in select.args.get("joins") or ():
            right = columns(part.this)
            if (part.method or "").upper() == "NATURAL":
                if left is None or right is None:
                    raise Unsupported("a NATURAL JOIN of anything but tables")
                part.set("method", None)
                part.set("using", [exp.to_identifier(c) for c in left if c in right])
            left = left + [c for c in right if c not in left] if left is not None and right is not None else None


def _source(select: Select, tree: exp.Expr) -> tuple[str, Relation]:
    """What stands between two joins, with its name."""
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
        relation = Relation(relation.node, [(n, c) for n, (_, c) in zip(renamed, relation.outputs, strict=True)])
    return tree.alias_or_name, relation


def _used(select: Select, cte: Cte) -> Relation:
    """A WITH query at one place of use. Uses share its tree; every one but the first gives the columns new names."""
    if cte.lowered is None:
        cte.lowered = select.lowering.query(cte.query, cte.visible)
        return cte.lowered
    items = [(name, select.lowering.fresh(name), old) for name, old in cte.lowered.outputs]
    node = Project(cte.lowered.node, tuple((new, column(old)) for _, new, old in items))
    return Relation(node, [(name, new) for name, new, _ in items])


def add(select: Select, tree: exp.Expr) -> None:
    """The first source of a FROM."""
    name, relation = _source(select, tree)
    select.scope.sources[fold(name)] = {fold(n): c for n, c in relation.outputs}
    select.node = relation.node
    for part in tree.args.get("joins") or ():
        join(select, part)


def join(select: Select, tree: exp.Join) -> None:
    """One more source; a right join is a left join the other way round."""
    side, kind = (tree.side or "").upper(), (tree.kind or "").upper()
    if tree.args.get("using") or tree.method:
        raise Unsupported(f"join {tree.sql(dialect='spark'):.60}")
    conditions: list[exp.Expr] = []
    if isinstance(tree.this, exp.Lateral):
        name, relation, conditions = _lateral(select, tree.this)
    else:
        name, relation = _source(select, tree.this)
    left, right = select.node, relation.node
    visible = dict(select.scope.sources)
    select.scope.sources[fold(name)] = {fold(n): c for n, c in relation.outputs}
    on = factored(tree.args["on"]) if tree.args.get("on") is not None else []
    inner = side == "" and kind in ("", "INNER", "CROSS")
    later = [c for c in on if inner and c.find(exp.Query)]  # of an inner join, ON and WHERE mean the same
    conditions += [select.plain(c) for c in on if c not in later]
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
    for conjunct in later:
        select.filter(conjunct)


def _lateral(select: Select, tree: exp.Lateral) -> tuple[str, Relation, list[exp.Expr]]:
    """LATERAL (SELECT … FROM … WHERE …): a source like others; what it asks of those before it joins them."""
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
    return tree.alias_or_name, Relation(node, outputs), list(inner.correlated)


def _full_join(select: Select, left: Node, right: Node, condition: exp.Expr | None) -> None:
    """L ⟗ R  =  (L ⟕ R) ⊎ (NULLs, R ▷ L)."""
    matched = Join(left, right, "left", condition)
    alone = Join(right, left, "anti", condition)
    padded = Project(alone, tuple((select.lowering.fresh("none"), exp.Null()) for _ in left.columns)
                     + tuple((select.lowering.fresh(c), column(c)) for c in right.columns))  # fmt: skip
    names = {c: select.lowering.fresh(c) for c in matched.columns}
    select.node = Union((matched, padded), tuple(names.values()))
    for columns in select.scope.sources.values():
        for name, old in columns.items():
            columns[name] = names.get(old, old)


def lateral_view(select: Select, lateral: exp.Lateral) -> None:
    """LATERAL VIEW [OUTER] generator(…) name AS columns."""
    alias = lateral.args.get("alias")
    if not lateral.args.get("view") or alias is None:
        raise Unsupported("a LATERAL subquery")
    outputs = [c.name for c in alias.columns]
    columns = {fold(n): select.lowering.fresh(n) for n in outputs}
    generator = select.plain(lateral.this)
    select.node = Generate(select.node, generator, tuple(columns.values()), bool(lateral.args.get("outer")))
    select.scope.sources[fold(alias.name)] = columns
