"""Flows from files: AUTO CDC without Spark, exactly once whatever dies, with events that cannot be read set aside."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.helpers import contents
from tests.cli.calls import call
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.flows import FlowCatalog
from freshview.errors import (
    AlreadyExists,
    CaptureFailed,
    FreshviewError,
    InvalidStatement,
    NotFound,
)
from freshview.events import Event
from freshview.schedule.garbage import PASS_SECONDS, Garbage
from freshview.sql.statements import Show
from freshview.warehouse.show import show


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    with freshview.connect(tmp_path / "warehouse") as wh:
        yield wh


class Died(BaseException):
    """The process ends here."""


class Killer:
    """Ends the process at the n-th of the moments between poll, commit and confirmation."""

    def __init__(self, wh: Warehouse) -> None:
        self.left: int | None = None
        wh.events.listen(self._listen)

    def _listen(self, event: Event) -> None:
        if event.name in ("flow.polled", "commit.prepared", "flow.committed") and self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.left = None
                raise Died


def _events(folder: Path, name: str, *rows: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a") as file:
        for row in rows:
            file.write((row if isinstance(row, str) else json.dumps(row)) + "\n")


def _feed(wh: Warehouse, folder: Path, clauses: str = "", columns: str = "", more: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wh.sql(f"CREATE SOURCE s USING EVENTS OPTIONS (path '{folder}'{more})")
    columns = columns or "(id INT, name STRING, city STRING, n BIGINT)"
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.t {columns} KEYS (id) SEQUENCE BY n {clauses}")


def _row(key: int, name: str | None, n: int | None, city: str = "x") -> dict[str, Any]:
    return {"id": key, "name": name, "city": city, "n": n}


def _names(wh: Warehouse, table: str = "t") -> list[tuple[Any, ...]]:
    return [(row["id"], row["name"]) for row in contents(wh, table)]


# -- type 1 ----------------------------------------------------------------------------------------


def test_the_sequence_decides_and_late_changes_lose(wh: Warehouse, tmp_path: Path) -> None:
    _feed(wh, tmp_path / "e")
    _events(tmp_path / "e", "1", _row(1, "b", 20), _row(1, "a", 10), _row(2, "a", 5))
    assert wh.sql("REFRESH FLOW f").rows == 2
    assert _names(wh) == [(1, "b"), (2, "a")]
    _events(tmp_path / "e", "2", _row(1, "late", 15), _row(2, "b", 6))
    wh.sql("REFRESH FLOW f")
    assert _names(wh) == [(1, "b"), (2, "b")]
    csn = wh.status().csn
    assert wh.sql("REFRESH FLOW f").rows == 0
    assert wh.status().csn == csn


def test_columns_with_names_that_are_alike_are_two(wh: Warehouse, tmp_path: Path) -> None:
    """`ß` and `ss` are two names: what is remembered of a key is found by both."""
    wh.sql(f"CREATE SOURCE s USING EVENTS OPTIONS (path '{tmp_path / 'e'}')")
    columns = "(`ß` INT, `ss` INT, name STRING, n BIGINT)"
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.t {columns} KEYS (`ß`, `ss`) SEQUENCE BY n")
    for number, (name, n) in enumerate([("b", 20), ("late", 10)]):
        _events(tmp_path / "e", str(number), {"ß": 1, "ss": 2, "name": name, "n": n})
        wh.sql("REFRESH FLOW f")
    assert [row["name"] for row in contents(wh, "t")] == ["b"]


def test_a_statement_that_deletes_fed_rows_polls_before(wh: Warehouse, tmp_path: Path) -> None:
    """Law: it reads its target as a query does. INSERT … VALUES reads nothing, and polls nothing."""
    _feed(wh, tmp_path / "e", more=", poll 'on query'")
    _events(tmp_path / "e", "1", _row(1, "a", 1), _row(2, "a", 1))
    wh.sql("INSERT INTO t VALUES (9, 'own', 'x', 1)")
    assert _names(wh) == [(9, "own")]
    assert wh.sql("DELETE FROM t WHERE id = 1").rows == 1
    assert _names(wh) == [(2, "a"), (9, "own")]
    _events(tmp_path / "e", "2", _row(3, "a", 1))
    assert wh.sql("DELETE FROM t WHERE id = 3", freshness="any").rows == 0


def test_columns_are_chosen_and_the_target_is_created_with_them(wh: Warehouse, tmp_path: Path) -> None:
    _feed(wh, tmp_path / "e", "COLUMNS * EXCEPT (n, city)")
    _events(tmp_path / "e", "1", _row(1, "b", 20), _row(1, "a", 10))
    wh.sql("REFRESH FLOW f")
    assert contents(wh, "t") == [{"id": 1, "name": "b"}]
    assert internals(wh).catalog.relation("t").schema.key == ("id",)


def test_nulls_of_updates_are_ignored_if_asked(wh: Warehouse, tmp_path: Path) -> None:
    _feed(wh, tmp_path / "e", "IGNORE NULL UPDATES")
    _events(tmp_path / "e", "1", _row(1, "a", 1, "here"))
    wh.sql("REFRESH FLOW f")
    _events(tmp_path / "e", "2", {"id": 1, "name": None, "city": "there", "n": 2}, {"id": 1, "n": 3})
    wh.sql("REFRESH FLOW f")
    assert contents(wh, "t") == [{"id": 1, "name": "a", "city": "there", "n": 3}]


@pytest.mark.parametrize("seed", range(4))
def test_ignored_nulls_leave_the_present_rows_of_a_history(wh: Warehouse, tmp_path: Path, seed: int) -> None:
    """Type 1 has the rows that are present in type 2, in whatever order changes arrive."""
    draw, folder = random.Random(seed), tmp_path / "e"
    wh.sql(f"CREATE SOURCE s USING EVENTS OPTIONS (path '{folder}')")
    columns = "(id INT, name STRING, city STRING, n BIGINT)"
    for table, type_ in (("t", 1), ("h", 2)):
        wh.sql(
            f"CREATE FLOW {table} AS AUTO CDC INTO {table} FROM s.t {columns} KEYS (id) IGNORE NULL UPDATES "
            f"SEQUENCE BY n COLUMNS * EXCEPT (n) STORED AS SCD TYPE {type_}"
        )
    values = [None, None, "a", "b", "c"]
    for number, n in enumerate(draw.sample(range(100), 30)):
        _events(
            folder, "1", {"id": draw.randrange(3), "name": draw.choice(values), "city": draw.choice(values), "n": n}
        )
        if number % 4 == 0:
            wh.sql("REFRESH FLOW t")
            wh.sql("REFRESH FLOW h")
            present = [r for r in contents(wh, "h") if r["__END_AT"] is None]
            wanted = [{k: r[k] for k in ("id", "name", "city")} for r in present]
            assert contents(wh, "t") == sorted(wanted, key=repr), f"seed {seed}, {number}"


@pytest.mark.parametrize("seed", range(8))
def test_whatever_dies_each_event_counts_once(wh: Warehouse, tmp_path: Path, seed: int) -> None:
    """Random events arrive out of order, files are repeated, and the process dies between any two steps."""
    draw, killer, folder = random.Random(seed), Killer(wh), tmp_path / "e"
    two = seed % 2
    _feed(wh, folder, "STORED AS SCD TYPE 2" if two else "")
    numbers = draw.sample(range(1000), 60)
    events = [_row(draw.randrange(5), f"v{n}", n) for n in numbers]
    seen: list[dict[str, Any]] = []
    for round_ in range(10):
        batch = events[round_ * 6 : round_ * 6 + 6]
        _events(folder, f"{round_:02}", *batch, *(seen[:3] if draw.random() < 0.3 else []))
        seen += batch
        killer.left = draw.choice([None, 1, 2, 3])
        try:
            wh.sql("REFRESH FLOW f")
        except Died:
            killer.left = None
            wh.sql("REFRESH FLOW f")
        killer.left = None
        if two:
            want = []
            for key in {e["id"] for e in seen}:
                own = sorted({e["n"]: e for e in seen if e["id"] == key}.values(), key=lambda e: e["n"])
                ends = [e["n"] for e in own[1:]] + [None]
                want += [{**e, "__START_AT": e["n"], "__END_AT": end} for e, end in zip(own, ends, strict=True)]
        else:
            want = list({e["id"]: e for e in sorted(seen, key=lambda e: e["n"])}.values())
        assert contents(wh, "t") == sorted(want, key=repr), f"seed {seed}, round {round_}"


def test_equal_values_of_a_sequence_are_taken_in_the_order_of_arrival(wh: Warehouse, tmp_path: Path) -> None:
    _feed(wh, tmp_path / "e")
    _events(tmp_path / "e", "1", _row(1, "a", 1), _row(1, "b", 1))
    wh.sql("REFRESH FLOW f")
    assert _names(wh) == [(1, "b")]


def test_vacuum_forgets_deletions_after_the_retention(wh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "e"
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t (id INT, n INT) KEYS (id) SEQUENCE BY n")
    _events(folder, "1", _debezium("c", 1, {"id": 1, "n": 5}), _debezium("d", 2, None, {"id": 1}))
    wh.sql("REFRESH FLOW f")
    assert contents(wh, "t") == []
    assert [(r["id"], r["__SEQUENCE"], r["__DELETED"]) for r in contents(wh, "__flow_f")] == [(1, 5, True)]
    wh.vacuum()
    assert len(contents(wh, "__flow_f")) == 1
    _events(folder, "2", _debezium("c", 3, {"id": 1, "n": 4}))
    wh.sql("REFRESH FLOW f")
    assert contents(wh, "t") == []  # older than the deletion
    wh.vacuum(retention=timedelta(0))
    assert contents(wh, "__flow_f") == []


def _remembering(wh: Warehouse, folder: Path) -> None:
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t (id INT, n INT) KEYS (id) SEQUENCE BY n")
    _events(folder, "1", _debezium("c", 1, {"id": 1, "n": 5}), _debezium("d", 2, None, {"id": 1}))
    wh.sql("REFRESH FLOW f")


def test_the_background_and_the_command_forget_deletions_too(wh: Warehouse, tmp_path: Path) -> None:
    _remembering(wh, tmp_path / "e")
    here = internals(wh)
    clock = [0.0]
    more = {"retention": timedelta(0), "clock": lambda: clock[0]}
    garbage = Garbage(here.catalog, here.storage, wh.events, lambda: False, here.flows.forget, **more)  # type: ignore[arg-type]
    clock[0] = PASS_SECONDS
    assert garbage.turn() is not None
    assert contents(wh, "__flow_f") == []
    _events(tmp_path / "e", "2", _debezium("c", 3, {"id": 2, "n": 5}), _debezium("d", 4, None, {"id": 2}))
    wh.sql("REFRESH FLOW f")
    call("vacuum", "--retain-hours", "0", "-w", wh.path)
    assert contents(wh, "__flow_f") == []


def test_vacuum_goes_on_beside_a_poll(wh: Warehouse, tmp_path: Path) -> None:
    """What the poll writes is left to the next vacuum."""
    _remembering(wh, tmp_path / "e")
    _events(tmp_path / "e", "2", _debezium("c", 3, {"id": 1, "n": 9}))
    events = iter(["polls"])

    def meanwhile(event: Event) -> None:
        if event.name == "commit.prepared" and next(events, ""):
            wh.sql("REFRESH FLOW f")

    wh.events.listen(meanwhile)
    wh.vacuum(retention=timedelta(0))
    assert next(events, "") == ""
    assert [(r["id"], r["__DELETED"]) for r in contents(wh, "__flow_f")] == [(1, False)]


# -- type 2 ----------------------------------------------------------------------------------------


def test_a_history_has_a_row_per_period(wh: Warehouse, tmp_path: Path) -> None:
    _feed(wh, tmp_path / "e", "COLUMNS * EXCEPT (n) STORED AS SCD TYPE 2 TRACK HISTORY ON * EXCEPT (city)")
    _events(tmp_path / "e", "1", _row(1, "a", 1), _row(1, "b", 9))
    wh.sql("REFRESH FLOW f")
    _events(tmp_path / "e", "2", _row(1, "late", 5, "y"), _row(1, "b", 12, "moved"))
    wh.sql("REFRESH FLOW f")
    rows = [(r["name"], r["city"], r["__START_AT"], r["__END_AT"]) for r in contents(wh, "t")]
    assert sorted(rows, key=lambda r: r[2]) == [("a", "x", 1, 5), ("late", "y", 5, 9), ("b", "moved", 9, None)]
    assert internals(wh).catalog.relation("t").schema.key == ("id", "__START_AT")


def test_a_reported_deletion_ends_the_row_at_its_time_or_is_refused(wh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "e"
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}')")
    columns = "(id INT, ts TIMESTAMP, n INT)"
    for name, sequence in (("times", "ts"), ("numbers", "n")):
        wh.sql(
            f"CREATE FLOW {name} AS AUTO CDC INTO {name} FROM s.public.t {columns} KEYS (id) SEQUENCE BY {sequence} "
            "STORED AS SCD TYPE 2"
        )
    made = _debezium("c", 1, {"id": 1, "ts": "2026-01-01T00:00:00+00:00", "n": 1})
    gone = _debezium("d", 2, None, {"id": 1})
    gone["source"]["ts_ms"] = 1_767_312_000_000  # 2026-01-02
    _events(folder, "1", made, gone)
    wh.sql("REFRESH FLOW times")
    (row,) = contents(wh, "times")
    assert (row["__START_AT"].day, row["__END_AT"].day) == (1, 2)
    with pytest.raises(
        CaptureFailed, match=r"event of public.t, 1 at byte \d+: deletion of \(id=1\): its sequence is not"
    ):
        wh.sql("REFRESH FLOW numbers")
    assert [(r["id"], r["__END_AT"]) for r in contents(wh, "numbers")] == [(1, None)]  # what came before it


def _history(wh: Warehouse, table: str) -> list[tuple[Any, ...]]:
    rows = [
        (r["name"], r["city"], r["__START_AT"].day, r["__END_AT"] and r["__END_AT"].day) for r in contents(wh, table)
    ]
    return sorted(rows, key=lambda row: row[2])


def _stamped(op: str, lsn: int, day: int, after: Any, before: Any = None) -> dict[str, Any]:
    event = _debezium(op, lsn, after, before)
    event["source"]["ts_ms"] = 1_767_225_600_000 + (day - 1) * 86_400_000  # days of January 2026
    return event


def _version(day: int, name: str, city: str) -> dict[str, Any]:
    return {"id": 1, "ts": f"2026-01-{day:02}T00:00:00+00:00", "name": name, "city": city}


def _dated(wh: Warehouse, folder: Path, kind: str, options: str = "", clauses: str = "") -> None:
    wh.sql(f"CREATE SOURCE s USING {kind} OPTIONS (path '{folder}'{options})")
    wh.sql(
        "CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t (id INT, ts TIMESTAMP, name STRING, city STRING) KEYS (id) "
        f"SEQUENCE BY ts STORED AS SCD TYPE 2 {clauses}"
    )


def test_events_that_are_repeated_leave_a_history_as_it_is(wh: Warehouse, tmp_path: Path) -> None:
    """A connector that restarts sends again what it may have sent."""
    folder, old, new = tmp_path / "e", _version(1, "a", "x"), _version(5, "b", "y")
    _dated(wh, folder, "DEBEZIUM", ", 'old images' 'true'")
    events = [_stamped("c", 1, 1, old), _stamped("d", 2, 3, None, old), _stamped("c", 3, 5, new)]
    expected = [("a", "x", 1, 3), ("b", "y", 5, None)]
    for n, part in enumerate((events[:2], events[:2], events[2:], events)):
        _events(folder, str(n), *part)
        wh.sql("REFRESH FLOW f")
        assert _history(wh, "t") == (expected if n > 1 else expected[:1])


def test_a_repeated_deletion_without_a_place_in_the_log_leaves_a_history_as_it_is(
    wh: Warehouse, tmp_path: Path
) -> None:
    folder, old, new = tmp_path / "e", _version(1, "a", "x"), _version(5, "b", "y")
    _dated(wh, folder, "CANAL")

    def event(kind: str, day: int, row: dict[str, Any]) -> dict[str, Any]:
        at = 1_767_225_600_000 + (day - 1) * 86_400_000
        return {"database": "public", "table": "t", "type": kind, "es": at, "data": [row]}

    events = [event("INSERT", 1, old), event("DELETE", 3, old), event("INSERT", 5, new)]
    for n, part in enumerate((events[:2], events[:2], events[2:], events)):
        _events(folder, str(n), *part)
        wh.sql("REFRESH FLOW f")
    assert _history(wh, "t") == [("a", "x", 1, 3), ("b", "y", 5, None)]


def test_a_deleted_row_keeps_the_last_value_of_what_is_not_tracked(wh: Warehouse, tmp_path: Path) -> None:
    folder, old, new = tmp_path / "e", _version(1, "a", "x"), _version(2, "a", "moved")
    _dated(wh, folder, "DEBEZIUM", ", 'old images' 'true'", "TRACK HISTORY ON (name)")
    _events(folder, "1", _stamped("c", 1, 1, old), _stamped("u", 2, 2, new, old), _stamped("d", 3, 4, None, new))
    wh.sql("REFRESH FLOW f")
    assert _history(wh, "t") == [("a", "moved", 1, 4)]


# -- without a sequence ----------------------------------------------------------------------------


def _debezium(op: str, lsn: int, after: Any, before: Any = None, table: str = "t") -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"schema": "public", "table": table, "lsn": lsn}}


def test_a_log_needs_no_sequence(wh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "e"
    _events(folder, "1", _debezium("c", 1, {"id": 1, "name": "a"}), _debezium("c", 2, {"id": 2, "name": "a"}))
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}')")
    wh.sql("CREATE TABLE t (id INT PRIMARY KEY, name STRING)")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t KEYS (id)")
    wh.sql("REFRESH FLOW f")
    _events(folder, "2", _debezium("u", 3, {"id": 1, "name": "b"}), _debezium("d", 4, None, {"id": 2}))
    assert wh.sql("REFRESH FLOW f").rows == 2
    assert _names(wh) == [(1, "b")]
    assert internals(wh).catalog.find("__flow_f") is None  # nothing has to be remembered


def test_dumps_are_taken_one_after_the_other(wh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "dumps" / "customer"
    folder.mkdir(parents=True)
    (folder / "1.csv").write_text("id,name\n1,a\n2,b\n3,c\n")
    (folder / "2.csv").write_text("id,name\n1,a\n2,x\n")
    (folder / "ignored.json").write_text("{}")
    wh.sql(f"CREATE SOURCE erp USING CSV OPTIONS (path '{folder.parent}')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM erp.customer (id INT, name STRING) KEYS (id)")
    wh.sql("REFRESH FLOW f")
    assert _names(wh) == [(1, "a"), (2, "x")]


def test_a_full_refresh_has_the_rows_of_the_source_also_if_later_ones_were_taken(wh: Warehouse, tmp_path: Path) -> None:
    """A server that failed over, or a dump that was taken anew, may lack changes that arrived here."""
    folder = tmp_path / "dumps" / "t"
    folder.mkdir(parents=True)
    (folder / "1.csv").write_text("id,name,n\n1,lost,9\n2,b,2\n3,gone,3\n")
    wh.sql(f"CREATE SOURCE erp USING CSV OPTIONS (path '{folder.parent}')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM erp.t (id INT, name STRING, n INT) KEYS (id) SEQUENCE BY n")
    wh.sql("REFRESH FLOW f")
    (folder / "1.csv").write_text("id,name,n\n1,a,5\n2,b,2\n")
    wh.sql("REFRESH FLOW f FULL")
    assert _names(wh) == [(1, "a"), (2, "b")]
    (folder / "2.csv").write_text("id,name,n\n1,next,6\n2,late,1\n3,late,2\n")
    wh.sql("REFRESH FLOW f")
    assert _names(wh) == [(1, "next"), (2, "b")]


def test_a_full_refresh_writes_the_difference(wh: Warehouse, tmp_path: Path) -> None:
    folder = tmp_path / "dumps" / "t"
    folder.mkdir(parents=True)
    (folder / "1.csv").write_text("id,name\n1,a\n2,b\n")
    wh.sql(f"CREATE SOURCE erp USING CSV OPTIONS (path '{folder.parent}')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM erp.t (id INT, name STRING) KEYS (id)")
    wh.sql("REFRESH FLOW f")
    with wh.transaction() as tx:
        tx.upsert("t", [{"id": 1, "name": "changed here"}, {"id": 9, "name": "added here"}])
    assert wh.sql("REFRESH FLOW f").rows == 0
    assert wh.sql("REFRESH FLOW f FULL").rows == 2
    assert _names(wh) == [(1, "a"), (2, "b")]


def _dumps(wh: Warehouse, folder: Path, columns: str, clauses: str = "") -> Path:
    (folder / "t").mkdir(parents=True)
    wh.sql(f"CREATE SOURCE erp USING CSV OPTIONS (path '{folder}')")
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM erp.t ({columns}) KEYS (id) {clauses}")
    return folder / "t"


def test_a_full_refresh_never_goes_back_to_older_dumps(wh: Warehouse, tmp_path: Path) -> None:
    folder = _dumps(wh, tmp_path / "dumps", "id INT, name STRING")
    for n, name in enumerate("abc"):
        (folder / f"{n}.csv").write_text(f"id,name\n1,{name}\n2,x\n")
    wh.sql("REFRESH FLOW f")
    with wh.transaction() as tx:
        tx.upsert("t", [{"id": 2, "name": "changed here"}])
    before = internals(wh).catalog.snapshot()
    assert wh.sql("REFRESH FLOW f FULL").rows == 1
    assert internals(wh).catalog.snapshot() == before + 1
    assert _names(wh) == [(1, "c"), (2, "x")]
    wh.sql("DROP FLOW f")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM erp.t (id INT, name STRING) KEYS (id)")
    assert wh.sql("REFRESH FLOW f").rows == 0  # a new flow over the old target


@pytest.mark.parametrize("sequence", ["", " SEQUENCE BY n", " SEQUENCE BY n STORED AS SCD TYPE 2"])
def test_a_full_refresh_holds_back_a_dump_that_was_cut_off(wh: Warehouse, tmp_path: Path, sequence: str) -> None:
    folder = _dumps(wh, tmp_path / "dumps", "id INT, n INT", sequence)
    (folder / "1.csv").write_text("id,n\n1,1\n2,1\n3,1\n")
    wh.sql("REFRESH FLOW f")
    (folder / "1.csv").write_text("")
    with pytest.raises(
        CaptureFailed, match=r"dump 1\.csv of t: it has 0 rows, and the table had 3\. .*CONFIRM '1\.csv'"
    ):
        wh.sql("REFRESH FLOW f FULL")
    assert len(contents(wh, "t")) == 3
    (folder / "1.csv").write_text("id,n\n1,2\n")
    if "TYPE 2" not in sequence:
        wh.sql("REFRESH FLOW f FULL CONFIRM '1.csv'")
        assert [row["id"] for row in contents(wh, "t")] == [1]


def test_a_history_of_dumps_ends_rows_at_the_time_of_the_poll(wh: Warehouse, tmp_path: Path) -> None:
    folder = _dumps(wh, tmp_path / "dumps", "id INT, ts TIMESTAMP", "SEQUENCE BY ts STORED AS SCD TYPE 2")
    (folder / "1.csv").write_text("id,ts\n1,2026-01-01 00:00:00Z\n2,2026-01-01 00:00:00Z\n")
    (folder / "2.csv").write_text("id,ts\n1,2026-01-01 00:00:00Z\n3,2026-01-02 00:00:00Z\n")
    begun = datetime.now(UTC)
    wh.sql("REFRESH FLOW f")
    ends = {row["id"]: row["__END_AT"] for row in contents(wh, "t")}
    assert (ends[1], ends[3]) == (None, None)
    assert ends[2] >= begun
    wh.sql("REFRESH FLOW f FULL")  # from the newest dump, which has the row 3
    assert {row["id"]: row["__END_AT"] for row in contents(wh, "t")} == ends


def test_a_deletion_of_an_event_without_a_time_ends_a_row_at_the_time_of_the_poll(
    wh: Warehouse, tmp_path: Path
) -> None:
    _dated(wh, tmp_path / "e", "DEBEZIUM")
    _events(tmp_path / "e", "1", _debezium("c", 1, _version(1, "a", "x")), _debezium("d", 2, None, {"id": 1}))
    wh.sql("REFRESH FLOW f")
    (row,) = contents(wh, "t")
    assert row["__END_AT"].year >= datetime.now(UTC).year


# -- quarantine ------------------------------------------------------------------------------------


def _quarantine(wh: Warehouse) -> list[tuple[str, str]]:
    return [(e.place, e.text) for e in FlowCatalog(internals(wh).catalog).set_aside()]


def test_bad_events_are_set_aside_once_and_replayed(wh: Warehouse, tmp_path: Path) -> None:
    folder, killer = tmp_path / "e", Killer(wh)
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}', 'on error' 'quarantine')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t (id INT, name STRING) KEYS (id)")
    added = _debezium("u", 2, {"id": 1, "name": "new", "extra": 1})
    _events(folder, "1", _debezium("c", 1, {"id": 1, "name": "a"}), added, "{bad", _debezium("d", 3, None, None))
    _events(folder, "1", _debezium("c", 4, {"id": 2, "name": "b"}), _debezium("c", 5, {}, table="other"))
    for moment in (1, 2, 3):
        killer.left = moment
        with pytest.raises(Died):
            wh.sql("REFRESH FLOW f")
    wh.sql("REFRESH FLOW f")
    assert _names(wh) == [(1, "a"), (2, "b")]
    places = [place for place, _ in _quarantine(wh)]
    assert len(places) == len(set(places)) == 3
    assert _quarantine(wh)[1][1] == "{bad"
    lines = (folder / "1").read_text().splitlines()
    lines[1] = json.dumps(_debezium("u", 2, {"id": 1, "name": "new"}))
    (folder / "1").write_text("".join(f"{line}\n" for line in lines))
    wh.sql("REPLAY QUARANTINE f")
    assert _names(wh) == [(1, "new"), (2, "b")]
    assert len(_quarantine(wh)) == 2
    assert wh.sql("CLEAR QUARANTINE f").rows == 2
    assert _quarantine(wh) == []


def test_quarantine_never_wedges_a_stream(wh: Warehouse, tmp_path: Path) -> None:
    """NULL in a key or a NOT NULL column, a late event, and changes that contradict each other are all set aside."""
    folder = tmp_path / "e"
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}', 'on error' 'quarantine')")
    wh.sql("CREATE TABLE t (id INT PRIMARY KEY, name STRING NOT NULL)")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t KEYS (id)")
    bad = [_debezium("c", 2, {"id": None, "name": "a"}), _debezium("c", 3, {"id": 3, "name": None})]
    again = _debezium("c", 5, {"id": 1, "name": "again"})
    _events(folder, "1", _debezium("c", 2, {"id": 1, "name": "a"}), *bad, again)
    wh.sql("REFRESH FLOW f")
    _events(folder, "2", _debezium("c", 1, {"id": 4, "name": "late"}), _debezium("c", 6, {"id": 6, "name": "b"}))
    wh.sql("REFRESH FLOW f")
    assert _names(wh) == [(1, "a"), (6, "b")]
    causes = [e.cause for e in FlowCatalog(internals(wh).catalog).set_aside()]
    wanted = ("id is NULL", "name is NULL", "exists already", "is before 5")
    assert len(causes) == 4
    assert all(part in cause for part, cause in zip(wanted, causes, strict=True)), causes


def test_threads_that_poll_one_flow_take_turns(wh: Warehouse, tmp_path: Path) -> None:
    _feed(wh, tmp_path / "e")
    _events(tmp_path / "e", "1", *(_row(i, "a", i) for i in range(50)))
    threads = [threading.Thread(target=wh.sql, args=("REFRESH FLOW f",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(_names(wh)) == 50
    assert wh.status().csn == 2


def test_a_replay_never_brings_back_an_older_state(wh: Warehouse, tmp_path: Path) -> None:
    """A file repeats an event that was superseded before the place of the bad one."""
    folder = tmp_path / "e"
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}', 'on error' 'quarantine')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t (id INT, name STRING) KEYS (id)")
    old = _debezium("c", 1, {"id": 1, "name": "old"})
    _events(folder, "1", old, _debezium("u", 2, {"id": 1, "name": "new"}))
    _events(folder, "2", "{bad", old, _debezium("c", 3, {"id": 2, "name": "b"}))
    wh.sql("REFRESH FLOW f")
    wh.sql("REPLAY QUARANTINE f")
    assert _names(wh) == [(1, "new"), (2, "b")]
    assert len(_quarantine(wh)) == 1


def test_a_row_without_a_sequence_is_set_aside_or_stops(wh: Warehouse, tmp_path: Path) -> None:
    _feed(wh, tmp_path / "e", more=", 'on error' 'quarantine'")
    _events(tmp_path / "e", "1", _row(1, "a", None), _row(2, "b", 2))
    wh.sql("REFRESH FLOW f")
    assert _names(wh) == [(2, "b")]
    assert [place for place, _ in _quarantine(wh)] == ["1 at byte 0"]
    wh.sql("DROP FLOW f")
    wh.sql(f"CREATE SOURCE strict USING EVENTS OPTIONS (path '{tmp_path / 'e'}')")
    wh.sql(
        "CREATE FLOW g AS AUTO CDC INTO u FROM strict.t (id INT, name STRING, city STRING, n BIGINT) "
        "KEYS (id) SEQUENCE BY n"
    )
    with pytest.raises(CaptureFailed, match=r"event of t, 1 at byte 0: SEQUENCE BY n is NULL"):
        wh.sql("REFRESH FLOW g")


def test_a_stopped_stream_goes_on_where_it_stopped(wh: Warehouse, tmp_path: Path) -> None:
    """A column appears at the source: what came before is taken; the flow goes on once the table has the column."""
    folder = tmp_path / "e"
    _events(folder, "1", _debezium("c", 1, {"id": 1, "name": "a"}), _debezium("c", 2, {"id": 2, "name": "b", "x": 7}))
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}')")
    wh.sql("CREATE TABLE t (id INT PRIMARY KEY, name STRING)")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t KEYS (id)")
    with pytest.raises(CaptureFailed, match=r"1 at byte .* it has the column x"):
        wh.sql("REFRESH FLOW f")
    assert _names(wh) == [(1, "a")]
    wh.sql("ALTER TABLE t ADD COLUMN x INT")
    wh.sql("REFRESH FLOW f")
    assert [(r["id"], r["x"]) for r in contents(wh, "t")] == [(1, None), (2, 7)]
    (state,) = wh.status().flows
    assert state.warning == "ok"


def test_an_error_is_kept_until_a_poll_succeeds(wh: Warehouse, tmp_path: Path) -> None:
    _feed(wh, tmp_path / "e")
    _events(tmp_path / "e", "1", "{bad")
    _events(tmp_path / "e", "2", _row(1, "a", 1))
    with pytest.raises(CaptureFailed):
        wh.sql("REFRESH FLOW f")
    (state,) = wh.status().flows
    assert "1 at byte 0" in state.warning
    assert "1 at byte 0" in str(wh.status())


@pytest.mark.parametrize(
    ("options", "sees"),
    [
        ({"capture": "audit", "changed": "c"}, False),
        ({"capture": "AUDIT", "changed": "c", "inserted": "i"}, False),
        ({"capture": "audit", "changed": "c", "never": "Deletions"}, True),
        ({"capture": "audit", "changed": "c", "inserted": "i", "deleted": "d"}, True),
        ({"capture": "tracking"}, True),
    ],
)
def test_a_flow_that_sees_no_deletions_is_shown_as_such(wh: Warehouse, options: dict[str, str], sees: bool) -> None:
    """From the catalog alone: the server is not asked."""
    catalog = internals(wh).catalog
    wh.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    records = FlowCatalog(catalog)
    source = records.create_source("crm", "POSTGRES", {"url": "host=nowhere", **options})
    spec = {"source": "crm", "table": "public.t", "scd_type": 1}
    records.create_flow("f", catalog.relation("t").id, source.id, spec, None)
    (row,) = show(catalog, Show("flows")).rows
    told = (
        "deletions at the source are not seen (capture 'audit' sees them by 'deleted'; never 'deletions' declares none)"
    )
    assert row[-1] == ("ok" if sees else told)


# -- polling ---------------------------------------------------------------------------------------


def test_the_background_polls_when_it_is_time(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    with freshview.connect(tmp_path / "warehouse", background=True) as wh:
        _feed(wh, folder, more=", poll 'every 1 second'")
        _events(folder, "1", _row(1, "a", 1))
        for _ in range(100):
            if _names(wh):
                break
            time.sleep(0.1)
        assert _names(wh) == [(1, "a")]


# -- definitions -----------------------------------------------------------------------------------


_DEBEZIUM = "CREATE SOURCE s USING DEBEZIUM OPTIONS (path '/nowhere')"


@pytest.mark.parametrize(
    ("flow", "error", "message"),
    [
        ("INTO t FROM other.t KEYS (id)", NotFound, "source other"),
        ("INTO t FROM s.public.t KEYS (nix)", NotFound, "column nix"),
        ("INTO new FROM s.public.t KEYS (id)", InvalidStatement, "files do not list its columns"),
        ("INTO t FROM s.public.t (id INT, a INT) KEYS (id)", InvalidStatement, "the flow has no column name"),
        (
            "INTO t FROM s.public.t (id INT, name STRING, b INT) KEYS (id)",
            InvalidStatement,
            "the table has no column b",
        ),
        ("INTO t FROM s.public.t KEYS (name)", InvalidStatement, r"its primary key is \(id\)"),
        ("INTO t FROM s.public.t KEYS (id) COLUMNS * EXCEPT (id)", InvalidStatement, "key id is not among its columns"),
        ("INTO t FROM s.public.t KEYS (id) COLUMNS (id, nix)", NotFound, "column nix"),
        ("INTO t FROM s.public.t KEYS (id) STORED AS SCD TYPE 2", InvalidStatement, "Add SEQUENCE BY"),
        ("INTO t FROM s.public.t KEYS (id) STORED AS SCD TYPE 3", InvalidStatement, "SCD TYPE is 1 or 2"),
        ("INTO t FROM s.public.t KEYS (id) TRACK HISTORY ON (name)", InvalidStatement, "SCD TYPE 2"),
        ("INTO t FROM s.public.t KEYS (id, id)", InvalidStatement, "named twice"),
        ("INTO t FROM s KEYS (id)", InvalidStatement, "names no source and table"),
        ("INTO t FROM s.public.t KEYS (id) SEQUENCE BY (SELECT 1)", InvalidStatement, "reads other rows"),
        ("INTO t FROM s.public.t KEYS (id) SEQUENCE BY name SEQUENCE BY id", InvalidStatement, "given twice"),
        ("INTO t FROM s.public.t KEYS (id) SEQUENCE BY", InvalidStatement, "an expression was expected"),
    ],
)
def test_a_flow_that_cannot_work_is_refused(
    wh: Warehouse, flow: str, error: type[FreshviewError], message: str
) -> None:
    wh.sql(_DEBEZIUM)
    wh.sql("CREATE TABLE t (id INT PRIMARY KEY, name STRING)")
    tables = [r.name for r in internals(wh).catalog.relations()]
    with pytest.raises(error, match=message):
        wh.sql(f"CREATE FLOW f AS AUTO CDC {flow}")
    assert FlowCatalog(internals(wh).catalog).flows() == []
    assert [r.name for r in internals(wh).catalog.relations()] == tables


def test_events_without_an_order_need_a_sequence(wh: Warehouse) -> None:
    wh.sql("CREATE SOURCE s USING EVENTS OPTIONS (path '/nowhere')")
    with pytest.raises(InvalidStatement, match="events without an order of their own"):
        wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.t (id INT) KEYS (id)")


def test_what_a_flow_uses_cannot_be_dropped_before_it(wh: Warehouse, tmp_path: Path) -> None:
    _feed(wh, tmp_path / "e")
    with pytest.raises(AlreadyExists, match="flow f: exists already"):
        wh.sql("CREATE FLOW F AS AUTO CDC INTO other FROM s.t (id INT, n INT) KEYS (id) SEQUENCE BY n")
    with pytest.raises(AlreadyExists, match="feeds that table already"):
        wh.sql("CREATE FLOW g AS AUTO CDC INTO t FROM s.t KEYS (id) SEQUENCE BY n")
    assert internals(wh).catalog.find("__flow_g") is None
    for text in ("DROP TABLE t", "DROP TABLE __flow_f"):
        with pytest.raises(InvalidStatement, match="flow f writes it"):
            wh.sql(text)
    with pytest.raises(InvalidStatement, match="flow f reads it"):
        wh.sql("DROP SOURCE s")
    with pytest.raises(InvalidStatement, match="is what flow f remembers of its changes, and written by the flow"):
        wh.transaction().delete("__flow_f", [1])
    wh.sql("DROP SOURCE s CASCADE")
    assert FlowCatalog(internals(wh).catalog).flows() == []
    assert internals(wh).catalog.find("__flow_f") is None
    wh.sql("DROP TABLE t")


def test_a_flow_of_another_process_is_taken_up(tmp_path: Path) -> None:
    with freshview.connect(tmp_path / "warehouse") as wh:
        _feed(wh, tmp_path / "e", "COLUMNS (id, name) STORED AS SCD TYPE 2")
        _events(tmp_path / "e", "1", _row(1, "a", 1))
        wh.sql("REFRESH FLOW f")
    _events(tmp_path / "e", "2", _row(1, "b", 2))
    with freshview.connect(tmp_path / "warehouse") as wh:
        wh.sql("REFRESH FLOW f")
        assert _names(wh) == [(1, "a"), (1, "b")]
