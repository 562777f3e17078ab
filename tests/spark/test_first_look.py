"""A first look: a statement in, a DataFrame out."""

from freshview import Warehouse


def test_insert_then_select(swh: Warehouse) -> None:
    swh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
    assert swh.sql("INSERT INTO t VALUES (1, 'a'), (2, NULL)").rows == 2
    assert [tuple(r) for r in swh.sql("SELECT * FROM t ORDER BY k").collect()] == [(1, "a"), (2, None)]
