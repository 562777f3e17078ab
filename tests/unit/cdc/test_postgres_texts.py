"""What needs no server: lines of test_decoding, snapshots, types, and connection strings that must not leak."""

from __future__ import annotations

import sys
from typing import Any

import psycopg
import pytest
from psycopg.pq import Conninfo

from freshview.cdc.postgres.copying import copied
from freshview.cdc.postgres.decoding import _HEAD, _number, _parsed, _plain
from freshview.cdc.postgres.records import Helper
from freshview.cdc.postgres.server import Server, Snapshot, Visible
from freshview.cdc.postgres.tables import is_text_form, spark_type
from freshview.cdc.texts import BadEvent, typed
from freshview.errors import CaptureFailed
from freshview.relation.exact import Unfit
from freshview.relation.types import parse_type


def _read(data: str) -> tuple[str, Any, Any]:
    head = _HEAD.match(data)
    assert head is not None
    line = _parsed(head[2], data[head.end() :])
    return line.operation, line.old, line.new


def test_an_insertion_is_parsed() -> None:
    values = "id[integer]:-1 n[numeric]:1.50 b[boolean]:true name[text]:'it''s [x]: ''y'' ' z[text]:null"
    data = f"table public.t: INSERT: {values}"
    assert _read(data) == ("INSERT", None, {"id": "-1", "n": "1.50", "b": "true", "name": "it's [x]: 'y' ", "z": None})


def test_an_update_has_an_old_key_if_it_is_needed() -> None:
    assert _read("table s.t: UPDATE: id[integer]:1 v[text]:'b'") == ("UPDATE", None, {"id": "1", "v": "b"})
    data = (
        "table s.t: UPDATE: old-key: id[integer]:1 v[text]:'a' new-tuple: id[integer]:2 v[text]:unchanged-toast-datum"
    )
    assert _read(data) == ("UPDATE", {"id": "1", "v": "a"}, {"id": "2", "v": "unchanged-toast-datum"})


def test_a_deletion_may_have_no_data() -> None:
    assert _read("table s.t: DELETE: id[integer]:1") == ("DELETE", {"id": "1"}, None)
    assert _read("table s.t: DELETE: (no-tuple-data)") == ("DELETE", None, None)


def test_odd_names_and_types_are_parsed() -> None:
    values = "\"a b\"[integer[]]:'{1,2}' bits[bit(3)]:B'101' t[character varying]:'two\nlines'"
    data = f'table "My.S"."t""x": INSERT: {values}'
    head = _HEAD.match(data)
    assert head is not None
    assert head[1] == '"My.S"."t""x"'
    assert _read(data)[2] == {"a b": "{1,2}", "bits": "101", "t": "two\nlines"}
    assert _plain('public."T x"') == "public.T x"


def test_a_truncation_names_all_tables() -> None:
    head = _HEAD.match("table public.a, public.b: TRUNCATE: restart_seqs cascade")
    assert head is not None
    assert head[1] == "public.a, public.b"


def test_what_cannot_be_parsed_is_an_error() -> None:
    with pytest.raises(BadEvent, match="it cannot be parsed after character 14"):
        _parsed("INSERT", " id[integer]:1 x nonsense")


def test_a_snapshot_sees_what_had_committed() -> None:
    seen = Visible.of("10:15:11,13")
    assert [x for x in range(8, 18) if seen.sees(x)] == [8, 9, 10, 12, 14]
    assert Visible.of("10:10:").sees(9)


def test_short_transaction_numbers_are_completed() -> None:
    epoch = 2**32
    now = Visible(3 * epoch + 5, 3 * epoch + 10, frozenset())
    assert now.whole(7) == 3 * epoch + 7
    assert now.whole(epoch - 1) == 3 * epoch - 1  # before the number began anew
    assert now.whole(12) == 3 * epoch + 12  # after the snapshot
    assert Visible(1, 3 * epoch - 1, frozenset()).whole(2) == 3 * epoch + 2


def test_log_positions_are_numbers() -> None:
    assert _number("1/A") == 2**32 + 10
    assert _number("0/FF") < _number("0/100")


