"""Less common definitions, one line each, and their run on whatever Spark a session names.

All definitions are kept over the same tables at once: each costs its own work only.
"""

# ruff: noqa: E501 (a definition reads best on one line)
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from freshview import Warehouse

TABLES = {
    "a": "id INT, k INT, v INT, arr ARRAY<INT>, m MAP<STRING, INT>, st STRUCT<X: INT, y: STRING>, s STRING, d DOUBLE",
    "b": "id INT, k INT, w BIGINT, s STRING",
    "c": "id INT, k INT, z STRING",
    "e": "id INT, k CHAR(3), v INT",
}
ROWS = {
    "a": (
        "(1, 1, 10, array(1, 2), map('K', 1, 'k', 2), named_struct('X', 1, 'y', 'p'), '1', 0.0),"
        "(2, 1, 20, array(3), map('K', 3), named_struct('X', 2, 'y', 'q'), '01', -0.0),"
        "(3, 2, NULL, array(), map(), NULL, '2', 1.5),"
        "(4, NULL, 40, NULL, NULL, named_struct('X', 3, 'y', NULL), NULL, NULL)"
    ),
    "b": "(1, 1, 100, '1'), (2, 3, 9007199254740993, 'x'), (3, 3, NULL, '02'), (4, NULL, 7, NULL)",
    "c": "(1, 2, 'two'), (2, 3, 'three'), (3, 4, 'four'), (4, 1, 'one')",
    "e": "(1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (4, NULL, 4)",
}
STEPS = {
    "changed": (
        "UPDATE a SET v = v + 1, arr = array(7, 8, 9) WHERE id = 2",
        "DELETE FROM a WHERE id = 1",
        "INSERT INTO a VALUES (5, 4, 50, array(1, NULL), map('K', 5), named_struct('X', 5, 'y', 'r'), '4', 2.5),"
        "(6, 1, 21, array(7, 8, 9), map('K', 6), NULL, '1', 2.5)",
        "DELETE FROM b WHERE k = 1",
        "INSERT INTO b VALUES (5, 2, 9007199254740992, '2'), (6, 4, 1, '4')",
        "UPDATE c SET k = 1 WHERE id = 1",
        "UPDATE e SET k = 'a' WHERE id = 3",
        "INSERT INTO e VALUES (5, 'a', 5), (6, 'b', 6)",
        "DELETE FROM e WHERE id = 2",
    ),
    "emptied": ("DELETE FROM a", "DELETE FROM b", "DELETE FROM c", "DELETE FROM e"),
    "filled": tuple(f"INSERT INTO {name} VALUES {rows}" for name, rows in ROWS.items()),
}
CASES = {
    # generators in a SELECT list
    "exploded, then counted": "SELECT count(*) AS n FROM (SELECT k, explode(arr) AS e FROM a)",
    "explode over groups": "SELECT k, explode(array(count(*), sum(v))) AS e FROM a GROUP BY k",
    "explode without a name": "SELECT id, explode(arr) FROM a",
    "explode under its default name": "SELECT id, col + 1 AS e FROM (SELECT id, explode(arr) FROM a)",
    "a window beside explode": "SELECT id, count(*) OVER (PARTITION BY k) AS n, explode(arr) AS e FROM a",
    "posexplode": "SELECT id, posexplode(arr) AS (p, e) FROM a WHERE id < 10",
    "posexplode without names": "SELECT sum(pos) AS p, sum(col) AS c FROM (SELECT posexplode_outer(arr) FROM a)",
    "explode a map": "SELECT id, explode(m) AS (mk, mv) FROM a",
    "explode a map without names, below": "SELECT sum(value) AS n, max(key) AS m FROM (SELECT explode(m) FROM a)",
    "explode a map without names": "SELECT id, explode(m) FROM a",
    "inline": "SELECT id, inline(array(st, st)) AS (x, y) FROM a",
    "stack": "SELECT id, stack(2, k, v, v, k) AS (x, y) FROM a",
    "stack without names": "SELECT max(col0) AS x, count(col1) AS y FROM (SELECT stack(2, k, v, v) FROM a)",
    "json_tuple": "SELECT id, json_tuple(to_json(st), 'X', 'y') AS (x, y) FROM a",
    "two generators": "SELECT id, explode(arr) AS e, explode_outer(m) AS (mk, mv) FROM a",
    "explode beside a star": "SELECT *, explode(arr) AS e FROM a",
    "explode the best": "SELECT id, explode(arr) AS e FROM a ORDER BY e DESC, id LIMIT 3",
    "explode distinct": "SELECT DISTINCT explode(arr) AS e FROM a",
    "explode the aggregate": "SELECT k, explode(sort_array(collect_list(v))) AS e FROM a GROUP BY k",
    "exists explode": "SELECT id FROM a WHERE EXISTS (SELECT explode(a.arr))",
    "exists an exploded row": "SELECT id FROM b WHERE EXISTS (SELECT explode(arr) FROM a)",
    "in an exploded list": "SELECT id FROM b WHERE k IN (SELECT explode(arr) FROM a)",
    "lateral explode": "SELECT a.id, x.e FROM a, LATERAL (SELECT explode(a.arr) AS e) x",
    "lateral function": "SELECT a.id, x.e FROM a, LATERAL explode(a.arr) AS x(e)",
    "a group beside explode and a window": (
        "SELECT k, explode(array(count(*), sum(v))) AS e, rank() OVER (ORDER BY k) AS r FROM a GROUP BY k"
    ),
    # star as an argument
    "a struct of a star": "SELECT id, to_json(struct(*)) AS j FROM c",
    "a hash of a star": "SELECT id, xxhash64(*) AS h FROM c",
    "the best row": "SELECT max(struct(*)).z AS z FROM c",
    "the best row of a table": "SELECT k, max(struct(c.*)) AS z FROM c GROUP BY k",
    # USING after an outer join
    "full full using": "SELECT * FROM (SELECT k, v FROM a) x FULL JOIN (SELECT w, k FROM b) y USING (k) FULL JOIN (SELECT z, k FROM c) z USING (k)",
    "right inner using": "SELECT * FROM (SELECT k, v FROM a) x RIGHT JOIN (SELECT w, k FROM b) y USING (k) JOIN (SELECT z, k FROM c) z USING (k)",
    "right full using": "SELECT k, a.v, b.w, c.z, a.k AS ka FROM a RIGHT JOIN b USING (k) FULL JOIN c USING (k)",
    "full left using": "SELECT k, a.v, b.w, c.z FROM a FULL JOIN b USING (k) LEFT JOIN c USING (k) WHERE k > 0",
    "full semi using": "SELECT k, a.v, b.w FROM a FULL JOIN b USING (k) LEFT SEMI JOIN c USING (k)",
    "left inner using": "SELECT *, e.k AS ek FROM (SELECT k, v FROM a) x LEFT JOIN (SELECT w, k FROM b) y USING (k) JOIN (SELECT z, k FROM c) e USING (k)",
    "using of two types": "SELECT w, count(*) AS n FROM (SELECT k AS w FROM a) x FULL JOIN b USING (w) GROUP BY w",
    "using of two columns": "SELECT k, s, v, w, z, c.k AS ck FROM a FULL JOIN b USING (k, s) RIGHT JOIN c USING (k)",
    "a right join after a comma": "SELECT c.z, a.v, b.w FROM c, a RIGHT JOIN b ON a.k = b.k",
    "a left join after a comma": "SELECT c.z, a.v, b.w FROM c, a LEFT JOIN b ON a.k = b.k",
    "using after a comma": "SELECT * FROM (SELECT id AS i FROM c) x, (SELECT v, k FROM a) y JOIN (SELECT k, w FROM b) z USING (k)",
    "natural full": "SELECT * FROM b NATURAL FULL JOIN c",
    "natural right natural": "SELECT * FROM (SELECT k, v FROM a) x RIGHT JOIN b USING (k) NATURAL JOIN c",
    "using seen from a subquery": (
        "SELECT k FROM a FULL JOIN b USING (k) WHERE EXISTS (SELECT 1 FROM c WHERE c.id = k)"
    ),
    # names that become data
    "a key of a map": "SELECT id, m.K AS u, m.k AS l, m['K'] AS q FROM a",
    "the case of a field": "SELECT id, named_struct('A', v) AS s FROM a",
    "a field in json": "SELECT id, to_json(named_struct('userId', v, 'Some text', k)) AS j FROM a",
    "a field by column": "SELECT id, to_json(struct(V, a.k, st.X)) AS j FROM a",
    "a field of a group": "SELECT K, to_json(struct(K, max(v))) AS j FROM a GROUP BY K",
    "a field by place": "SELECT id, to_json(struct(m['K'], (v), upper(s))) AS j FROM a",
    "a cast to fields": "SELECT id, CAST(st AS STRUCT<N: BIGINT, T: STRING>) AS s FROM a",
    "arrays zipped": (
        "SELECT id, to_json(arrays_zip(P, q)) AS z FROM (SELECT id, arr AS p, transform(arr, e -> e + 1) AS Q FROM a)"
    ),
    "an array zipped with itself": "SELECT id, to_json(arrays_zip(arr, arr)) AS z FROM a",
    "a row": "SELECT id, to_json((id, V)) AS r FROM a",
    "a variable like ours": "SELECT id, transform(arr, v_2 -> v_2 + v) AS t FROM a",
    "a variable like ours again": "SELECT id, transform(arr, v_3 -> v_3 + V) AS t, aggregate(arr, 0, (id_1, k_2) -> id_1 + k_2 + k) AS g FROM a",
    "a variable that hides a column": "SELECT id, transform(arr, v -> v + k) AS t FROM a",
    "a variable in another case": "SELECT id, transform(arr, V -> v + k) AS t FROM a",
    "a variable in a field": "SELECT id, to_json(transform(arr, Xy -> struct(Xy, k))) AS t FROM a",
    "a field of an element": "SELECT id, transform(array(st), e -> e.X) AS x FROM a",
    # sets of what Spark converts
    "except of two types": "SELECT s AS x FROM a EXCEPT SELECT k FROM b",
    "except the other way": "SELECT k AS x FROM a EXCEPT SELECT s FROM a",
    "except of doubles": "SELECT w AS x FROM b EXCEPT SELECT d FROM a",
    "intersect of two types": "SELECT s AS x FROM a INTERSECT SELECT k FROM b",
    "intersect of doubles": "SELECT w AS x FROM b INTERSECT SELECT CAST(w AS DOUBLE) FROM b",
    "union of two types": "SELECT s AS x FROM a UNION SELECT k FROM b",
    "except all of sets": "SELECT DISTINCT s AS x FROM a EXCEPT ALL SELECT DISTINCT k FROM b",
    "in over strings": "SELECT id, k FROM a WHERE k IN (SELECT s FROM a)",
    "in over numbers": "SELECT id, s FROM a WHERE s IN (SELECT k FROM a)",
    "in over doubles": "SELECT id, w FROM b WHERE w IN (SELECT CAST(w AS DOUBLE) FROM b)",
    "not in over doubles": "SELECT id, w FROM b WHERE w NOT IN (SELECT d FROM a WHERE d IS NOT NULL)",
    "in over rows in brackets": "SELECT id, k, v FROM a WHERE ((k, id)) IN (SELECT k, id FROM b)",
    # a scalar subquery over no rows
    "a list of nothing": "SELECT id, (SELECT sort_array(collect_list(w)) FROM b WHERE b.k = a.k) AS l FROM a",
    "a set of nothing": "SELECT id, size((SELECT sort_array(collect_set(w)) FROM b WHERE b.k = a.k)) AS l FROM a",
    "a regression of nothing": "SELECT id, (SELECT regr_count(w, id) FROM b WHERE b.k = a.k) AS n FROM a",
    "counts of nothing": (
        "SELECT id, (SELECT count_if(w > 1) + count(*) FILTER (WHERE w > 1) FROM b WHERE b.k = a.k) AS n FROM a"
    ),
    "sums of nothing": "SELECT id, (SELECT max(w) + sum(w) FROM b WHERE b.k = a.k) AS n FROM a",
    "a histogram of nothing": "SELECT id, (SELECT bit_count(bit_xor(w)) FROM b WHERE b.k = a.k) AS n FROM a",
    "nothing at depth two": (
        "SELECT id, (SELECT max(w) FROM b WHERE b.k = a.k AND b.w > (SELECT min(c.id) FROM c WHERE c.k = b.k)) AS n FROM a"
    ),
    # grouping
    "declared grouping sets": (
        "SELECT k, v, count(*) AS n, grouping_id() AS g FROM a GROUP BY k, v GROUPING SETS ((k, v), k, ())"
    ),
    "crossed grouping sets": (
        "SELECT k, v, count(*) AS n, grouping_id() AS g FROM a GROUP BY k, v, GROUPING SETS ((k, v), k, ())"
    ),
    "sets of more than is declared": "SELECT k, v, count(*) AS n FROM a GROUP BY k GROUPING SETS ((k, v), k)",
    "declared in another order": "SELECT k, v, grouping_id() AS g FROM a GROUP BY v, id, k GROUPING SETS ((k, v), (v))",
    "the order of bits": "SELECT k, v, grouping_id() AS g, count(*) AS n FROM a GROUP BY ROLLUP(v), k",
    "the order of more bits": "SELECT k, v, grouping_id() AS g, count(*) AS n FROM a GROUP BY CUBE(v), k, ROLLUP(id)",
    "with rollup": "SELECT k, v, grouping_id() AS g, count(*) AS n FROM a GROUP BY v, k WITH ROLLUP",
    # LIMIT and OFFSET
    "limit all": "SELECT id, k FROM a ORDER BY k LIMIT ALL",
    "offset": "SELECT id, k FROM a ORDER BY k, id OFFSET 2",
    "offset of a union": "SELECT id FROM a UNION ALL SELECT id + 100 FROM b ORDER BY id OFFSET 3",
    "order by all": "SELECT k, v, id FROM a ORDER BY ALL DESC NULLS LAST LIMIT 3",
    "order by all of a union": "SELECT k, s FROM a UNION SELECT k, s FROM b ORDER BY ALL LIMIT 3",
    "limit all and offset": "SELECT id, k FROM a ORDER BY k, id LIMIT ALL OFFSET 1",
    # operators
    "equal to less": "SELECT id, (k > 1) = (v > 1) < (id > 1) AS x FROM a",
    "unequal to less": "SELECT id, k > 0 AS p FROM a WHERE (k > 1) <> (id > 1) < (v > 1)",
    "equal to more": "SELECT id FROM a WHERE (k > 1) = (v > 1) >= false",
    "concatenated bits": "SELECT id, k & 3 || 1 AS x FROM a",
    "concatenated sums": "SELECT id, k || id + 1 AS x FROM a",
    # windows
    "first known in whole": (
        "SELECT id, first_value(v) IGNORE NULLS OVER (PARTITION BY k ORDER BY d"
        " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) IS NULL AS f FROM a"
    ),
    "windows over equal rows": (
        "SELECT j, lag(j) OVER w AS l, row_number() OVER w AS r, ntile(2) OVER w AS t FROM (SELECT id * 0 AS j FROM a) x"
        " WINDOW w AS (PARTITION BY j + 1 ORDER BY j)"
    ),
    "the first of equal rows": (
        "SELECT j, l FROM (SELECT j, lag(j) OVER w AS l, row_number() OVER w AS r FROM (SELECT id * 0 AS j FROM a) x"
        " WINDOW w AS (PARTITION BY j ORDER BY j)) y WHERE r = 1"
    ),
    "ranks": (
        "SELECT id, rank() OVER w AS r, cume_dist() OVER w AS c, percent_rank() OVER w AS p, sum(v) OVER w AS s,"
        " count(v) OVER w AS n FROM a WINDOW w AS (PARTITION BY k ORDER BY d)"
    ),
    # numbers
    "averages past 2^53": "SELECT k, avg(w) AS m, avg(id) AS i FROM b GROUP BY k",
    "shifted by a column": "SELECT id, v >>> id AS x, v << k AS y, v >> 1 AS z FROM a",
    "truncated by a column": "SELECT id, trunc(DATE'2020-02-29', if(id = 1, 'year', 'month')) AS d FROM a",
    # CHAR(n), which Spark pads where it compares columns
    "char in having": "SELECT k, count(*) AS n FROM e GROUP BY k HAVING k = 'a'",
    "char above groups": "SELECT k, n FROM (SELECT k, count(*) AS n FROM e GROUP BY k) x WHERE k = 'a'",
    "char in an item": "SELECT k, k = 'a' AS q, k IN ('a', 'b') AS r, sum(v) AS s FROM e GROUP BY k",
    "char in a rollup": "SELECT k, k = 'a' AS q, count(*) AS n FROM e GROUP BY ROLLUP (k)",
    "char above distinct": "SELECT k FROM (SELECT DISTINCT k FROM e) x WHERE k = 'a'",
    "char in a full join": "SELECT x.v, y.v AS w, x.k = 'a' AS q FROM e x FULL JOIN e y ON x.k = y.k AND x.id < y.id",
    # names
    "a name with a backtick": "SELECT id AS `i``d`, k AS `a.b` FROM a",
}


