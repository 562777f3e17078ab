"""Expressions of flows, evaluated by something that knows three of them in place of Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.catalog.helpers import contents
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.flows import FlowCatalog
from freshview.errors import CaptureFailed, QueryFailed, SparkFailed
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.sql.dml import ROW_ID

_KNOWN: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "op = 'DELETE'": ("BOOLEAN", lambda row: row["op"] == "DELETE"),
    "op = 'TRUNCATE'": ("BOOLEAN", lambda row: row["op"] == "TRUNCATE"),
    "op = 'NULL'": ("BOOLEAN", lambda _: None),
    "n + 0": ("BIGINT", lambda row: row["n"]),
    "100 / n": ("BIGINT", lambda row: _divided(row["n"])),
    "lost / n": ("BIGINT", lambda row: _lost(row["n"])),
}


def _divided(n: int) -> int:
    if n == 0:
        raise QueryFailed("flow f", "Division by zero", "Check the values.")
    return 100 // n


def _lost(n: int) -> int:
    if n == 0:
        raise SparkFailed("flow f", "an executor was lost", "Try again.")
    return n


class _Evaluator:
    """The part of the engine that flows need, over frames that are Arrow tables."""

    def numbered(self, rows: pa.Table, _: Schema, number: str) -> pa.Table:
        return rows.append_column(number, pa.array(range(rows.num_rows), pa.int32()))

    def evaluated(self, frame: pa.Table, query: Any, _: str) -> pa.Table:
        columns: dict[str, pa.Array] = {}
        for item in query.items:
            if item == ROW_ID:
                columns[ROW_ID] = frame.column(ROW_ID)
                continue
            text, _, name = item.removeprefix("CASE WHEN TRUE THEN (").rpartition("\n) END AS ")
            type_, value = _KNOWN[text]
            columns[name] = pa.array([value(row) for row in frame.to_pylist()], parse_type(type_).arrow)
        return pa.table(columns)

    def arrow_fields(self, frame: pa.Table) -> list[pa.Field]:
        return list(frame.schema)

    def collect(self, frame: pa.Table, _: Any, __: str) -> pa.Table:
        return frame.sort_by([(ROW_ID, "descending")])  # Spark promises no order

    def schema_of(self, _: pa.Table, key: tuple[str, ...]) -> Schema:
        return Schema((Column("sequence", parse_type("BIGINT")),), key)


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    with freshview.connect(tmp_path / "warehouse") as wh:
        internals(wh).evaluate_flows_with(_Evaluator())
        yield wh


def _event(folder: Path, name: str, *events: tuple[int, str, int]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(("id", "op", "n"), event, strict=True))) for event in events]
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


def _flow(wh: Warehouse, folder: Path, clauses: str) -> None:
    wh.sql(f"CREATE SOURCE s USING EVENTS OPTIONS (path '{folder}')")
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.t (id INT, op STRING, n BIGINT) KEYS (id) {clauses}")


def _found(wh: Warehouse) -> list[tuple[int, str]]:
    return [(row["id"], row["op"]) for row in contents(wh, "t")]


@pytest.mark.parametrize("sequence", ["n", "n + 0"])
def test_a_condition_says_what_is_deleted(wh: Warehouse, tmp_path: Path, sequence: str) -> None:
    folder = tmp_path / "e"
    _event(folder, "1", (1, "a", 1), (2, "a", 1), (1, "DELETE", 5), (1, "late", 4), (2, "b", 2))
    _flow(wh, folder, f"APPLY AS DELETE WHEN op = 'DELETE' SEQUENCE BY {sequence}")
    wh.sql("REFRESH FLOW f")
    assert _found(wh) == [(2, "b")]
    _event(folder, "2", (1, "later", 6))
    wh.sql("REFRESH FLOW f")
    assert _found(wh) == [(1, "later"), (2, "b")]


def test_a_condition_that_is_null_deletes_nothing(wh: Warehouse, tmp_path: Path) -> None:
    _event(tmp_path / "e", "1", (1, "a", 1))
    _flow(wh, tmp_path / "e", "APPLY AS DELETE WHEN op = 'NULL' SEQUENCE BY n")
    wh.sql("REFRESH FLOW f")
    assert _found(wh) == [(1, "a")]


def test_a_truncation_empties_what_is_not_after_it_also_if_it_arrives_first(wh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "e"
    _event(folder, "1", (1, "a", 1), (2, "a", 2), (3, "a", 9))
    _flow(wh, folder, "APPLY AS TRUNCATE WHEN op = 'TRUNCATE' SEQUENCE BY n + 0")
    wh.sql("REFRESH FLOW f")
    _event(folder, "2", (0, "TRUNCATE", 5), (2, "new", 6))
    wh.sql("REFRESH FLOW f")
    assert _found(wh) == [(2, "new"), (3, "a")]
    _event(folder, "3", (1, "late", 4), (4, "late", 3), (5, "new", 7))
    wh.sql("REFRESH FLOW f")
    assert _found(wh) == [(2, "new"), (3, "a"), (5, "new")]


def test_a_truncation_also_removes_rows_that_were_there_before_the_flow(wh: Warehouse, tmp_path: Path) -> None:
    wh.sql("CREATE TABLE t (id INT PRIMARY KEY, op STRING, n BIGINT)")
    wh.sql("INSERT INTO t VALUES (7, 'before', 0), (8, 'before', 0)")
    _event(tmp_path / "e", "1", (1, "a", 1), (0, "TRUNCATE", 5), (8, "new", 6))
    _flow(wh, tmp_path / "e", "APPLY AS TRUNCATE WHEN op = 'TRUNCATE' SEQUENCE BY n + 0")
    wh.sql("REFRESH FLOW f")
    assert _found(wh) == [(8, "new")]


def test_a_history_ends_where_a_row_is_deleted(wh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "e"
    _event(folder, "1", (1, "a", 1), (1, "DELETE", 5), (1, "b", 3), (1, "c", 8))
    _flow(wh, folder, "APPLY AS DELETE WHEN op = 'DELETE' SEQUENCE BY n COLUMNS * EXCEPT (n) STORED AS SCD TYPE 2")
    wh.sql("REFRESH FLOW f")
    rows = [(row["op"], row["__START_AT"], row["__END_AT"]) for row in contents(wh, "t")]
    assert rows == [("a", 1, 3), ("b", 3, 5), ("c", 8, None)]


# -- expressions that fail on a row ----------------------------------------------------------------


def _numbered(wh: Warehouse, folder: Path, numbers: list[int], on_error: str, expression: str = "100 / n") -> None:
    """A flow whose sequence fails where n is 0; the key of each event is its number in the file."""
    folder.mkdir()
    rows = [{"id": i, "n": n} for i, n in enumerate(numbers)]
    (folder / "1").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wh.sql(f"CREATE SOURCE s USING EVENTS OPTIONS (path '{folder}', 'on error' '{on_error}')")
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.t (id INT, n BIGINT) KEYS (id) SEQUENCE BY {expression}")


def _ids(wh: Warehouse) -> list[int]:
    return sorted(row["id"] for row in contents(wh, "t"))


def test_an_event_on_which_an_expression_fails_is_set_aside(wh: Warehouse, tmp_path: Path) -> None:
    _numbered(wh, tmp_path / "e", [1, 2, 0, 4, 0, 5], "quarantine")
    wh.sql("REFRESH FLOW f")
    assert _ids(wh) == [0, 1, 3, 5]
    aside = FlowCatalog(internals(wh).catalog).set_aside()
    assert [(e.place, e.cause) for e in aside] == [
        (f"1 at byte {place}", "flow f: Division by zero") for place in (36, 72)
    ]


def test_an_event_on_which_an_expression_fails_stops_a_flow_at_its_place(wh: Warehouse, tmp_path: Path) -> None:
    _numbered(wh, tmp_path / "e", [1, 2, 0, 4], "stop")
    for _ in range(2):
        with pytest.raises(CaptureFailed, match="event of t, 1 at byte 36: flow f: Division by zero"):
            wh.sql("REFRESH FLOW f")
        assert _ids(wh) == [0, 1]


def test_any_number_of_events_on_which_an_expression_fails_is_set_aside(wh: Warehouse, tmp_path: Path) -> None:
    """A poll looks for so many of them, and the next one goes on behind the last."""
    numbers = [n % 2 for n in range(500)]
    _numbered(wh, tmp_path / "e", numbers, "quarantine")
    wh.sql("REFRESH FLOW f")
    assert _ids(wh) == [i for i, n in enumerate(numbers) if n]
    assert len(FlowCatalog(internals(wh).catalog).set_aside()) == 250


@pytest.mark.parametrize("on_error", ["stop", "quarantine"])
def test_of_a_row_the_events_before_the_failing_one_are_taken(wh: Warehouse, tmp_path: Path, on_error: str) -> None:
    """A flow without a sequence takes the net effect, which is that of the events that can be taken."""
    folder = tmp_path / "e"
    folder.mkdir()
    source = {"schema": "public", "table": "t"}
    changes = [("c", 1, 5), ("u", 1, 0), ("u", 1, 0), ("c", 2, 7)]
    lines = [
        json.dumps({"op": op, "before": None, "after": {"id": key, "n": n}, "source": {**source, "lsn": lsn}}) + "\n"
        for lsn, (op, key, n) in enumerate(changes, 1)
    ]
    (folder / "1").write_text("".join(lines))
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}', 'on error' '{on_error}')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t (id INT, n BIGINT) KEYS (id) APPLY AS DELETE WHEN 100 / n")
    places = [f"1 at byte {len(lines[0])}", f"1 at byte {len(lines[0] + lines[1])}"]
    if on_error == "stop":
        for _ in range(2):
            with pytest.raises(CaptureFailed, match=f"{places[0]}: flow f: Division by zero"):
                wh.sql("REFRESH FLOW f")
        assert [(r["id"], r["n"]) for r in contents(wh, "t")] == [(1, 5)]
        return
    for statement in ("REFRESH FLOW f", "REPLAY QUARANTINE f"):
        wh.sql(statement)
        assert [(r["id"], r["n"]) for r in contents(wh, "t")] == [(1, 5), (2, 7)]
        aside = FlowCatalog(internals(wh).catalog).set_aside()
        assert [(e.place, e.text) for e in aside] == [
            (p, line.strip()) for p, line in zip(places, lines[1:3], strict=True)
        ]


def test_an_event_is_not_bad_because_spark_could_not_run(wh: Warehouse, tmp_path: Path) -> None:
    _numbered(wh, tmp_path / "e", [1, 0, 2], "quarantine", "lost / n")
    with pytest.raises(SparkFailed):
        wh.sql("REFRESH FLOW f")
    assert _ids(wh) == []
    assert FlowCatalog(internals(wh).catalog).set_aside() == []
