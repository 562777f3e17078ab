"""Changes too large for the driver: the view is recomputed, under either mode."""

from __future__ import annotations

import pytest

from freshview import Warehouse
from freshview.maintenance import changes


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_a_change_too_large_for_the_driver_is_recomputed(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Law: what cannot be had as a delta can still be had as a result; estimating it afterwards fails no job."""
    monkeypatch.setattr(changes, "OVERLAY_ROWS", 10)
    swh.sql("CREATE TABLE t (id INT, g INT, PRIMARY KEY (id))")
    swh.sql("INSERT INTO t VALUES " + ", ".join(f"({i}, {i % 3})" for i in range(30)))
    swh.sql(
        f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('maintenance'='{mode}') AS SELECT g, count(*) n FROM t GROUP BY g"
    )
    swh.sql("UPDATE t SET g = g + 1")
    swh.maintain(["v"])
    assert swh.history("v")[-1].strategy == "full"
    assert swh.history("v")[-1].error is None
    assert sorted(swh.sql("SELECT * FROM v", freshness="any").collect()) == [(1, 10), (2, 10), (3, 10)]
    assert swh.check("v").ok
