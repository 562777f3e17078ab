"""Generators (explode, posexplode, inline, stack, json_tuple) as items of a SELECT: they make rows, not values.

Spark evaluates generators after WHERE and GROUP BY, and before the windows of a SELECT without GROUP BY. (With it,
windows come first.) A generator that is neither a whole item nor in LATERAL VIEW has no algebra here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from freshview.algebra.nodes import Generate, column
from freshview.sql.fragments import Unsupported, is_generator, unnamed

if TYPE_CHECKING:
    from freshview.sql.select import Select


def name_generators(tree: exp.Expr) -> None:
    """Name the columns of generators in SELECT lists as Spark does, and refuse other generators. Changes the tree."""
    for node in list(filter(is_generator, tree.walk())):
        above = node.parent
        if isinstance(above, exp.Lateral):
            continue
        if isinstance(above, exp.Alias | exp.Aliases):
            above = above.parent
        if not isinstance(above, exp.Select) or not any(node is unnamed(item) for item in above.expressions):
            raise Unsupported(f"the generator {node.sql(dialect='spark'):.60} in this place")
        if isinstance(node.parent, exp.Select):
            names = [exp.to_identifier(name) for name in _default_names(node)]
            node.replace(exp.Aliases(this=node.copy(), expressions=names))
        elif isinstance(node.parent, exp.Alias):
            node.parent.replace(exp.Aliases(this=node.copy(), expressions=[node.parent.args["alias"].copy()]))


def _default_names(node: exp.Expr) -> list[str]:
    """Spark's names of a generator's columns. (explode of a map has two: then the query's names will not agree.)"""
    if isinstance(node, exp.Posexplode):
        return ["pos", "col"]
    if isinstance(node, exp.ExplodeOuter | exp.Explode):
        return ["col"]
    if isinstance(node, exp.Stack) and node.this.is_int:
        rows, values = int(node.this.name), len(node.expressions)
        return [f"col{i}" for i in range(-(-values // rows))]
    if isinstance(node, exp.Anonymous) and node.name.upper() == "JSON_TUPLE":
        return [f"c{i}" for i in range(len(node.expressions) - 1)]
    raise Unsupported(f"{node.sql(dialect='spark'):.60} without AS (…)")


Items = list[tuple[str, exp.Expr]]


class Generators:
    """The generators among the items of one SELECT."""

    def __init__(self, select: Select, tree: exp.Select) -> None:
        self.found: list[tuple[exp.Expr, tuple[str, ...]]] = []
        self.items: Items = []  # all items; a generated one is a column that `apply` makes
        for place, item in enumerate(tree.expressions):
            if not is_generator(unnamed(item)):
                self.items.append((item.alias_or_name or f"_c{place}", item.unalias()))
                continue
            names = [identifier.name for identifier in item.expressions]
            columns = tuple(map(select.lowering.fresh, names))
            self.found.append((item.this, columns))
            self.items += [(name, column(c)) for name, c in zip(names, columns, strict=True)]
        if self.found:
            self._refuse(tree)

    def _refuse(self, tree: exp.Select) -> None:
        for clause in ("having", "qualify"):
            if tree.args.get(clause):
                raise Unsupported(f"a generator beside {clause.upper()}")
        group = tree.args.get("group")
        if group is not None and group.args.get("all"):
            raise Unsupported("a generator beside GROUP BY ALL")
        if any(generator.find(exp.Window) for generator, _ in self.found):
            raise Unsupported("a generator over a window function")

    @property
    def expressions(self) -> list[exp.Expr]:
        return [generator for generator, _ in self.found]

    def apply(self, select: Select, *, grouped: bool) -> None:
        """Add the generators to the SELECT's node, after GROUP BY and before the other items."""
        if self.found and grouped and any(e.find(exp.Window) for _, e in self.items):
            raise Unsupported("a generator beside windows over groups")
        for generator, columns in self.found:
            select.node = Generate(select.node, select.single(generator), columns)
