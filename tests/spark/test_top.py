"""ORDER BY … LIMIT with a buffer, on Spark: each view equals its text after every change, also when rows run out."""

from __future__ import annotations

import pytest
from tests.internals import internals
from tests.spark.sessions import Rows, rows

from freshview import Warehouse
from freshview.delta import forms, top
from freshview.refresh import embedded

pytestmark = pytest.mark.spark

_VIEWS = {
    "best": "SELECT k, v FROM t WHERE v > 0 ORDER BY v DESC, k LIMIT 2",
    "hidden_order": "SELECT g FROM t ORDER BY x NULLS FIRST LIMIT 2 OFFSET 1",
    "groups": "SELECT g, sum(v) AS s FROM t GROUP BY g HAVING count(*) > 0 ORDER BY s DESC LIMIT 2",
    "doubles": "SELECT sum(x) AS s, g FROM t GROUP BY g ORDER BY s LIMIT 2",
}
_ABOVE = "SELECT count(*) AS n, sum(v) AS s FROM best"
_STEPS = [
    "INSERT INTO t VALUES (21, 5, 30, 0.0625), (22, 5, 30, -0.0), (23, 6, 1, NULL)",
    "DELETE FROM t WHERE k IN (19, 20)",
    "UPDATE t SET v = 100, x = 0.0 WHERE k = 1",
    "DELETE FROM t WHERE v >= 12",
    "DELETE FROM t WHERE k IN (10, 11) OR g = 5",
]


_ANSWERS: dict[tuple[str, str], Rows] = {}  # of Spark to the texts, after each step; the same for both engines


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_refresh_equals_recompute(swh: Warehouse, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Law: by the buffer or recomputed, each view equals its text; a view above it follows what it shows."""
    monkeypatch.setattr(embedded, "ENGINE", engine)
    monkeypatch.setattr(top, "SPARE", 2)
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, g INT, v INT, x DOUBLE)")
    swh.sql("INSERT INTO t VALUES " + ", ".join(f"({k}, {k % 8}, {k}, {k / 8})" for k in range(1, 21)))
    for name, text in _VIEWS.items():
        swh.sql(f"CREATE MATERIALIZED VIEW {name} TBLPROPERTIES ('refresh' = 'incremental') AS {text}")
    swh.sql(f"CREATE MATERIALIZED VIEW above AS {_ABOVE}")
    for step in _STEPS:
        swh.sql(step)
        if step is _STEPS[1]:
            assert "the best 4 are stored, recomputed when fewer than 2 of them are left" in swh.explain("best")
        for name, text in (*_VIEWS.items(), ("above", f"SELECT count(*) AS n, sum(v) AS s FROM ({_VIEWS['best']})")):
            if (step, name) not in _ANSWERS:
                _ANSWERS[step, name] = rows(swh, text)
            assert rows(swh, f"SELECT * FROM {name}") == _ANSWERS[step, name], (step, name)
    strategies = {name: [j.strategy for j in swh.history(name) if j.tasks] for name in _VIEWS}
    assert strategies["best"] == ["incremental"] * 3 + ["full", "incremental"], strategies
    assert all(s.count("incremental") >= 3 for s in strategies.values()), strategies
    used = {j.engine.partition(":")[0] for j in swh.history("best") if j.strategy == "incremental"}
    assert used == {"embedded" if engine == "auto" else "spark"}


def test_rows_that_an_earlier_version_stored_are_recomputed_as_they_are(
    swh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view of a version without buffers stays usable: it has no hidden columns, and keeps none."""
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
    swh.sql("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    with monkeypatch.context() as patch:
        patch.setattr(forms, "root_top", lambda *_: None)
        swh.sql("CREATE MATERIALIZED VIEW old AS SELECT k FROM t ORDER BY v DESC LIMIT 2")
    assert internals(swh).relation("old").schema.names == ("k",)
    internals(swh).views.definitions.forget()
    swh.sql("DELETE FROM t WHERE k = 3")
    assert rows(swh, "SELECT * FROM old") == [(1,), (2,)]
    assert "by recomputation (its rows were stored in another form" in swh.explain("old")
    assert swh.check("old").ok
