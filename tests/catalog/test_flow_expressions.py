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
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.sql.dml import ROW_ID

_KNOWN: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "op = 'DELETE'": ("BOOLEAN", lambda row: row["op"] == "DELETE"),
    "op = 'TRUNCATE'": ("BOOLEAN", lambda row: row["op"] == "TRUNCATE"),
    "op = 'NULL'": ("BOOLEAN", lambda _: None),
    "n + 0": ("BIGINT", lambda row: row["n"]),
}


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
            text, _, name = item[1:].rpartition(") AS ")
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
