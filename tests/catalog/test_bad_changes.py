"""Changes that a flow cannot take: they are set aside with their place, or stop it there; no stream is wedged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.helpers import contents
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.flows import FlowCatalog
from freshview.cdc.debezium import Debezium
from freshview.cdc.event_files import EventFiles
from freshview.errors import CaptureFailed, InvalidStatement


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    with freshview.connect(tmp_path / "warehouse") as wh:
        yield wh


def _events(folder: Path, name: str, *rows: Any) -> list[int]:
    """Append events to a file, and return the places where they begin."""
    folder.mkdir(parents=True, exist_ok=True)
    places = []
    with (folder / name).open("a") as file:
        for row in rows:
            places.append(file.tell())
            file.write((row if isinstance(row, str) else json.dumps(row)) + "\n")
    return places


def _change(op: str, lsn: int, row: dict[str, Any]) -> dict[str, Any]:
    images = {"before": row if op == "d" else None, "after": None if op == "d" else row}
    return {"op": op, **images, "source": {"schema": "public", "table": "t", "lsn": lsn}}


def _aside(wh: Warehouse) -> list[tuple[str, str]]:
    return [(e.place, e.cause) for e in FlowCatalog(internals(wh).catalog).set_aside()]


def _rows(wh: Warehouse, table: str = "t") -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in contents(wh, table)]


# -- values that the target cannot hold ------------------------------------------------------------

_NARROW = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(3), k SMALLINT)"
_FLOWS = {
    "without a sequence": "s.public.t KEYS (id)",
    "with columns of its own": "s.public.t (id BIGINT, v STRING, k BIGINT) KEYS (id)",
    "with a sequence": "s.public.t (id INT, v STRING, k BIGINT) KEYS (id) SEQUENCE BY k",
    "that ignores NULL": "s.public.t (id INT, v STRING, k BIGINT) KEYS (id) IGNORE NULL UPDATES",
}


def _row(key: int, v: str, k: int = 1) -> dict[str, Any]:
    return {"id": key, "v": v, "k": k}


def _feed(wh: Warehouse, folder: Path, flow: str, on_error: str) -> list[int]:
    """A flow into narrow columns, and four events of which the second and the third do not fit."""
    wh.sql(_NARROW)
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}', 'on error' '{on_error}')")
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM {flow}")
    good, after = _row(1, "a"), _row(4, "b  ")
    bad = _row(2, "long"), _row(3, "c", 2**40 if "BIGINT" in flow else 1)
    long = bad[1] if "BIGINT" in flow else _row(3, "longer")
    return _events(folder, "1", *(_change("c", n, r) for n, r in enumerate((good, bad[0], long, after), 1)))


@pytest.mark.parametrize("flow", _FLOWS.values(), ids=_FLOWS)
def test_what_the_target_cannot_hold_is_set_aside(wh: Warehouse, tmp_path: Path, flow: str) -> None:
    places = _feed(wh, tmp_path / "e", flow, "quarantine")
    for _ in range(2):
        wh.sql("REFRESH FLOW f")
        assert _rows(wh) == [(1, "a", 1), (4, "b  ", 1)]
        aside = _aside(wh)
        assert [place for place, _ in aside] == [f"1 at byte {place}" for place in places[1:3]]
        assert "column v of t: 'long' is longer than varchar(3)" in aside[0][1]
    _events(tmp_path / "e", "1", _change("d", 9, _row(1, "a")))
    wh.sql("REFRESH FLOW f")
    assert [row[0] for row in _rows(wh)] == [4]


@pytest.mark.parametrize("flow", _FLOWS.values(), ids=_FLOWS)
def test_what_the_target_cannot_hold_stops_a_flow_behind_what_came_before(
    wh: Warehouse, tmp_path: Path, flow: str
) -> None:
    places = _feed(wh, tmp_path / "e", flow, "stop")
    for _ in range(2):
        with pytest.raises(CaptureFailed, match=rf"1 at byte {places[1]}: column v of t: 'long' is longer"):
            wh.sql("REFRESH FLOW f")
        assert _rows(wh) == [(1, "a", 1)]
    (state,) = wh.status().flows
    assert f"1 at byte {places[1]}" in state.warning


def test_what_a_table_cannot_hold_is_set_aside_by_a_capture_too(wh: Warehouse, tmp_path: Path) -> None:
    wh.sql(_NARROW)
    schema = internals(wh).catalog.relation("t").schema
    _events(tmp_path, "1", _change("c", 1, _row(1, "a")), _change("c", 2, _row(2, "long")))
    source = EventFiles(tmp_path / "1", "public.t", schema, Debezium(), on_error="quarantine")
    wh.capture("t", source)
    assert _rows(wh) == [(1, "a", 1)]


def test_columns_that_can_hold_no_value_are_refused_with_the_flow(wh: Warehouse, tmp_path: Path) -> None:
    wh.sql(_NARROW)
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{tmp_path}')")
    with pytest.raises(
        InvalidStatement, match="table t: its column k is smallint, which cannot hold the flow's string"
    ):
        wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t (id INT, v STRING, k STRING) KEYS (id)")


@pytest.mark.parametrize("sequence", ["", "SEQUENCE BY k"])
def test_rows_of_dumps_that_do_not_fit_leave_what_is_here(wh: Warehouse, tmp_path: Path, sequence: str) -> None:
    folder = tmp_path / "dumps" / "t"
    folder.mkdir(parents=True)
    wh.sql(_NARROW)
    wh.sql(f"CREATE SOURCE s USING CSV OPTIONS (path '{folder.parent}', 'on error' 'quarantine')")
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.t (id INT, v STRING, k INT) KEYS (id) {sequence}")
    (folder / "1.csv").write_text("id,v,k\n1,a,1\n2,b,1\n3,c,1\n")
    wh.sql("REFRESH FLOW f")
    (folder / "2.csv").write_text("id,v,k\n1,long,2\n2,x,2\n4,long,1\n5,d,1\n")
    for full in ("", "FULL"):
        wh.sql(f"REFRESH FLOW f {full}")
        assert _rows(wh) == [(1, "a", 1), (2, "x", 2), (5, "d", 1)]
        assert len(_aside(wh)) == 2
        assert all("is longer than varchar(3)" in cause for _, cause in _aside(wh))


def test_a_row_of_a_dump_that_does_not_fit_stops_a_flow(wh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "dumps" / "t"
    folder.mkdir(parents=True)
    (folder / "1.csv").write_text("id,v,k\n1,long,1\n")
    wh.sql(_NARROW)
    wh.sql(f"CREATE SOURCE s USING CSV OPTIONS (path '{folder.parent}')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.t (id INT, v STRING, k INT) KEYS (id)")
    with pytest.raises(CaptureFailed, match=r"event of s\.t, row \(id=1\): column v of t: 'long' is longer"):
        wh.sql("REFRESH FLOW f")


@pytest.mark.parametrize("type_", ["", "STORED AS SCD TYPE 2"])
def test_a_row_that_lacks_a_required_value_is_set_aside(wh: Warehouse, tmp_path: Path, type_: str) -> None:
    """With IGNORE NULL UPDATES an event may lack it, as long as the row is there."""
    ends, key = (", __START_AT INT, __END_AT INT", "id, __START_AT") if type_ else ("", "id")
    wh.sql(f"CREATE TABLE t (id INT, v STRING NOT NULL, n INT{ends}, PRIMARY KEY ({key}))")
    wh.sql(f"CREATE SOURCE s USING EVENTS OPTIONS (path '{tmp_path / 'e'}', 'on error' 'quarantine')")
    wh.sql(
        "CREATE FLOW f AS AUTO CDC INTO t FROM s.t (id INT, v STRING, n INT) KEYS (id) IGNORE NULL UPDATES "
        f"SEQUENCE BY n {type_}"
    )
    first, second = {"id": 1, "v": "a", "n": 1}, {"id": 1, "n": 2}
    places = _events(tmp_path / "e", "1", first, second, {"id": 2, "n": 3}, {"id": 3, "v": "c", "n": 4})
    wh.sql("REFRESH FLOW f")
    assert {row[:2] for row in _rows(wh)} == {(1, "a"), (3, "c")}
    ((place, cause),) = _aside(wh)
    assert place == f"1 at byte {places[2]}"
    assert "its column v is NULL, and the table requires a value" in cause


# -- deletions that cannot end a row ---------------------------------------------------------------


def _histories(wh: Warehouse, folder: Path, on_error: str) -> list[int]:
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}', 'on error' '{on_error}', 'old images' 'true')")
    flow = "s.public.t (id INT, n INT) KEYS (id) SEQUENCE BY n STORED AS SCD TYPE 2"
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM {flow}")
    changes = ("c", {"id": 1, "n": 1}), ("d", {"id": 1, "n": 1}), ("c", {"id": 2, "n": 1}), ("d", {"id": 2, "n": 3})
    return _events(folder, "1", *(_change(op, lsn, row) for lsn, (op, row) in enumerate(changes, 1)))


def test_a_deletion_that_cannot_end_a_row_is_set_aside(wh: Warehouse, tmp_path: Path) -> None:
    places = _histories(wh, tmp_path / "e", "quarantine")
    for _ in range(2):
        wh.sql("REFRESH FLOW f")
        ((place, cause),) = _aside(wh)
        assert place == f"1 at byte {places[1]}"
        assert "deletion of (id=1): its sequence is not after 1" in cause
        assert _rows(wh) == [(1, 1, 1, None), (2, 1, 1, 3)]


def test_a_deletion_that_cannot_end_a_row_stops_a_flow_behind_what_came_before(wh: Warehouse, tmp_path: Path) -> None:
    places = _histories(wh, tmp_path / "e", "stop")
    for _ in range(2):
        with pytest.raises(CaptureFailed, match=rf"1 at byte {places[1]}: deletion of \(id=1\): its sequence is not"):
            wh.sql("REFRESH FLOW f")
        assert _rows(wh) == [(1, 1, 1, None)]


# -- errors that nobody foresaw --------------------------------------------------------------------


def test_an_error_of_one_flow_never_holds_back_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = EventFiles.poll

    def poll(self: EventFiles, position: str | None) -> Any:
        if self.name == "a":
            raise ZeroDivisionError("nobody foresaw this")
        return whole(self, position)

    monkeypatch.setattr(EventFiles, "poll", poll)
    _events(tmp_path / "a", "1", {"id": 1, "n": 1})
    with freshview.connect(tmp_path / "warehouse", background=True) as wh:
        wh.sql(f"CREATE SOURCE s USING EVENTS OPTIONS (path '{tmp_path / 'a'}', poll 'every 1 second')")
        for name in ("a", "b"):
            wh.sql(f"CREATE FLOW {name} AS AUTO CDC INTO {name} FROM s.{name} (id INT, n INT) KEYS (id) SEQUENCE BY n")
        for _ in range(100):
            if _rows(wh, "b") and wh.status().flows[0].warning != "ok":
                break
            time.sleep(0.1)
        assert _rows(wh, "b") == [(1, 1)]
        assert [f.warning for f in wh.status().flows] == ["ZeroDivisionError: nobody foresaw this", "ok"]
