"""What a fresh answer costs beside its job: questions to the catalog, and steps of Spark's plan."""

from __future__ import annotations

from typing import Any

import pytest

from freshview import Warehouse
from freshview.catalog.reader import CatalogReader
from freshview.catalog.view_reader import ViewReader


@pytest.fixture
def view(swh: Warehouse) -> Warehouse:
    swh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING, x DOUBLE)")
    swh.sql("CREATE MATERIALIZED VIEW s AS SELECT v, count(*) AS n, avg(k) AS m FROM t GROUP BY v")
    swh.sql("INSERT INTO t VALUES (1, 'a', 1.5), (2, NULL, 2.5)")
    assert swh.sql("SELECT * FROM s").count() == 2
    swh.sql("INSERT INTO t VALUES (3, 'c', NULL)")
    return swh


def test_a_fresh_answer_reads_the_state_of_its_view_before_and_after_the_job(
    view: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[tuple[str, int]] = []
    names: list[str] = []
    state_in, find = CatalogReader.state_in, CatalogReader.find

    def noted_state(catalog: CatalogReader, c: Any, relation: Any, csn: int) -> Any:
        states.append((relation.name, csn))
        return state_in(catalog, c, relation, csn)

    def noted_name(catalog: CatalogReader, name: str, csn: int | None = None) -> Any:
        names.append(name)
        return find(catalog, name, csn)

    monkeypatch.setattr(CatalogReader, "state_in", noted_state)
    monkeypatch.setattr(CatalogReader, "find", noted_name)
    assert view.sql("SELECT * FROM s").count() == 3
    csn = view.status().csn
    assert [at for name, at in states if name == "s"] == [csn - 1, csn]
    assert names == ["s"]


def test_past_jobs_are_not_asked_for_by_a_query_that_sees_every_row(
    view: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their times decide between a part of the change and all of it; a part would be all of it."""
    asked: list[str] = []
    finished = ViewReader.finished

    def noted(views: ViewReader, one: Any, most: int) -> Any:
        asked.append(one.name)
        return finished(views, one, most)

    monkeypatch.setattr(ViewReader, "finished", noted)
    assert view.sql("SELECT * FROM s").count() == 3
    assert not asked
    view.sql("UPDATE t SET x = 0 WHERE k = 1")
    assert view.sql("SELECT * FROM s WHERE v = 'a'").count() == 1
    assert asked == ["s"]


@pytest.mark.parametrize("text", ["SELECT * FROM s", "SELECT * FROM s WHERE n = 1"])
def test_a_small_view_is_rows_without_a_projection(
    view: Warehouse, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Each step of a plan is analysed, and optimised away: of hidden columns Spark is given none."""
    frame = view.sql(text)
    frame.explain(extended=True)
    analysed = capsys.readouterr().out.split("== Analyzed Logical Plan ==")[1].split("==")[0]
    assert "LocalRelation" in analysed
    assert "Project" not in analysed
    assert frame.columns == ["v", "n", "m"]