@pytest.mark.parametrize(
    ("given", "type_", "is_text"),
    [
        ("integer", "int", False),
        ("timestamp(3) with time zone", "timestamp", False),
        ("timestamp without time zone", "timestamp_ntz", False),
        ("character varying(20)", "string", False),
        ("character(4)", "char(4)", False),
        ("numeric(9,2)", "decimal(9,2)", False),
        ("numeric(60,2)", "string", True),
        ("numeric(2,4)", "string", True),
        ("numeric", "string", True),
        ("uuid", "string", True),
        ("integer[]", "string", True),
        ("character varying(20)[]", "string", True),
    ],
)
def test_types_without_a_counterpart_are_texts(given: str, type_: str, is_text: bool) -> None:
    assert (str(spark_type(given)), is_text_form(given)) == (type_, is_text)


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("x", "INT"),
        ("x", "DOUBLE"),
        ("x", "DECIMAL(3,1)"),
        ("maybe", "BOOLEAN"),
        ("infinity", "DATE"),
        ("x", "TIMESTAMP"),
    ],
)
def test_a_text_that_is_no_value_is_refused(text: str, type_: str) -> None:
    with pytest.raises(Unfit, match="which is no"):
        typed(text, parse_type(type_))


def test_nanoseconds_are_not_cut_off() -> None:
    with pytest.raises(Unfit, match="nanoseconds would be lost"):
        typed("2020-01-01 00:00:00.1234567", parse_type("TIMESTAMP_NTZ"))
    assert typed("2020-01-01 00:00:00.123456000", parse_type("TIMESTAMP_NTZ")).microsecond == 123456


@pytest.mark.parametrize(
    "url", ["postgresql://ada:s3cret@h/d", "host=h password=s3cret", "postgresql://ada@h/d?password=s3cret"]
)
def test_a_password_in_a_connection_string_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(CaptureFailed, match="the connection string has a password") as raised:
        Server(url)
    assert "s3cret" not in str(raised.value)
    assert "PGPASSWORD" in raised.value.remedy


@pytest.mark.parametrize("option", ["sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"])
def test_any_secret_in_a_connection_string_is_refused_and_not_shown(option: str) -> None:
    if option.encode() not in {known.keyword for known in Conninfo.get_defaults()}:
        pytest.skip(f"the driver's library does not know {option}, and refuses it")
    for url in (f"host=h {option}=s3cret", f"postgresql://ada@h/d?{option}=s3cret"):
        with pytest.raises(CaptureFailed, match=rf"the connection string has a secret \({option}\)") as raised:
            Server(url)
        assert "s3cret" not in str(raised.value)
        assert "service file" in raised.value.remedy


def test_what_the_driver_marks_as_hidden_is_a_secret() -> None:
    """An option that a later library adds is refused without a change here."""
    for option in Conninfo.get_defaults():
        if option.dispchar == b"*":
            with pytest.raises(CaptureFailed, match="the connection string has a"):
                Server(f"host=h {option.keyword.decode()}=s3cret")


def test_a_broken_connection_string_is_not_shown() -> None:
    with pytest.raises(CaptureFailed, match="cannot be parsed") as raised:
        Server("postgresql://ada:s3cret@[h/d")
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_server_that_is_not_there_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    server = Server("postgresql://ada@127.0.0.1:1/d")
    with pytest.raises(CaptureFailed, match=r"PostgreSQL 127\.0\.0\.1:1/d: ") as raised, server.connect():
        pass
    assert "s3cret" not in f"{raised.value} {server.__dict__}"


def test_an_error_of_many_rows_names_the_server_that_they_come_from() -> None:
    """Snapshots of several servers may be open, and what encloses the query is that of the last one."""

    class Lost:
        def cursor(self) -> Any:
            raise psycopg.OperationalError("the connection is lost")

    server, other = Server("postgresql://here/d"), Server("postgresql://there/d")
    snapshot = Snapshot(server, Lost(), "", None, False)  # type: ignore[arg-type]
    with pytest.raises(CaptureFailed, match="PostgreSQL here:5432/d: the connection is lost"), other.reported():
        copied(snapshot, "SELECT 1", (), 1)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(CaptureFailed, match=r"Install freshview\[postgres\]"):
        Server("postgresql://h/d")


def test_a_name_must_leave_room_for_that_of_a_log() -> None:
    assert Helper("s.t", "log").name == "s.fv_log_t"
    with pytest.raises(CaptureFailed, match="too long"):
        Helper("s." + "t" * 60, "log").name  # noqa: B018
