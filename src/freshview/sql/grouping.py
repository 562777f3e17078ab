"""GROUP BY: keys, aggregates, and grouping sets as copies of the input."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlglot import exp

from freshview.algebra.nodes import Aggregate, Node, Project, column, same
from freshview.sql.fragments import Unsupported, aggregates, outermost, renamer

if TYPE_CHECKING:
    from freshview.sql.select import Select


def group_by(select: Select, group: exp.Group | None, items: list[tuple[str, exp.Expr]], rest: list[exp.Expr]) -> None:
    """Group a SELECT's node; `rest` are all expressions above the grouping."""
    sets: list[tuple[int, ...]] | None = None
    keys: list[exp.Expr] = []
    if group is not None:
        keys, sets = _grouping(group, [e for _, e in items])
    columns = []
    for key in keys:
        resolved = select.single(key)
        name = select.column_of(resolved)
        columns.append(name)
        if not isinstance(resolved, exp.Column):
            select.computed.append((resolved, name))
    if sets is None or (sets == [()] and not keys):  # GROUPING SETS (()) alone has a row even if there are none
        aggregated(select, columns, rest)
        return
    calls = [c for e in rest for c in outermost(e, lambda n: isinstance(n, exp.Grouping | exp.GroupingId))]
    columns, meaning = _grouping_sets(select, columns, sets, [select.resolved(c) for c in calls])
    aggregated(select, columns, rest)
    select.grouped += meaning  # outside aggregates, a key means its nulled copy


def aggregated(select: Select, keys: list[str], expressions: Iterable[exp.Expr]) -> None:
    """Aggregate a SELECT's node: above it, the aggregate calls of these expressions are columns."""
    items: list[tuple[str, exp.Expr]] = []
    for expression in expressions:
        for call in aggregates(expression):
            if call.find(exp.Query):
                raise Unsupported("a subquery inside an aggregate")
            resolved = select.below_grouping(call)
            if not any(resolved == known for known, _ in select.grouped):
                name = select.lowering.fresh(call.key)
                items.append((name, resolved))
                select.grouped.append((resolved, name))
    select.node = Aggregate(select.node, tuple(dict.fromkeys(keys)), tuple(items))


def _grouping_sets(
    select: Select, columns: list[str], sets: list[tuple[int, ...]], calls: list[exp.Expr]
) -> tuple[list[str], list[tuple[exp.Expr, str]]]:
    """Make one copy of the input per set, keys outside the set NULL; the set's place is part of the key (law 11.9).

    Return the grouping columns, and the columns that hold keys, grouping() and grouping_id() after grouping.
    """
    if all(not s for s in sets):
        raise Unsupported("GROUPING SETS (())")
    base = select.node
    distinct = list(dict.fromkeys(columns))
    nulled = {c: select.lowering.fresh(c) for c in distinct}
    flags = [select.lowering.fresh("grouping") for _ in calls]
    place = select.lowering.fresh("set")
    used = {columns[i] for chosen in sets for i in chosen}
    nothing = {c: exp.Null() if c in used else _typed_null(c) for c in distinct}
    parts: list[Node] = []
    for number, chosen in enumerate(sets):
        inside = {columns[i] for i in chosen}
        items = list(same(base.columns))
        items += [(nulled[c], column(c) if c in inside else nothing[c]) for c in distinct]
        items += [(f, _grouping_value(c, inside, distinct)) for f, c in zip(flags, calls, strict=True)]
        items.append((place, exp.Literal.number(number)))
        parts.append(Project(base, tuple(items)))
    names = select.renamed_union(tuple(parts))
    meaning = [(c.transform(renamer(names)), names[f]) for f, c in zip(flags, calls, strict=True)]
    meaning += [(column(names[c]), names[nulled[c]]) for c in distinct]
    keys = [*(names[nulled[c]] for c in distinct), *(names[f] for f in flags), names[place]]
    return keys, meaning


def _typed_null(key: str) -> exp.Expr:
    """A NULL of a key's type, for a key that no set has."""
    return exp.Case(ifs=[exp.If(this=exp.false(), true=column(key))])


def _grouping(group: exp.Group, items: list[exp.Expr]) -> tuple[list[exp.Expr], list[tuple[int, ...]] | None]:
    """Key expressions, and the grouping sets as places among them (None: one set of all)."""
    if group.args.get("all"):
        return [e for e in items if not aggregates(e)], None
    parts = [*group.expressions]
    for kind in ("rollup", "cube"):
        for part in group.args.get(kind) or ():  # GROUP BY a, b WITH ROLLUP is GROUP BY ROLLUP (a, b)
            parts = [*parts, part] if part.expressions else [type(part)(expressions=parts)]
    keys: list[exp.Expr] = []
    sets: list[tuple[int, ...]] = [()]
    suffix = group.args.get("grouping_sets") or []
    if suffix and any(isinstance(p, _SETS) for p in parts):
        raise Unsupported("grouping sets after grouping sets")
    for part in (*parts, *suffix):  # keys count in the order of the text: grouping_id() has a bit for each
        choices = [_places(expressions, keys) for expressions in (_sets(part) if isinstance(part, _SETS) else [[part]])]
        if suffix and part not in suffix:  # GROUP BY a, b GROUPING SETS (…) only declares a and b
            continue
        sets = [tuple(dict.fromkeys(x + y)) for x in sets for y in choices]
    return keys, sets if suffix or any(isinstance(p, _SETS) for p in parts) else None


def _places(expressions: list[exp.Expr], keys: list[exp.Expr]) -> tuple[int, ...]:
    """The places of expressions among the keys; adds those that are new to `keys`."""
    keys += [e for e in dict.fromkeys(expressions) if e not in keys]
    return tuple(keys.index(e) for e in expressions)


_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


def _sets(part: exp.Expr) -> list[list[exp.Expr]]:
    """The grouping sets that ROLLUP, CUBE or GROUPING SETS stands for."""
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
    """The value of grouping(k) or grouping_id(k, …) in one set: a bit per key, 1 if the key is outside."""
    asked = [c.name for c in call.expressions] or keys
    if not set(asked) <= set(keys):
        raise Unsupported(f"{call.sql(dialect='spark')} of what is no key")
    bits = sum(1 << i for i, k in enumerate(reversed(asked)) if k not in inside)
    return exp.cast(exp.Literal.number(bits), "tinyint" if isinstance(call, exp.Grouping) else "bigint")
