"""Values that Spark converts without being asked: the view equals the query's own text, whatever changed."""

from __future__ import annotations

import pytest
from tests.spark.sessions import rows

from freshview import Warehouse
from freshview.errors import NotMaintainable


@pytest.fixture
def tables(swh: Warehouse) -> Warehouse:
    swh.sql("CREATE TABLE t (id INT, a INT, b BIGINT, s STRING, PRIMARY KEY (id))")
    swh.sql("CREATE TABLE u (id INT, d DOUBLE, k STRING, n DECIMAL(5,1), PRIMARY KEY (id))")
    swh.sql("INSERT INTO t VALUES (1, 1, 1, '1'), (2, 2, 9007199254740993, '01'), (3, NULL, NULL, NULL)")
    swh.sql("INSERT INTO u VALUES (1, 1.0, '1', 1.5), (2, 2.5, '01', 2), (3, NULL, NULL, NULL)")
    return swh


@pytest.mark.parametrize(
    "query",
    [
        "SELECT CAST(x AS STRING) AS s FROM (SELECT a AS x FROM t UNION ALL SELECT d FROM u) q",
        "SELECT x, count(*) AS n FROM (SELECT a AS x FROM t UNION ALL SELECT k FROM u) q GROUP BY x",
        "SELECT x * 1000000 AS y FROM (SELECT a AS x FROM t UNION ALL SELECT b FROM t WHERE b < 10) q",
        "SELECT CAST(x AS STRING) AS s FROM (SELECT a AS x FROM t EXCEPT ALL SELECT n FROM u) q",
        "SELECT CAST(x AS STRING) AS s FROM (SELECT d AS x FROM u INTERSECT SELECT a FROM t) q",
        "SELECT q.x, t.id FROM (SELECT b AS x FROM t UNION ALL SELECT d FROM u) q JOIN t ON q.x = t.b",
        "SELECT CAST(x AS STRING) AS s, g FROM (SELECT a AS x, grouping(a) AS g FROM t GROUP BY CUBE (a)) q",
    ],
)
def test_branches_of_a_set_operation_have_one_type(tables: Warehouse, query: str) -> None:
    tables.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS {query}")
    for statement in (
        "INSERT INTO t VALUES (4, 1, 2, '1'), (5, 7, 9007199254740992, '7')",
        "INSERT INTO u VALUES (4, 7.0, '7', 7), (5, 9007199254740992.0, '1', 1)",
        "DELETE FROM t WHERE id IN (1, 2)",
        "DELETE FROM u WHERE id IN (1, 4)",
    ):
        tables.sql(statement)
        assert {j.strategy for j in tables.maintain(["v"])} <= {"incremental", "nothing"}
        assert rows(tables, "SELECT * FROM v") == rows(tables, query), statement


def test_a_correlated_subquery_that_converts_its_key_is_recomputed(tables: Warehouse) -> None:
    """'1' and '01' are two groups, but both equal 1."""
    query = "SELECT id, (SELECT sum(n) FROM u WHERE u.k = t.a) AS s FROM t"
    tables.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    assert rows(tables, "SELECT * FROM v") == rows(tables, query)
    tables.sql("UPDATE u SET n = 4 WHERE id = 1")
    assert rows(tables, "SELECT * FROM v") == rows(tables, query)
    assert "compares string with int" in tables.explain("v")


def test_names_that_look_like_ours_do_no_harm(tables: Warehouse) -> None:
    query = "SELECT a, count(*) AS n, sum(b) AS n__old, count(b) AS __rows FROM t GROUP BY a"
    tables.sql(f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS {query}")
    tables.sql("INSERT INTO t VALUES (6, 1, 5, 'x')")
    assert rows(tables, "SELECT * FROM v") == rows(tables, query)


def test_ties_of_a_text_that_runs_as_it_is_are_refused(tables: Warehouse) -> None:
    with pytest.raises(NotMaintainable, match="tied rows"):
        tables.sql(
            "CREATE MATERIALIZED VIEW v AS"
            " SELECT row_number() OVER (PARTITION BY a ORDER BY b) AS r, a | id & 1 AS x FROM t"
        )
