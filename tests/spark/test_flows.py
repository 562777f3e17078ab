"""Flows on Spark: expressions over the source's rows, views over fed tables, and polling before a query."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from tests.internals import internals
from tests.spark.sessions import rows
from tests.unit.cdc.running_example import rows_of

from freshview import Warehouse
from freshview.cdc.dumps import Dumps
from freshview.errors import CaptureFailed, FreshviewError
from freshview.flows.dump_differences import DumpDifference
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

_COLUMNS = "(id INT, name STRING, city STRING, op STRING, n BIGINT)"
# The example that users of AUTO CDC know: users, cities, operations and numbers.
_EXAMPLE = [
    (124, "Raul", "Oaxaca", "INSERT", 1),
    (123, "Isabel", "Monterrey", "INSERT", 1),
    (125, "Mercedes", "Tijuana", "INSERT", 2),
    (126, "Lily", "Cancun", "INSERT", 2),
    (123, None, None, "DELETE", 6),
    (125, "Mercedes", "Guadalajara", "UPDATE", 6),
    (125, "Mercedes", "Mexicali", "UPDATE", 5),
    (123, "Isabel", "Chihuahua", "UPDATE", 5),
]


def _write(folder: Path, name: str, events: list[tuple[Any, ...]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("id", "name", "city", "op", "n")
    text = "".join(json.dumps(dict(zip(names, e, strict=True))) + "\n" for e in events)
    (folder / name).write_text(text)


@pytest.fixture
def folder(swh: Warehouse, tmp_path: Path) -> Path:
    _write(tmp_path / "events", "1", _EXAMPLE)
    swh.sql(f"CREATE SOURCE feed USING EVENTS OPTIONS (path '{tmp_path / 'events'}')")
    return tmp_path / "events"


def _flow(wh: Warehouse, clauses: str) -> None:
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO users FROM feed.users {_COLUMNS} KEYS (id) {clauses}")


def test_the_known_example_of_type_1(swh: Warehouse, folder: Path) -> None:
    _flow(swh, "APPLY AS DELETE WHEN op = 'DELETE' SEQUENCE BY n COLUMNS * EXCEPT (op, n)")
    swh.sql("CREATE MATERIALIZED VIEW cities AS SELECT city, count(*) AS c FROM users GROUP BY city")
    swh.sql("REFRESH FLOW f")
    assert rows(swh, "SELECT * FROM users") == [
        (124, "Raul", "Oaxaca"),
        (125, "Mercedes", "Guadalajara"),
        (126, "Lily", "Cancun"),
    ]
    assert len(rows(swh, "SELECT * FROM cities")) == 3
    _write(folder, "3", [(123, "Isabel", "late", "UPDATE", 4), (126, "Lily", "Oaxaca", "UPDATE", 9)])
    swh.sql("REFRESH FLOW f")
    assert rows(swh, "SELECT * FROM cities") == [("Guadalajara", 1), ("Oaxaca", 2)]
    assert swh.check("cities").ok


def test_the_known_example_of_type_2(swh: Warehouse, folder: Path) -> None:
    _flow(swh, "APPLY AS DELETE WHEN op = 'DELETE' SEQUENCE BY n COLUMNS * EXCEPT (op, n) STORED AS SCD TYPE 2")
    swh.sql("REFRESH FLOW f")
    assert folder.exists()
    assert rows(swh, "SELECT * FROM users") == [
        (123, "Isabel", "Chihuahua", 5, 6),
        (123, "Isabel", "Monterrey", 1, 5),
        (124, "Raul", "Oaxaca", 1, None),
        (125, "Mercedes", "Guadalajara", 6, None),
        (125, "Mercedes", "Mexicali", 5, 6),
        (125, "Mercedes", "Tijuana", 2, 5),
        (126, "Lily", "Cancun", 2, None),
    ]


def test_a_truncation_empties_what_is_older(swh: Warehouse, folder: Path) -> None:
    _flow(
        swh,
        "APPLY AS DELETE WHEN op = 'DELETE' APPLY AS TRUNCATE WHEN op = 'TRUNCATE' SEQUENCE BY users.n + 0 "
        "COLUMNS * EXCEPT (op, n)",
    )
    swh.sql("REFRESH FLOW f")
    _write(folder, "2", [(0, None, None, "TRUNCATE", 3), (127, "late", "x", "INSERT", 2)])
    swh.sql("REFRESH FLOW f")
    assert [row[0] for row in rows(swh, "SELECT id FROM users")] == [125]  # changed at 6
    _write(folder, "3", [(128, "new", "x", "INSERT", 4), (129, "late", "x", "INSERT", 2)])
    swh.sql("REFRESH FLOW f")
    assert sorted(row[0] for row in rows(swh, "SELECT id FROM users")) == [125, 128]


def test_a_sequence_may_be_a_struct(swh: Warehouse, folder: Path) -> None:
    assert folder.exists()
    _flow(swh, "SEQUENCE BY struct(n, op) COLUMNS (id, city)")
    swh.sql("REFRESH FLOW f")
    assert rows(swh, "SELECT city FROM users WHERE id = 125") == [("Guadalajara",)]


@pytest.mark.parametrize(
    "clauses",
    [
        "APPLY AS DELETE WHEN explode(array(false, true)) SEQUENCE BY n",
        "SEQUENCE BY explode(array(n, 7))",
        "APPLY AS DELETE WHEN explode_outer(CAST(NULL AS ARRAY<BOOLEAN>)) SEQUENCE BY n",
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_generator_gives_no_value_of_a_change(swh: Warehouse, clauses: str) -> None:
    with pytest.raises(FreshviewError, match="GENERATOR"):
        _flow(swh, clauses + " COLUMNS * EXCEPT (op, n)")


@pytest.mark.parametrize("clauses", ["APPLY AS DELETE WHEN nix = 1 SEQUENCE BY n", "SEQUENCE BY nix + 1"])
def test_a_wrong_name_is_an_error_of_create_flow(swh: Warehouse, folder: Path, clauses: str) -> None:
    assert folder.exists()
    with pytest.raises(FreshviewError, match="nix"):
        _flow(swh, clauses)
    assert swh.status().flows == ()


def test_expressions_see_the_kind_and_time_of_a_change(swh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    table = {"schema": "public", "table": "t"}
    made = {"op": "c", "after": {"id": 1, "n": 1}, "source": {**table, "lsn": 1, "ts_ms": 1000}}
    gone = {"op": "d", "before": {"id": 1}, "source": {**table, "lsn": 2, "ts_ms": 5000}}
    (folder / "1").write_text(json.dumps(made) + "\n" + json.dumps(gone) + "\n")
    swh.sql(f"CREATE SOURCE log USING DEBEZIUM OPTIONS (path '{folder}')")
    swh.sql(
        "CREATE FLOW f AS AUTO CDC INTO t FROM log.public.t (id INT, n INT) KEYS (id) "
        "SEQUENCE BY CASE WHEN _change_type = 'delete' THEN unix_seconds(_change_time) ELSE n END STORED AS SCD TYPE 2"
    )
    swh.sql("REFRESH FLOW f")
    assert rows(swh, "SELECT * FROM t") == [(1, 1, 1, 5)]


def test_a_fresh_query_polls_first(swh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "asked"
    _write(folder, "1", _EXAMPLE[:1])
    swh.sql(f"CREATE SOURCE feed USING EVENTS OPTIONS (path '{folder}', poll 'on query')")
    _flow(swh, "SEQUENCE BY n")
    swh.sql("CREATE TABLE other (id INT PRIMARY KEY)")
    swh.sql("CREATE MATERIALIZED VIEW names AS SELECT name, count(*) AS c FROM users GROUP BY name")
    swh.sql("CREATE MATERIALIZED VIEW above AS SELECT sum(c) AS total FROM names")
    assert rows(swh, "SELECT * FROM above") == [(1,)]
    _write(folder, "2", _EXAMPLE[1:3])
    assert [tuple(r) for r in swh.sql("SELECT * FROM above", freshness="any").collect()] == [(1,)]
    assert rows(swh, "SELECT * FROM other") == []
    an_hour = swh.sql("SELECT * FROM above", freshness=timedelta(hours=1)).collect()
    assert [tuple(r) for r in an_hour] == [(1,)]  # it was polled within the hour
    assert rows(swh, "SELECT * FROM above") == [(3,)]
    assert swh.check("above").ok
    (folder / "3").write_text("{bad\n{}\n")
    with pytest.raises(CaptureFailed, match="3 at byte 0"):
        swh.sql("SELECT * FROM users")
    assert len(swh.sql("SELECT * FROM users", freshness="any").collect()) == 3


def test_a_statement_that_writes_polls_what_it_reads_first(swh: Warehouse, tmp_path: Path) -> None:
    """A transaction does not: it reads what was there when it began."""
    folder = tmp_path / "asked"
    folder.mkdir()
    swh.sql(f"CREATE SOURCE feed USING EVENTS OPTIONS (path '{folder}', poll 'on query')")
    _flow(swh, "SEQUENCE BY n")
    swh.sql("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS c FROM users")
    swh.sql("CREATE TABLE seen (c BIGINT PRIMARY KEY, n BIGINT)")
    statements = (
        "INSERT INTO seen SELECT c, 0 FROM total",
        "UPDATE seen SET n = (SELECT count(*) FROM users)",
        "MERGE INTO seen USING (SELECT c FROM total) AS s ON seen.c = s.c "
        "WHEN NOT MATCHED THEN INSERT (c, n) VALUES (s.c, 9)",
        "DELETE FROM seen WHERE c = (SELECT c - 1 FROM total)",
        "DELETE FROM users WHERE city = 'x'",
    )
    expected = [[(1, 0)], [(1, 2)], [(1, 2), (3, 9)], [(1, 2)], [(1, 2)]]
    for n, (statement, found) in enumerate(zip(statements, expected, strict=True)):
        _write(folder, str(n), [(n, "a", "x", "UPSERT", 1)])
        swh.sql(statement)
        assert rows(swh, "SELECT * FROM seen") == found, statement
    assert swh.sql("SELECT * FROM users", freshness="any").collect() == []  # its own rows count too
    _write(folder, "9", [(9, "a", "x", "UPSERT", 1)])
    with swh.transaction() as transaction:
        transaction.sql("INSERT INTO seen SELECT c + 100, 0 FROM total")
    assert rows(swh, "SELECT * FROM seen") == [(1, 2), (100, 0)]


def test_sources_flows_and_quarantine_are_listed(swh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "listed"
    _write(folder, "1", _EXAMPLE)
    (folder / "2").write_text("{bad\n")
    swh.sql(f"CREATE SOURCE feed USING EVENTS OPTIONS (path '{folder}', 'on error' 'quarantine')")
    _flow(swh, "SEQUENCE BY n STORED AS SCD TYPE 2")
    swh.sql("REFRESH FLOW f")
    (source,) = swh.sql("SHOW SOURCES").collect()
    assert (source["name"], source["kind"], source["flows"]) == ("feed", "EVENTS", "f")
    (flow,) = swh.sql("SHOW FLOWS").collect()
    assert (flow["name"], flow["target"], flow["source"], flow["type"]) == ("f", "users", "feed.users", "SCD 2")
    assert (flow["quarantined"], flow["status"]) == ("1", "ok")
    (event,) = swh.sql("SHOW QUARANTINE LIKE 'f'").collect()
    assert (event["flow"], event["place"], event["text"]) == ("f", "2 at byte 0", "{bad")
    plan = [row["plan"] for row in swh.sql("EXPLAIN FLOW f").collect()]
    assert plan[0] == "flow f: feed.users into users, SCD type 2"
    assert "  remembered: table __flow_f" in plan


_TYPES = {"k": "int", "d": "double", "n": "decimal(10,2)", "at": "timestamp", "day": "date", "s": "string"}
_DUMPED = Schema(tuple(Column(name, parse_type(type_)) for name, type_ in _TYPES.items()), ("k",))


def _dump(file: Path, cells: list[tuple[Any, ...]]) -> None:
    table = rows_of(_DUMPED, *cells)
    if file.suffix == ".csv":
        pyarrow.csv.write_csv(table, file)
    elif file.suffix == ".parquet":
        pyarrow.parquet.write_table(table, file)
    else:
        file.write_text("".join(json.dumps(row, default=str) + "\n" for row in table.to_pylist()))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_spark_finds_the_difference_of_large_dumps_that_the_driver_finds(
    swh: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    moments = [None, datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)]
    numbers = [0.0, -0.0, None] if suffix == "jsonl" else [0.0, -0.0, None, float("nan")]
    day = None if suffix == "jsonl" else date(2026, 1, 1)
    rng = random.Random(suffix)
    for name in "12":
        kept = [k for k in range(60) if rng.random() < 0.7]
        values = [
            (
                k,
                rng.choice(numbers),
                Decimal(k % 3),
                rng.choice(moments),
                day,
                rng.choice(["", "a\nb", "é"]),
            )
            for k in kept
        ]
        _dump(tmp_path / f"{name}.{suffix}", values)
    compare = DumpDifference(internals(swh).catalog, internals(swh).storage, swh.engine)
    ours, theirs = Dumps(tmp_path, "t", _DUMPED), Dumps(tmp_path, "t", _DUMPED, compare=compare)
    start = ours.poll(None).position
    expected = ours.poll(start)
    monkeypatch.setattr("freshview.cdc.dumps.LARGE", 0)
    found = theirs.poll(start)
    assert found.position == expected.position
    assert expected.delta.filled == {"ins", "del", "un/uo"}
    for name in ("ins", "deleted", "un", "uo"):
        sets = [sorted(map(repr, getattr(poll.delta, name).to_pylist())) for poll in (found, expected)]
        assert sets[0] == sets[1], name
    _dump(tmp_path / f"3.{suffix}", values[:5])
    with pytest.raises(CaptureFailed, match=f"dump 3.{suffix} of t: it has 5 rows, and the dump before had"):
        theirs.poll(found.position)
    _dump(tmp_path / f"3.{suffix}", [*values, values[0]])
    with pytest.raises(CaptureFailed, match=r"the key \(k=\d+\) occurs twice"):
        theirs.poll(found.position)
