"""Event files: three formats, and whatever happens to files: exactly-once state, or an error with the place."""

from __future__ import annotations

import base64
import datetime
import json
import os
import random
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.cdc.applying import applied
from tests.unit.cdc.running_example import cells, rows_of, schema_of

from freshview.cdc.canal import Canal
from freshview.cdc.debezium import Debezium
from freshview.cdc.event_files import EventFiles, EventFormat
from freshview.cdc.maxwell import Maxwell
from freshview.cdc.source import Source
from freshview.errors import CaptureFailed
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

T = schema_of("id int, name string", "id")
TABLE = "public.t"


def _debezium(op: str, lsn: int, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    source = {"db": "d", "schema": "public", "table": "t", "lsn": lsn, **more}
    return {"before": before, "after": after, "op": op, "source": source, "ts_ms": 1}


def _image(key: int, name: str | None) -> dict[str, Any]:
    return {"id": key, "name": name}


def _write(file: Path, *documents: Any) -> Path:
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as stream:
        stream.writelines(json.dumps(d) + "\n" for d in documents)
    return file


def _source(path: Path, format: EventFormat | None = None, **options: Any) -> Source:
    return EventFiles(path, TABLE, T, format or Debezium(old_images=True), **options)


class _Reader:
    """A consumer that stores rows and the position together."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.rows = source.schema.arrow.empty_table()
        self.position: str | None = None

    def poll(self) -> frozenset[str]:
        poll = self.source.poll(self.position)
        self.rows, self.position = applied(self.rows, poll.delta), poll.position
        return poll.delta.filled


# -- Debezium --------------------------------------------------------------------------------------------------------


def test_debezium_with_old_images_delivers_complete_sets(tmp_path: Path) -> None:
    file = _write(
        tmp_path / "e.json",
        _debezium("r", 1, None, _image(1, "a"), snapshot="true"),
        _debezium("c", 2, None, _image(2, "b")),
        _debezium("c", 3, None, _image(3, "c")),
    )
    reader = _Reader(_source(file))
    assert reader.poll() == {"ups", "ins"}  # a row of a snapshot may have been there before
    _write(
        file,
        _debezium("u", 4, _image(1, "a"), _image(1, "z")),
        _debezium("d", 5, _image(2, "b")),
        None,
        _debezium("u", 6, _image(3, "c"), _image(4, "c")),
    )
    assert reader.poll() == {"un/uo", "del", "ins"}  # the changed key 3 → 4 is a deletion and an insertion
    assert cells(reader.rows) == [(1, "z"), (4, "c")]
    assert reader.poll() == frozenset()


def test_debezium_without_old_images_delivers_partial_sets(tmp_path: Path) -> None:
    """Its "before" is the key beside NULLs, which must not pass for an image."""
    file = _write(tmp_path / "e.json", *(_debezium("c", n, None, _image(n, "a")) for n in (1, 2, 3)))
    reader = _Reader(_source(file, Debezium()))
    reader.poll()
    _write(
        file,
        _debezium("u", 4, None, _image(1, "z")),
        _debezium("d", 5, _image(2, None)),
        _debezium("u", 6, _image(3, None), _image(4, "moved")),
    )
    assert reader.poll() == {"up", "delk", "ins"}
    assert cells(reader.rows) == [(1, "z"), (4, "moved")]


def test_a_key_of_the_message_serves_for_a_deletion(tmp_path: Path) -> None:
    file = _write(tmp_path / "e.json", _debezium("c", 1, None, _image(1, "a")))
    reader = _Reader(_source(file, Debezium()))
    reader.poll()
    _write(file, {"key": {"payload": {"id": 1}}, "value": _debezium("d", 2)}, {"key": {"id": 1}, "value": None})
    assert reader.poll() == {"delk"}


def test_transaction_metadata_and_other_tables_change_nothing(tmp_path: Path) -> None:
    file = _write(
        tmp_path / "e.json",
        {"status": "BEGIN", "id": "571", "ts_ms": 1},
        {"schema": {}, "payload": {"status": "END", "id": "571", "event_count": 1}},
        _debezium("c", 1, None, {"other": 1}, table="unknown"),
        _debezium("m", 2),
        _debezium("c", 3, None, _image(1, "a")),
    )
    poll = _source(file).poll(None)
    assert poll.delta.num_changes == 1
    assert poll.skipped == {"public.unknown": 1}


_TYPES = schema_of("id bigint, d date, t timestamp_ntz, z timestamp, b binary, ok boolean, s string", "id")


def test_the_schema_part_gives_logical_types(tmp_path: Path) -> None:
    logical = {
        "d": ("int32", "io.debezium.time.Date"),
        "t": ("int64", "io.debezium.time.MicroTimestamp"),
        "z": ("string", "io.debezium.time.ZonedTimestamp"),
        "b": ("bytes", None),
    }
    fields = [{"field": c, "type": type_, "name": name} for c, (type_, name) in logical.items()]
    moment = datetime.datetime(2020, 5, 17, 1, 2, 3, 456789)
    micros = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    after = {
        "id": 2**60,
        "d": 18_399,
        "t": micros,
        "z": "2020-05-17T01:02:03.456789Z",
        "b": base64.b64encode(b"\x00\xff").decode(),
        "ok": True,
        "s": "12.50",
    }
    schema_part = {"fields": [{"field": "after", "fields": fields}]}
    file = _write(tmp_path / "e.json", {"schema": schema_part, "payload": _debezium("c", 1, None, after)})
    poll = EventFiles(file, TABLE, _TYPES, Debezium()).poll(None)
    zoned = moment.replace(tzinfo=datetime.UTC)
    assert poll.delta.ins.to_pylist() == [
        {
            "id": 2**60,
            "d": datetime.date(2020, 5, 17),
            "t": moment,
            "z": zoned,
            "b": b"\x00\xff",
            "ok": True,
            "s": "12.50",
        }
    ]


@pytest.mark.parametrize(
    ("field", "given", "number"),
    [
        ({"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}, "/7A=", "-0.80"),
        ({"name": "io.debezium.data.VariableScaleDecimal"}, {"scale": 1, "value": "BNI="}, "123.4"),
        ({"name": None}, "12.5", "12.5"),
        (None, "-3", "-3"),
        (None, 12.25, "12.25"),
    ],
)
def test_decimals_are_exact(tmp_path: Path, field: dict[str, Any] | None, given: Any, number: str) -> None:
    schema = Schema((Column("id", parse_type("INT")), Column("n", parse_type("DECIMAL(9,2)"))), ("id",))
    part = {"fields": [{"field": "after", "fields": [{"field": "n", **field}]}]} if field else {}
    event = _debezium("c", 1, None, {"id": 1, "n": given})
    file = _write(tmp_path / "e.json", {"schema": part, "payload": event} if part else event)
    assert EventFiles(file, TABLE, schema, Debezium()).poll(None).delta.ins.column("n").to_pylist() == [Decimal(number)]


def _polled_to_the_end(source: Source) -> None:
    """What comes before a bad event is delivered, if nothing after it is earlier; the next poll fails."""
    first = source.poll(None)
    assert cells(first.delta.ins) == [(5, "good")]
    source.poll(first.position)


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        ("{broken", "it is no JSON"),
        ("[1]", "it is no JSON object"),
        (_debezium("d", 1), "it names no row: neither an image nor the key column id is there"),
        (_debezium("t", 1), "the table was truncated"),
        (_debezium("x", 1), "its operation 'x' is not known"),
        (_debezium("u", 1, None, None), "it has no image 'after'"),
        (_debezium("c", 1, None, {"id": 1, "name": "a", "new": 1}), "it has the column new, which the table does not"),
        (_debezium("c", 1, None, {"id": 1}), "it lacks the column name (was it dropped at the source?)"),
        (_debezium("c", 1, None, {"id": "one", "name": "a"}), "its column id has 'one', which is no int"),
        (_debezium("c", 1, None, {"id": 1, "name": "__debezium_unavailable_value"}), "REPLICA IDENTITY FULL"),
        ({"op": "c", "source": {}}, "its source names no table"),
        ({"id": 1, "name": "unwrapped"}, "it has no operation"),
        (_debezium("u", 1, "text", _image(1, "a")), "it has not the form of such an event"),
        (
            {**_debezium("c", 1, None, _image(1, "a")), "source": {"schema": "public", "table": "t", "lsn": "x"}},
            "no LSN",
        ),
    ],
)
def test_a_bad_event_stops_with_its_place_or_is_set_aside(tmp_path: Path, event: Any, cause: str) -> None:
    good = json.dumps(_debezium("c", 5, None, _image(5, "good")))
    bad = event if isinstance(event, str) else json.dumps(event)
    file = tmp_path / "e.json"
    file.write_text(f"{good}\n{bad}\n" + json.dumps(_debezium("c", 6, None, _image(6, "after"))) + "\n")
    with pytest.raises(CaptureFailed) as raised:
        _polled_to_the_end(_source(file, Debezium()))
    assert cause in str(raised.value)
    assert f"event of public.t, e.json at byte {len(good) + 1}" in str(raised.value)
    poll = _source(file, Debezium(), on_error="quarantine").poll(None)
    assert cells(poll.delta.ins) == [(5, "good"), (6, "after")]
    (aside,) = poll.quarantined
    assert cause in aside.cause
    assert (aside.text, aside.place) == (bad, f"e.json at byte {len(good) + 1}")


@pytest.mark.parametrize("kind", ["true", "last", "incremental"])
def test_a_snapshot_that_is_repeated_brings_the_rows_as_they_are(tmp_path: Path, kind: str) -> None:
    first, second = _debezium("c", 1, None, _image(1, "a")), _debezium("c", 2, None, _image(2, "b"))
    file = _write(tmp_path / "e.json", first, second, _debezium("r", 3, None, _image(1, "z"), snapshot=kind))
    reader = _Reader(_source(file))
    reader.poll()
    assert cells(reader.rows) == [(1, "z"), (2, "b")]
    _write(file, _debezium("r", 4, None, _image(2, "y"), snapshot=kind))
    assert reader.poll() == {"ups"}
    assert cells(reader.rows) == [(1, "z"), (2, "y")]


@pytest.mark.parametrize(
    "message",
    [
        {"ts_ms": 1},
        {"ddl": "ALTER TABLE t", "source": {}, "tableChanges": []},
        {"id": "1", "type": "STARTED", "aggregate_type": "x"},
    ],
)
def test_a_message_that_changes_no_row_is_passed_over(tmp_path: Path, message: Any) -> None:
    file = _write(tmp_path / "e.json", message, {"schema": {}, "payload": message})
    assert _source(file).poll(None).delta.num_changes == 0


@pytest.mark.parametrize(
    "given", [base64.b64encode(b"__debezium_unavailable_value").decode(), b"__debezium_unavailable_value".hex()]
)
def test_bytes_that_were_not_sent_are_no_value(tmp_path: Path, given: str) -> None:
    schema = Schema((Column("id", parse_type("INT")), Column("b", parse_type("BINARY"))), ("id",))
    file = _write(tmp_path / "e.json", _debezium("u", 1, None, {"id": 1, "b": given}))
    with pytest.raises(CaptureFailed, match="which the database did not send"):
        EventFiles(file, TABLE, schema, Debezium()).poll(None)


@pytest.mark.parametrize("given", [["__debezium_unavailable_value"]])
def test_an_array_that_was_not_sent_is_no_value(tmp_path: Path, given: Any) -> None:
    schema = Schema((Column("id", parse_type("INT")), Column("a", parse_type("ARRAY<STRING>"))), ("id",))
    file = _write(tmp_path / "e.json", _debezium("u", 1, None, {"id": 1, "a": given}))
    with pytest.raises(CaptureFailed, match="which the database did not send"):
        EventFiles(file, TABLE, schema, Debezium()).poll(None)


_DECIMAL = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "0"}}


@pytest.mark.parametrize(
    ("type_", "number", "read"),
    [
        ("BIGINT", -2658824, -2658824),
        ("DOUBLE", -2658824, -2658824.0),
        ("STRING", -2658824, "-2658824"),
        ("DECIMAL(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
        ("DECIMAL(38,0)", -(10**37) - 1, Decimal(-(10**37) - 1)),
    ],
)
def test_an_encoded_number_is_decoded_for_any_column_and_to_the_last_digit(
    tmp_path: Path, type_: str, number: int, read: Any
) -> None:
    """The bytes of -2658824 are encoded as "1234"."""
    schema = Schema((Column("id", parse_type("INT")), Column("n", parse_type(type_))), ("id",))
    encoded = base64.b64encode(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)).decode()
    part = {"fields": [{"field": "after", "fields": [{"field": "n", **_DECIMAL}]}]}
    event = {"schema": part, "payload": _debezium("c", 1, None, {"id": 1, "n": encoded})}
    found = EventFiles(_write(tmp_path / "e.json", event), TABLE, schema, Debezium()).poll(None)
    assert found.delta.ins.column("n").to_pylist() == [read]


@pytest.mark.parametrize("type_", ["INT", "BIGINT", "DOUBLE", "DECIMAL(9,0)"])
def test_digits_that_may_be_encoded_bytes_are_refused(tmp_path: Path, type_: str) -> None:
    schema = Schema((Column("id", parse_type("INT")), Column("n", parse_type(type_))), ("id",))
    file = _write(tmp_path / "e.json", _debezium("c", 1, None, {"id": 1, "n": "1234"}))
    with pytest.raises(CaptureFailed, match="which may be a number or encoded bytes"):
        EventFiles(file, TABLE, schema, Debezium()).poll(None)


def test_texts_of_doubles_that_json_has_not_are_read(tmp_path: Path) -> None:
    schema = Schema((Column("id", parse_type("INT")), Column("n", parse_type("DOUBLE"))), ("id",))
    events = [_debezium("c", n, None, {"id": n, "n": text}) for n, text in enumerate(("Infinity", "NaN"))]
    found = EventFiles(_write(tmp_path / "e.json", *events), TABLE, schema, Debezium()).poll(None)
    assert repr(found.delta.ins.column("n").to_pylist()) == "[inf, nan]"


def _mysql(op: str, file: str, pos: int, row: int, before: Any, after: Any) -> dict[str, Any]:
    source = {"db": "public", "table": "t", "file": file, "pos": pos, "row": row}
    return {"before": before, "after": after, "op": op, "source": source}


def test_events_of_mysql_are_ordered_by_file_position_and_row(tmp_path: Path) -> None:
    first = _mysql("c", "binlog.000009", 900, 0, None, _image(1, "a"))
    second = _mysql("u", "binlog.000009", 900, 1, _image(1, "a"), _image(1, "b"))
    third = _mysql("u", "binlog.000010", 4, 0, _image(1, "b"), _image(1, "c"))
    file = _write(tmp_path / "e.json", third, first, second)
    assert cells(_source(file).poll(None).delta.ins) == [(1, "c")]


def test_the_number_of_a_binlog_file_may_grow_by_a_digit(tmp_path: Path) -> None:
    first = _mysql("c", "binlog.999999", 900, 0, None, _image(1, "a"))
    second = _mysql("u", "binlog.1000000", 4, 0, _image(1, "a"), _image(1, "b"))
    third = _mysql("u", "binlog.1000000", 70, 0, _image(1, "b"), _image(1, "c"))
    file = _write(tmp_path / "at_once.json", second, first)
    assert cells(_source(file).poll(None).delta.ins) == [(1, "b")]
    reader = _Reader(_source(_write(tmp_path / "one_by_one.json", first)))
    reader.poll()
    for event, sets in ((second, {"un/uo"}), (second, set()), (third, {"un/uo"}), (first, set())):
        _write(tmp_path / "one_by_one.json", event)
        assert reader.poll() == sets
    assert cells(reader.rows) == [(1, "c")]
    early = _mysql("c", "binlog.999999", 899, 0, None, _image(2, "a"))
    _write(tmp_path / "one_by_one.json", early)
    with pytest.raises(CaptureFailed, match=r"sequence binlog\.999999/899/0 is before binlog\.1000000/70/0"):
        reader.poll()


# -- Maxwell and Canal -----------------------------------------------------------------------------------------------


def _maxwell(kind: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    return {"database": "public", "table": "t", "type": kind, "ts": 1, "data": data, "old": old, **more}


def test_maxwell_completes_old_images_from_the_changed_columns(tmp_path: Path) -> None:
    file = _write(
        tmp_path / "e.json",
        _maxwell("bootstrap-start", {}),
        _maxwell("bootstrap-insert", _image(1, "a")),
        _maxwell("insert", _image(2, "b")),
        _maxwell("insert", _image(3, "c")),
    )
    reader = _Reader(_source(file, Maxwell()))
    assert reader.poll() == {"ins", "ups"}  # a row of a bootstrap may have been there before
    _write(
        file,
        _maxwell("update", _image(1, "z"), {"name": "a"}),
        _maxwell("update", _image(9, "b"), {"id": 2}),
        _maxwell("delete", _image(3, "c")),
    )
    poll = reader.source.poll(reader.position)
    assert cells(poll.delta.uo) == [(1, "a")]
    assert cells(poll.delta.deleted) == [(2, "b"), (3, "c")]
    assert cells(applied(reader.rows, poll.delta)) == [(1, "z"), (9, "b")]


def test_maxwell_with_positions_recognises_what_is_repeated(tmp_path: Path) -> None:
    first = _maxwell("insert", _image(1, "a"), position="bin.000001:700", xoffset=0)
    last = _maxwell("update", _image(1, "b"), {"name": "a"}, position="bin.000001:700", commit=True)
    file = _write(tmp_path / "e.json", last, first, first)
    reader = _Reader(_source(file, Maxwell()))
    assert reader.poll() == {"ins"}
    _write(file, first, last)
    assert reader.poll() == frozenset()
    assert cells(reader.rows) == [(1, "b")]


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (_maxwell("table-alter", {}), "its type 'table-alter' is no change of rows"),
        (_maxwell("insert", None), "it has no data"),
        ({"type": "insert"}, "it names no database and table"),
    ],
)
def test_maxwell_refuses_what_is_no_change_of_rows(tmp_path: Path, event: Any, cause: str) -> None:
    with pytest.raises(CaptureFailed, match=cause):
        _source(_write(tmp_path / "e.json", event), Maxwell()).poll(None)


def _canal(kind: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    return {"database": "public", "table": "t", "type": kind, "data": data, "old": old, "isDdl": False, **more}


def test_canal_has_several_rows_in_an_event_and_texts_for_values(tmp_path: Path) -> None:
    file = _write(tmp_path / "e.json", _canal("INSERT", [{"id": str(n), "name": None} for n in (1, 2, 3)]))
    reader = _Reader(_source(file, Canal()))
    assert reader.poll() == {"ins"}
    _write(
        file,
        _canal("UPDATE", [{"id": "1", "name": "z"}, {"id": "9", "name": None}], [{"name": None}, {"id": "2"}]),
        _canal("DELETE", [{"id": "3", "name": None}]),
    )
    assert reader.poll() == {"un/uo", "del", "ins"}
    assert cells(reader.rows) == [(1, "z"), (9, None)]


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (_canal("ALTER", None, isDdl=True), "its type 'ALTER' is no change of rows"),
        (_canal("INSERT", None), "it has no data"),
        (_canal("UPDATE", [{"id": "1", "name": "a"}], [{}, {}]), "it has 1 rows and 2 old ones"),
        ({"type": "INSERT"}, "it names no database and table"),
    ],
)
def test_canal_refuses_what_is_no_change_of_rows(tmp_path: Path, event: Any, cause: str) -> None:
    with pytest.raises(CaptureFailed, match=cause):
        _source(_write(tmp_path / "e.json", event), Canal()).poll(None)


# -- what happens to files -------------------------------------------------------------------------------------------


def _log(count: int) -> list[dict[str, Any]]:
    """Changes of three rows: inserted, then updated again and again."""
    events, names = [], dict.fromkeys(range(3), "")
    for n in range(count):
        key, new = n % 3, f"v{n}"
        before = _image(key, names[key]) if n >= 3 else None
        events.append(_debezium("u" if before else "c", 100 + n, before, _image(key, new)))
        names[key] = new
    return events


def test_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    first, second = (json.dumps(e) for e in _log(2))
    file = tmp_path / "e.json"
    file.write_text(first + "\n" + second[:20])
    reader = _Reader(_source(file))
    reader.poll()
    assert cells(reader.rows) == [(0, "v0")]
    file.write_text(first + "\n" + second)  # an object that is whole needs no line end
    reader.poll()
    assert cells(reader.rows) == [(0, "v0"), (1, "v1")]


def _aged(file: Path) -> None:
    """Make a file one that nobody has written to for a while."""
    at = time.time() - 3600
    os.utime(file, (at, at))


@pytest.mark.parametrize("on_error", ["stop", "quarantine"])
def test_half_a_line_in_a_file_that_grows_is_waited_for(tmp_path: Path, on_error: Any) -> None:
    """Files of a folder may all grow, as those of the partitions of a topic do."""
    first, second, third = (json.dumps(e) for e in _log(3))
    (tmp_path / "1.json").write_text(first + "\n" + second[:20])
    (tmp_path / "2.json").write_text(third + "\n")
    reader = _Reader(_source(tmp_path, on_error=on_error))
    reader.poll()
    assert cells(reader.rows) == [(0, "v0"), (2, "v2")]
    (tmp_path / "1.json").write_text(first + "\n" + second + "\n")
    poll = reader.source.poll(reader.position)
    assert poll.quarantined == ()
    assert cells(poll.delta.ins) == [(1, "v1")]


def test_files_behind_half_a_line_wait_where_nothing_else_orders_them(tmp_path: Path) -> None:
    made, changed = _canal("INSERT", [_image(1, "a")]), _canal("UPDATE", [_image(1, "b")], [{"name": "a"}])
    text = json.dumps(made)
    (tmp_path / "1.json").write_text(text[:20])
    _write(tmp_path / "2.json", changed)
    reader = _Reader(_source(tmp_path, Canal()))
    assert reader.poll() == frozenset()
    (tmp_path / "1.json").write_text(text + "\n")
    assert reader.poll() == {"ins"}
    assert cells(reader.rows) == [(1, "b")]


def test_half_a_line_in_a_file_that_others_follow_is_an_error(tmp_path: Path) -> None:
    first, second = (json.dumps(e) for e in _log(2))
    (tmp_path / "1.json").write_text(first[:20])
    _aged(tmp_path / "1.json")
    (tmp_path / "2.json").write_text(second + "\n")
    with pytest.raises(CaptureFailed, match=r"1\.json at byte 0: it is no JSON"):
        _source(tmp_path).poll(None)
    (aside,) = _source(tmp_path, on_error="quarantine").poll(None).quarantined
    assert (aside.place, aside.text) == ("1.json at byte 0", first[:20])


def test_a_directory_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    events = _log(6)
    _write(tmp_path / "in" / "2.json", *events[3:])
    _write(tmp_path / "in" / "1.json", *events[:3])
    _write(tmp_path / "in" / "_temporary.json", "x")
    reader = _Reader(_source(tmp_path / "in"))
    assert reader.poll() == {"ins"}
    (tmp_path / "in" / "1.json").unlink()  # it was delivered
    assert reader.poll() == frozenset()
    assert cells(reader.rows) == [(0, "v3"), (1, "v4"), (2, "v5")]


def test_a_poll_takes_so_many_bytes_and_the_next_goes_on(tmp_path: Path) -> None:
    _write(tmp_path / "in" / "1.json", *_log(3))
    _write(tmp_path / "in" / "2.json", *_log(6)[3:])
    reader = _Reader(_source(tmp_path / "in", max_bytes=1))
    for n in range(1, 7):
        reader.poll()
        assert f"v{n - 1}" in [v for _, v in cells(reader.rows)]
    assert reader.poll() == frozenset()


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_duplicates_replays_and_disorder_leave_the_state_exact(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Within a poll the order does not matter; what was delivered may come again, in any file, as often as it likes."""
    rng = random.Random(seed)
    folder, events, sent = tmp_path_factory.mktemp("in"), _log(12), 0
    reader = _Reader(_source(folder))
    for number in range(4):
        fresh = events[sent : sent + 3]
        again = rng.choices(events[: sent + 3], k=rng.randrange(5))
        batch = [{**e, "ts_ms": rng.randrange(99)} for e in (*fresh, *again)]  # sent again at another moment
        rng.shuffle(batch)
        _write(folder / f"{rng.choice([0, number])}.json", *batch)
        sent += 3
        reader.poll()
        expected = {e["after"]["id"]: e["after"]["name"] for e in events[:sent]}
        assert dict(cells(reader.rows)) == expected


def test_a_log_that_is_cut_between_events_of_one_sequence_goes_on(tmp_path: Path) -> None:
    """PostgreSQL writes many rows of a COPY under one LSN; the rest may follow after a poll."""
    file = _write(tmp_path / "e.json", _debezium("c", 7, None, _image(1, "a")))
    reader = _Reader(_source(file))
    reader.poll()
    _write(file, _debezium("c", 7, None, _image(1, "a")), _debezium("c", 7, None, _image(2, "b")))
    reader.poll()
    assert cells(reader.rows) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("damage", ["truncated", "rewritten"])
def test_a_delivered_file_that_changed_is_an_error_with_the_place(tmp_path: Path, damage: str) -> None:
    file = _write(tmp_path / "e.json", *_log(3))
    position = _source(file).poll(None).position
    size, text = file.stat().st_size, file.read_text()
    file.write_text(text[: size // 2] if damage == "truncated" else text.replace("v2", "w2"))
    with pytest.raises(CaptureFailed) as raised:
        _source(file).poll(position)
    assert f"at byte {size}" in str(raised.value)
    cause = "ends at byte" if damage == "truncated" else "have changed since they were delivered"
    assert cause in str(raised.value)


def test_a_repeated_event_without_a_sequence_is_found_where_it_contradicts(tmp_path: Path) -> None:
    update = _canal("UPDATE", [{"id": "1", "name": "b"}], [{"name": "a"}])
    file = _write(tmp_path / "e.json", update, update)
    with pytest.raises(CaptureFailed, match=r"change of public.t at e.json at byte \d+: the row \(id=1\) has another"):
        _source(file, Canal()).poll(None)


def _changed(old: str, new: str, **more: Any) -> dict[str, Any]:
    rows = {"data": [{"id": "1", "name": new}], "old": [{"name": old}] if old else None}
    return {"database": "public", "table": "t", "type": "UPDATE" if old else "INSERT", **rows, **more}


@pytest.mark.parametrize(
    ("name", "cause"), [("1.json", "its file sorts before 2.json"), ("3.json", "begins with the same line as 2.json")]
)
def test_a_file_that_comes_again_or_too_late_brings_back_nothing(tmp_path: Path, name: str, cause: str) -> None:
    """Without a place in the log nothing else tells that its events are old ones."""
    _write(tmp_path / "2.json", _changed("", "2", id=2))
    reader = _Reader(_source(tmp_path, Canal(), on_error="quarantine"))
    reader.poll()
    _write(tmp_path / name, _changed("", "2", id=2) if name == "3.json" else _changed("0", "1", id=1))
    with pytest.raises(CaptureFailed, match=f"{name} at byte 0: it names no place in the log.*{cause}"):
        _source(tmp_path, Canal()).poll(reader.position)
    poll = reader.source.poll(reader.position)
    assert poll.delta.num_changes == 0
    _write(tmp_path / name, _changed("2", "1", id=3))
    later = reader.source.poll(poll.position)  # what is added to such a file is no better
    assert [q.place.partition(" ")[0] for q in (*poll.quarantined, *later.quarantined)] == [name, name]


def test_a_file_that_came_too_late_is_replayed_in_its_place(tmp_path: Path) -> None:
    _write(tmp_path / "2.json", _changed("1", "2", id=2))
    source = EventFiles(tmp_path, TABLE, T, Canal(), on_error="quarantine")
    first = source.poll(None)
    _write(tmp_path / "1.json", _changed("0", "1", id=1))
    late = source.poll(first.position)
    replayed = source.replaying().poll(source.rewound([q.place for q in late.quarantined], late.position))
    assert cells(replayed.delta.un) == [(1, "2")]
    assert replayed.quarantined == ()


def test_files_that_grow_beside_each_other_and_those_of_other_tables_are_no_late_ones(tmp_path: Path) -> None:
    _write(tmp_path / "b1", _changed("", "2", id=1))
    _write(tmp_path / "c1", _changed("1", "2", id=1, table="other"))
    _write(tmp_path / "a1", _changed("1", "2", id=1, table="other"))
    reader = _Reader(_source(tmp_path, Canal()))
    reader.poll()
    _write(tmp_path / "b2", _changed("2", "3", id=2))
    reader.poll()
    _write(tmp_path / "b1", _changed("3", "4", id=3))
    reader.poll()
    assert cells(reader.rows) == [(1, "4")]


def test_half_a_line_that_is_whole_json_of_another_form_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    file.write_text(json.dumps(_debezium("u", 1, "text", _image(1, "a"))))
    with pytest.raises(CaptureFailed, match="form of such an event"):
        _source(file, Debezium()).poll(None)


@pytest.mark.parametrize(
    ("format", "event"),
    [
        (Maxwell(), {"type": "delete", "data": {"id": None, "name": "x"}}),
        (Maxwell(), {"type": "update", "data": {"id": 1, "name": "x"}, "old": {"id": None}}),
        (Maxwell(), {"type": "insert", "data": {"id": 1, "name": "x"}, "position": "nowhere", "xoffset": 0}),
        (Canal(), {"type": "DELETE", "data": [{"id": None, "name": "x"}]}),
        (Canal(), {"type": "INSERT", "data": [1]}),
        (Canal(), {"type": "UPDATE", "data": [{"id": "1", "name": "x"}], "old": [5]}),
    ],
)
def test_an_event_without_a_key_or_of_another_form_can_be_set_aside(
    tmp_path: Path, format: EventFormat, event: dict[str, Any]
) -> None:
    file = _write(tmp_path / "e.json", {"database": "public", "table": "t", **event})
    with pytest.raises(CaptureFailed, match=r"event of public\.t, e\.json at byte 0"):
        _source(file, format).poll(None)
    (aside,) = _source(file, format, on_error="quarantine").poll(None).quarantined
    assert aside.place == "e.json at byte 0"


def test_a_replay_takes_what_was_added_to_files_before(tmp_path: Path) -> None:
    """Files of a folder may all grow, as those of the partitions of a topic do."""
    _write(tmp_path / "a.json", _debezium("c", 1, None, _image(1, "a")))
    (tmp_path / "b.json").write_text("{broken\n")
    source = EventFiles(tmp_path, TABLE, T, Debezium(), on_error="quarantine")
    first = source.poll(None)
    _write(tmp_path / "a.json", _debezium("c", 2, None, _image(2, "b")))
    again = source.poll(source.rewound([q.place for q in first.quarantined], first.position))
    assert cells(again.delta.ins) == [(2, "b")]
    assert len(again.quarantined) == 1


def test_a_row_without_a_sequence_does_not_let_repeated_events_through(tmp_path: Path) -> None:
    """Maxwell's bootstrap names no place in the log."""
    made = {"database": "public", "table": "t", "type": "insert", "data": _image(1, "a")}
    changed = {**made, "type": "update", "data": _image(1, "b"), "old": {"name": "a"}}
    events = [{**e, "position": f"f.1:{n}", "xoffset": 0} for n, e in enumerate((made, changed))]
    file = _write(tmp_path / "e.json", *events)
    reader = _Reader(_source(file, Maxwell()))
    reader.poll()
    loaded = {**made, "type": "bootstrap-insert", "data": _image(2, "c")}
    _write(file, loaded, events[0])
    reader.poll()
    assert cells(reader.rows) == [(1, "b"), (2, "c")]


def test_a_repeated_event_is_delivered_once_also_where_each_counts(tmp_path: Path) -> None:
    made, gone = _debezium("c", 1, None, _image(1, "a")), _debezium("d", 2, _image(1, "a"))
    file = _write(tmp_path / "e.json", made, made, gone)
    source = _source(file, each=True)
    first = source.poll(None)
    assert isinstance(first.changes, tuple)
    assert [c.new for c in first.changes] == [(1, "a"), None]
    late = _debezium("u", 0, _image(2, "a"), _image(2, "b"))
    _write(file, made, gone, late)
    again = source.poll(first.position).changes
    assert isinstance(again, tuple)
    assert [c.new for c in again] == [(2, "b")]


def test_a_file_that_cannot_be_read_is_an_error_with_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "e.json", _debezium("c", 1, None, _image(1, "a")))

    def removed(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("no such file")

    monkeypatch.setattr(Path, "open", removed)
    with pytest.raises(CaptureFailed, match=r"events of public\.t in .*: no such file"):
        _source(tmp_path).poll(None)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureFailed, match="nowhere is not there"):
        _source(tmp_path / "nowhere").poll(None)


def test_confirming_changes_nothing(tmp_path: Path) -> None:
    file = _write(tmp_path / "e.json", *_log(1))
    source = _source(file)
    poll = source.poll(None)
    source.confirm(poll.position)
    assert source.poll(None).delta.num_changes == 1
    assert rows_of(T, (0, "v0")).equals(pa.table(poll.delta.ins))
