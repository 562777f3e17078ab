"""Two openings of one warehouse see each other's commits, on both kinds of catalog, without Spark."""

from collections.abc import Callable

from freshview import Warehouse


def test_a_commit_is_seen_by_another_opening(open_warehouse: Callable[[], Warehouse]) -> None:
    first, second = open_warehouse(), open_warehouse()
    first.sql("CREATE TABLE t (k INT, PRIMARY KEY (k))")
    with first.transaction() as tx:
        tx.insert("t", [{"k": 1}])
    assert second.status().csn == tx.csn
    assert second.status().tables[0].pending_rows == 1
