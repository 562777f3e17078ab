"""Random definitions that cross the clauses of Spark's grammar, from a seed.

Every definition is determined by its rows: positional functions and LIMIT have a total order. Some definitions that
Spark refuses are drawn too; the hunt drops them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.hunt import rarer, selects, shapes
from tests.hunt.batch import Definition
from tests.hunt.expressions import Draw
from tests.hunt.sources import Query

# fmt: off
CLAUSES = (
    "INNER JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", "CROSS JOIN", "USING", "NATURAL",
    "nested join", "comma join", "derived table", "CTE", "CTE shadows a table", "UNION", "EXCEPT", "INTERSECT",
    "set conversion", "nested set operation", "grouping sets", "grouping()", "HAVING", "FILTER", "DISTINCT aggregate",
    "GROUP BY ordinal", "GROUP BY alias", "GROUP BY ALL", "window ROWS", "window RANGE", "window ranks",
    "window whole partition", "window of all rows", "named window", "window filter", "LATERAL VIEW",
    "LATERAL VIEW OUTER", "LATERAL subquery", "generator in SELECT", "PIVOT", "UNPIVOT", "scalar subquery",
    "IN subquery", "NOT IN subquery", "EXISTS", "correlated", "correlated twice", "subquery in SELECT",
    "subquery in HAVING", "lambda", "access", "mixed case", "star", "star EXCEPT", "star argument", "pipe", "LIMIT",
    "operators", "CASE", "CAST", "conversion", "VALUES", "alias shadows a column", "lateral column alias", "DISTINCT",
    "nested value", "interval", "session_window", "window()", "aggregate without GROUP BY", "view over a view",
    "QUALIFY", "ORDER BY ALL", "recursive CTE", "CTE without AS", "COLLATE", "IDENTIFIER", "TABLESAMPLE",
    "extra brackets", "time alone",
)
# fmt: on


# fmt: off
_SHAPES: tuple[tuple[int, Callable[[Draw, int], Query]], ...] = (
    (6, selects.plain), (6, selects.grouped), (3, selects.set_operation), (3, selects.windowed),
    (2, selects.subqueries), (2, selects.starred), (1, selects.whole_aggregate), (2, shapes.lateral),
    (2, shapes.generated), (1, shapes.pivoted), (1, shapes.unpivoted), (2, shapes.with_clause), (2, shapes.limited),
    (1, shapes.piped), (1, shapes.valued), (1, shapes.time_windowed), (2, shapes.joined_using),
    (2, rarer.qualified), (1, rarer.ordered_by_all), (1, rarer.recursive), (1, rarer.without_as), (1, rarer.collated),
    (1, rarer.identified), (1, rarer.sampled), (1, rarer.bracketed), (1, rarer.of_a_time),
)
# fmt: on
_MAKERS = [maker for weight, maker in _SHAPES for _ in range(weight)]


def definition(seed: str) -> tuple[Definition, frozenset[str]]:
    """The definition of a seed, and the clauses that it has."""
    g = Draw(random.Random(seed), query)
    if g.chance(0.06):
        g.clause("view over a view")
        lower = query(g, 1)
        name = f"low_{random.Random(seed).randrange(10**9)}"
        scope = lower.scope(name)
        upper = selects.select(g, name, scope, 1) if g.chance(0.5) else selects.group(g, name, scope)
        return Definition(upper.text, "view over a view", ((name, lower.text),)), frozenset(g.clauses)
    found = query(g, 2)
    return Definition(found.text, ", ".join(sorted(g.clauses))), frozenset(g.clauses)


def query(g: Draw, depth: int) -> Query:
    """A query of any shape."""
    return g.pick(_MAKERS)(g, depth)