# The cases that have no algebra; all others are lowered.
KEPT = (
    *("explode a map without names, below", "exists explode", "lateral explode", "lateral function"),
    *("a group beside explode and a window", "a struct of a star", "a hash of a star", "the best row"),
    *("the best row of a table", "a right join after a comma", "using after a comma", "natural right natural"),
    *("a field by place", "arrays zipped", "an array zipped with itself", "a row", "a variable in another case"),
    *("equal to less", "unequal to less", "equal to more", "concatenated bits", "concatenated sums"),
    *("shifted by a column",),
)
UNTESTED = "TBLPROPERTIES ('selftest' = 'off')"  # lowering is right by itself, not for want of a difference
Answer = tuple[str, list[tuple[Any, ...]]]


class Kept:
    """Every definition as a view, and what it gave at each step: its rows and what plain Spark made of its text."""

    def __init__(self, warehouse: Warehouse, plain: SparkSession, *, at_every_step: bool) -> None:
        self.warehouse = warehouse
        self.plain = plain  # knows nothing of Freshview
        self.at_every_step = at_every_step
        self.given: dict[str, dict[str, tuple[Answer, Answer]]] = {name: {} for name in CASES}
        self.failed: dict[str, Exception] = {}
        self.views: dict[str, str] = {}  # by case
        self.recomputed: set[str] = set()  # the cases that keep their text

    def run(self, cases: Mapping[str, str]) -> None:
        for name, columns in TABLES.items():
            self.warehouse.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id))")
            self.warehouse.sql(f"INSERT INTO {name} VALUES {ROWS[name]}")
        for place, (name, definition) in enumerate(cases.items()):
            self.views[name] = f"v{place}"
            self._try(name, f"CREATE MATERIALIZED VIEW v{place} {UNTESTED} AS {definition}")
        recomputed = {v.name for v in self.warehouse.status().views if v.reading.startswith("recomputed")}
        self.recomputed = {name for name, view in self.views.items() if view in recomputed}
        for number, (step, statements) in enumerate(STEPS.items()):
            for statement in statements:
                self.warehouse.sql(statement)
            # The rules are tried by the first step. Of each kind of cases, one in four takes one of the others.
            at_all = number == 0 or self.at_every_step
            chosen = {n: d for i, (n, d) in enumerate(cases.items()) if at_all or i % 8 == 4 * number - 4}
            self._compare(step, chosen)

    def require_equal(self, name: str) -> None:
        """Law: the view equals its text at every step at which both were asked, the first one among them."""
        if name in self.failed:
            raise self.failed[name]
        assert next(iter(STEPS)) in self.given[name]
        for step, (ours, theirs) in self.given[name].items():
            assert ours == theirs, f"{name}, {step}"

    def require_way(self, name: str) -> None:
        """A case without algebra keeps its text. (Which ones have none: tests/unit/sql/test_lowering.py.)"""
        assert name in self.recomputed or name not in KEPT, name

    def _try(self, name: str, statement: str) -> DataFrame | None:
        try:
            found: DataFrame = self.warehouse.sql(statement)
            return found
        except Exception as error:  # of this case: the others go on
            self.failed[name] = error
            return None

    def _compare(self, step: str, cases: Mapping[str, str]) -> None:
        for table in TABLES:
            found = self.warehouse.sql(f"SELECT * FROM {table}")
            self.plain.createDataFrame(found.collect(), found.schema).createOrReplaceTempView(table)
        for name, definition in cases.items():
            ours = None if name in self.failed else self._try(name, f"SELECT * FROM {self.views[name]}")
            if ours is not None:
                self.given[name][step] = answer(ours), answer(self.plain.sql(definition))


def answer(frame: DataFrame) -> Answer:
    """The types with the names of all fields, and the rows in an order that rows of any values have."""
    return frame.schema.simpleString(), sorted((tuple(r) for r in frame.collect()), key=repr)
