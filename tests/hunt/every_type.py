"""Definitions over a column of each type: as a value, a key, an argument, inside other values, below another view."""

from __future__ import annotations

import random

from tests.hunt.batch import Batch, Definition, with_rows
from tests.hunt.tables import EVERY_TYPE, typed_tables

_FORMS = {
    "passthrough": "SELECT Id, {c} FROM keyed",
    "passthrough, keyless": "SELECT grp, {c} FROM bag WHERE grp > 0",
    "group key": "SELECT {c}, count(*) AS n FROM {t} GROUP BY {c}",
    "group key, sum": "SELECT {c} AS Key, sum(grp) AS s, min(grp) AS least FROM bag GROUP BY {c}",
    "distinct": "SELECT DISTINCT {c} FROM {t}",
    "join key": "SELECT a.Id, b.No FROM keyed AS a JOIN bag AS b ON a.{c} = b.{c}",
    "left join key": "SELECT a.{c} AS x, b.{c} AS y FROM bag AS a LEFT JOIN keyed AS b ON a.{c} = b.{c} AND b.grp = 1",
    "full join": "SELECT a.{c} AS x, b.{c} AS y FROM bag AS a FULL JOIN keyed AS b ON a.{c} = b.{c}",
    "null-safe join": "SELECT a.Id, b.No FROM keyed AS a JOIN bag AS b ON a.{c} <=> b.{c}",
    "using": "SELECT {c}, keyed.Id, bag.No FROM keyed FULL JOIN bag USING ({c})",
    "semi join": "SELECT Id, {c} FROM keyed WHERE {c} IN (SELECT {c} FROM bag)",
    "anti join": "SELECT Id, {c} FROM keyed WHERE {c} NOT IN (SELECT {c} FROM bag WHERE {c} IS NOT NULL)",
    "exists": "SELECT Id FROM keyed WHERE NOT EXISTS (SELECT 1 FROM bag WHERE bag.{c} = keyed.{c})",
    "union": "SELECT {c} FROM keyed UNION SELECT {c} FROM bag",
    "union all": "SELECT {c} AS v FROM keyed UNION ALL SELECT {d} FROM bag",
    "except": "SELECT {c} FROM bag EXCEPT SELECT {c} FROM keyed",
    "except all": "SELECT {c} FROM bag EXCEPT ALL SELECT {c} FROM keyed",
    "intersect": "SELECT {c} FROM bag INTERSECT SELECT {c} FROM keyed",
    "except of two types": "SELECT {c} AS v FROM bag EXCEPT SELECT {d} FROM keyed",
    "in of two types": "SELECT Id FROM keyed WHERE {c} IN (SELECT {d} FROM bag)",
    "join of two types": "SELECT a.Id, b.No FROM keyed AS a JOIN bag AS b ON a.{c} = b.{d}",
    "min and max": "SELECT grp, min({c}) AS low, max({c}) AS high, count({c}) AS n FROM {t} GROUP BY grp",
    "min and max of all": "SELECT min({c}) AS low, max({c}) AS high, count(DISTINCT {c}) AS n FROM {t}",
    "collect": "SELECT grp, sort_array(collect_list({c})) AS every FROM {t} GROUP BY grp",
    "collect set": "SELECT grp, array_size(collect_set({c})) AS n FROM {t} GROUP BY grp",
    "sum": "SELECT grp, sum({c}) AS s, avg({c}) AS m FROM {t} WHERE {c} < 100 GROUP BY grp",
    "comparison": "SELECT Id, a.{c} > b.{c} AS more, a.{c} = b.{c} AS same FROM keyed AS a JOIN bag AS b USING (grp)",
    "having": "SELECT {c}, count(*) AS n FROM bag GROUP BY {c} HAVING {c} IS NOT NULL AND max({c}) = min({c})",
    "case": "SELECT Id, CASE WHEN grp = 1 THEN {c} ELSE {c} END AS v, if({c} IS NULL, 1, 2) AS w FROM keyed",
    "coalesce": "SELECT Id, coalesce({c}, {d}) AS v, nullif({c}, {c}) AS w FROM keyed",
    "text": "SELECT Id, CAST({c} AS STRING) AS v, hash({c}) AS h FROM keyed",
    "struct": "SELECT Id, struct({c}, grp AS G) AS v, to_json(struct({c})) AS j FROM keyed",
    "array": "SELECT grp, array({c}, NULL) AS v, map('Key', {c}) AS w FROM bag",
    "struct key": "SELECT struct({c} AS X, grp) AS k, count(*) AS n FROM bag GROUP BY struct({c} AS X, grp)",
    "window": "SELECT No, lag({c}) OVER (PARTITION BY grp ORDER BY No) AS v FROM bag",
    "partition": "SELECT {c}, Id, rank() OVER (PARTITION BY {c} ORDER BY Id) AS r FROM keyed",
    "order": "SELECT Id, {c}, dense_rank() OVER (PARTITION BY grp ORDER BY {c} DESC) AS r FROM keyed",
    "top": "SELECT {c}, Id FROM keyed ORDER BY {c} DESC NULLS LAST, Id LIMIT 3",
    "rollup": "SELECT {c}, grp, count(*) AS n, grouping_id() AS gid FROM bag GROUP BY ROLLUP (grp, {c})",
    "scalar subquery": "SELECT Id, (SELECT max(b.{c}) FROM bag AS b WHERE b.grp = keyed.grp) AS v FROM keyed",
    "explode": "SELECT grp, explode(array({c}, {c})) AS v FROM bag",
    "pivot": "SELECT * FROM (SELECT grp, {c} FROM bag) PIVOT (max({c}) FOR grp IN (1, 2 AS two))",
    "max_by": "SELECT grp, max_by(Id, struct({c}, Id)) AS v FROM keyed GROUP BY grp",
    "lambda": "SELECT Id, transform(array({c}), x -> x) AS v, filter(array({c}), x -> x IS NOT NULL) AS w FROM keyed",
    "star": "SELECT * FROM {t}",
    "whole row": "SELECT to_json(struct(*)) AS j FROM {t}",
}
_ABOVE = (
    "SELECT {c}, count(*) AS n FROM {low} GROUP BY {c}",
    "SELECT * FROM {low}",
    "SELECT max({c}) AS v, count(*) AS n FROM {low}",
    "SELECT a.{c} FROM {low} AS a JOIN keyed AS b ON a.{c} = b.{c}",
    "SELECT grp, {c} FROM {low} WHERE {c} IS NOT NULL",
    "SELECT {c} FROM {low} EXCEPT SELECT {c} FROM keyed",
    "SELECT Id FROM keyed WHERE {c} IN (SELECT {c} FROM {low})",
    "SELECT {c} = 'a' AS same, length({c}) AS n FROM {low}",
)


def batch(seed: str, size: int) -> Batch:
    """A batch over columns of some types."""
    draw = random.Random(seed)
    types = draw.sample(sorted(EVERY_TYPE), 6)
    tables = typed_tables(types)
    definitions: list[Definition] = []
    while len(definitions) < size:
        place = draw.randrange(len(types))
        column, other = f"C{place}", f"C{draw.randrange(len(types))}"
        table = draw.choice(("keyed", "bag"))
        if draw.random() < 0.12:
            low = f"low{len(definitions)}"
            below = draw.choice(
                (
                    f"SELECT grp, {column} FROM {table}",
                    f"SELECT {column}, max(grp) AS grp FROM {table} GROUP BY {column}",
                )
            )
            made = Definition(
                draw.choice(_ABOVE).format(c=column, low=low), f"view over a view, {types[place]}", ((low, below),)
            )
        else:
            form = draw.choice(sorted(_FORMS))
            made = Definition(_FORMS[form].format(c=column, d=other, t=table), f"{form}, {types[place]}")
        if made.text not in [d.text for d in definitions]:
            definitions.append(made)
    return with_rows("types", seed, draw, tables, definitions)
