"""Real PostgreSQL tables: types, names, changed schemas, lost logs and slots, rights."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.cdc.servers import TECHNIQUES, Captured, Consumer, SnapshotStates
from tests.unit.cdc.applying import applied
from tests.unit.cdc.running_example import cells

from freshview.cdc.columns import NotColumns
from freshview.cdc.postgres import audit
from freshview.cdc.postgres.audit import Audit, AuditColumns
from freshview.cdc.postgres.decoding import Decoding
from freshview.cdc.postgres.server import Server
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.postgres.tracking import Tracking
from freshview.cdc.postgres.triggers import TriggerLog
from freshview.errors import CaptureFailed

pytestmark = pytest.mark.postgres
_LOGS = ["triggers", "triggers, cheap", "tracking", "decoding, full", "decoding"]


def _run(url: str, *commands: str) -> None:
    with psycopg.connect(url) as connection:
        for command in commands:
            connection.execute(command.encode())


@pytest.fixture
def table(request: pytest.FixtureRequest, database: str) -> Iterator[tuple[Captured, Consumer]]:
    captured = Captured(database, request.param)
    source = captured.source()
    yield captured, Consumer(source)
    if hasattr(source, "drop"):
        source.drop()


_COLUMNS = """
    "Key""100%" uuid, k2 character(3), i smallint, b bigint, f real, d double precision, n numeric(20,5), wide numeric,
    t text, v varchar(9), ok boolean, day date, at timestamptz, wall timestamp(3), bytes bytea, doc json, docb jsonb,
    many integer[], span interval"""
_ROW = """
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'x', -3, 9007199254740993, 0.1, 0.1, 123456789012345.12345, 1e-30,
    E'it''s "q" \\\\ \\n [x]: ', '', true, '2020-02-29', '2020-01-01 12:00:00.123456+05', '1999-12-31 23:59:59.999',
    '\\x00ff27', '{"b": 1,  "a": [2]}', '{"b": 1,  "a": [2]}', '{1,NULL,3}', '1 year 2 days'"""


@pytest.mark.parametrize("technique", _LOGS)
def test_values_and_names_arrive_exactly(database: str, technique: str) -> None:
    """Whatever the way, a row has the values that a query of the table returns."""
    name = f'public.Odd "t" 5% {uuid.uuid4().hex[:8]}'
    quoted = '"public"."' + name.removeprefix("public.").replace('"', '""') + '"'
    _run(database, f'CREATE TABLE {quoted} ({_COLUMNS}, PRIMARY KEY (k2, "Key""100%"))')
    server = Server(database)
    identity = "FULL" if technique == "decoding, full" else "DEFAULT"
    _run(database, f"ALTER TABLE {quoted} REPLICA IDENTITY {identity}")
    source: TriggerLog | Tracking | Decoding
    if technique.startswith("triggers"):
        source = TriggerLog(server, name, precise=technique == "triggers")
    elif technique == "tracking":
        source = Tracking(server, name)
    else:
        source = Decoding(server, name, f"fv_{uuid.uuid4().hex[:8]}")
    source.install()
    consumer = Consumer(source)
    consumer.poll()
    with psycopg.connect(database) as writer:
        writer.execute("SET extra_float_digits = -5")
        writer.execute("SET IntervalStyle = 'sql_standard'")
        writer.execute("SET bytea_output = 'escape'")
        writer.execute(f"INSERT INTO {quoted} VALUES ({_ROW})".encode())
        second = f'INSERT INTO {quoted} (k2, "Key""100%") VALUES (\'n\', gen_random_uuid())'
        writer.execute(second.encode())
    consumer.poll()
    (full,) = [r for r in consumer.rows.to_pylist() if r["k2"] == "x  "]
    assert full["d"] == 0.1
    assert full["doc"] == '{"b": 1,  "a": [2]}'
    assert full["bytes"] == b"\x00\xff\x27"
    assert str(full["n"]) == "123456789012345.12345"
    assert (full["wide"], full["many"]) == ("0.000000000000000000000000000001", "{1,NULL,3}")
    _run(database, f"UPDATE {quoted} SET i = i + 1, t = NULL", f"UPDATE {quoted} SET k2 = 'y' WHERE k2 = 'x'")
    consumer.poll()
    _run(database, f"DELETE FROM {quoted}")
    consumer.poll()
    assert consumer.rows.num_rows == 0
    source.drop()


@pytest.mark.parametrize("table", ["three audit columns", "tracking"], indirect=True)
def test_states_are_looked_up_by_values(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    with captured.connect() as connection:
        for key in range(6):
            captured.insert(connection, key, key % 2, "n")
        captured.delete(connection, 1)
    with consumer.source.server.snapshot() as snapshot:
        states = SnapshotStates(snapshot, [consumer.source])
        values = consumer.source.table([(1, 0), (1, None), (7, 7)], ["ref", "id"]).select(["ref"])
        found = states.rows(consumer.source.name, ("ref",), values)
        assert [row[0] for row in cells(found)] == [3, 5]
        both = consumer.source.table([(1, 3), (0, 3)], ["ref", "id"])
        assert [row[0] for row in cells(states.rows(consumer.source.name, ("ref", "id"), both))] == [3]


@pytest.mark.parametrize("table", TECHNIQUES, indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE {t} ADD COLUMN more int",
        "ALTER TABLE {t} DROP COLUMN name",
        "ALTER TABLE {t} ALTER COLUMN ref TYPE bigint",
        "ALTER TABLE {t} RENAME COLUMN name TO title",
    ],
)
def test_a_changed_schema_is_refused_with_the_position(table: tuple[Captured, Consumer], change: str) -> None:
    captured, consumer = table
    consumer.poll()
    _run(captured.url, change.format(t=captured.name))
    with pytest.raises(CaptureFailed) as raised:
        consumer.source.poll(consumer.position)
    assert f"table {captured.name}: it was (id integer, ref integer, name text" in str(raised.value)
    assert str(consumer.position) in str(raised.value)


@pytest.mark.parametrize("table", TECHNIQUES, indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE {t} ALTER COLUMN name TYPE text USING upper(name)",
        "ALTER TABLE {t} DROP COLUMN {last}, ADD COLUMN {last} {type}",
    ],
)
def test_values_that_alter_table_sets_are_an_error(table: tuple[Captured, Consumer], change: str) -> None:
    """The table looks as before, and no change of a row is reported."""
    captured, consumer = table
    last = ("deleted", "timestamptz") if "audit" in captured.technique else ("name", "text")
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
    consumer.poll()
    _run(captured.url, change.format(t=captured.name, last=last[0], type=last[1]))
    with pytest.raises(CaptureFailed, match="ALTER TABLE has set values of a column") as raised:
        consumer.source.poll(consumer.position)
    assert str(consumer.position) in str(raised.value)


@pytest.mark.parametrize("table", ["tracking", "decoding"], indirect=True)
def test_what_sets_no_value_is_no_error(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    for command in (
        f"VACUUM FULL {captured.name}",
        f"ALTER TABLE {captured.name} ALTER COLUMN name SET DEFAULT 'd'",
        f"ALTER TABLE {captured.name} ALTER COLUMN name SET STATISTICS 10",
        f"CLUSTER {captured.name} USING {captured.name.removeprefix('public.')}_pkey",
    ):
        with captured.connect() as connection:
            captured.insert(connection, 1, 0, command)
        consumer.poll()
        with psycopg.connect(captured.url, autocommit=True) as connection:
            connection.execute(command.encode())
        assert consumer.poll() == frozenset()


@pytest.mark.parametrize("table", ["decoding", "three audit columns"], indirect=True)
def test_a_table_that_was_created_anew_is_another_table(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    consumer.poll()
    _run(
        captured.url,
        f"CREATE TABLE {captured.name}_new (LIKE {captured.name} INCLUDING ALL)",
        f"DROP TABLE {captured.name}",
        f"ALTER TABLE {captured.name}_new RENAME TO {captured.name.removeprefix('public.')}",
    )
    with pytest.raises(CaptureFailed, match=r"it was .*oid"):
        consumer.source.poll(consumer.position)
    with pytest.raises(CaptureFailed, match=r"it was .*oid"):  # by a process that opens the source now, too
        type(consumer.source).poll(_opened_again(captured, consumer.source), consumer.position)


def _opened_again(captured: Captured, source: PostgresTable) -> PostgresTable:
    server = Server(captured.url)
    if isinstance(source, Decoding):
        return Decoding(server, captured.name, source.slot)
    return Audit(server, captured.name, AuditColumns("changed", "inserted", "deleted"))


@pytest.mark.parametrize("table", _LOGS, indirect=True)
def test_a_truncated_table_is_an_error(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
    consumer.poll()
    _run(captured.url, f"TRUNCATE {captured.name}")
    with pytest.raises(CaptureFailed, match="truncated"):
        consumer.source.poll(consumer.position)


@pytest.mark.parametrize("table", ["triggers", "tracking"], indirect=True)
def test_a_trigger_that_was_disabled_is_an_error(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    consumer.poll()
    _run(captured.url, f"ALTER TABLE {captured.name} DISABLE TRIGGER USER")
    with pytest.raises(CaptureFailed, match="are missing or disabled"):
        consumer.source.poll(consumer.position)


@pytest.mark.parametrize("table", ["triggers", "tracking"], indirect=True)
def test_triggers_also_see_what_replication_writes(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    consumer.poll()
    with captured.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        captured.insert(connection, 1, 0, "a")
    assert consumer.poll() == {"ins"}


@pytest.mark.parametrize("table", ["triggers", "tracking"], indirect=True)
def test_confirmed_records_are_removed_and_no_others(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    log = captured.name.replace(".t_", ".fv_log_t_" if captured.technique == "triggers" else ".fv_track_t_")
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
    consumer.poll()
    with captured.connect() as connection:
        captured.insert(connection, 2, 0, "b")
    assert _count(captured.url, log) == 2
    consumer.confirm()
    assert _count(captured.url, log) == 1


def _count(url: str, table: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute(f"SELECT count(*) FROM {table} WHERE seq > 0".encode()).fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize("table", ["triggers", "tracking", "decoding"], indirect=True)
def test_a_server_that_went_back_in_time_is_an_error(table: tuple[Captured, Consumer]) -> None:
    _, consumer = table
    consumer.poll()
    assert consumer.position is not None
    future = json.loads(consumer.position)
    future["snapshot"] = "99999999:99999999:"
    with pytest.raises(CaptureFailed, match="It was restored or replaced: load the table anew"):
        consumer.source.poll(json.dumps(future))


# -- the slot --------------------------------------------------------------------------------------------------------


def _slot(consumer: Consumer) -> Decoding:
    assert isinstance(consumer.source, Decoding)
    return consumer.source


@pytest.mark.parametrize("table", ["decoding"], indirect=True)
def test_a_slot_is_advanced_only_when_a_position_is_confirmed(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    consumer.poll()
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "x" * 100_000)
    consumer.poll()
    kept = _slot(consumer).retained()
    assert kept > 0
    with consumer.source.server.snapshot() as snapshot:
        before = _slot(consumer)._confirmed(snapshot)
    consumer.confirm()
    with consumer.source.server.snapshot() as snapshot:
        after = _slot(consumer)._confirmed(snapshot)
    assert consumer.position is not None
    assert before < after == json.loads(consumer.position)["lsn"]


@pytest.mark.parametrize("table", ["decoding"], indirect=True)
def test_a_slot_that_is_gone_or_was_read_by_others_is_an_error(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    slot = _slot(consumer).slot
    consumer.poll()
    with captured.connect() as connection:
        connection.execute("SET synchronous_commit = on")  # so that it can be decoded at once
        captured.insert(connection, 1, 0, "a")
    _run(captured.url, f"SELECT count(*) FROM pg_logical_slot_get_changes('{slot}', NULL, NULL)")
    with pytest.raises(CaptureFailed, match="somebody else read it"):
        consumer.source.poll(consumer.position)
    _slot(consumer).drop()
    with pytest.raises(CaptureFailed, match=f"replication slot {slot}: it is gone"):
        consumer.source.poll(consumer.position)
    _slot(consumer).drop()  # nothing is left to drop


def test_a_slot_of_another_plug_in_is_refused(database: str) -> None:
    captured, slot = Captured(database, "decoding"), f"fv_{uuid.uuid4().hex[:8]}"
    _run(database, f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    source = Decoding(Server(database), captured.name, slot)
    with pytest.raises(CaptureFailed, match="it belongs to another plug-in or database"):
        source.poll(None)
    source.drop()


def test_wal2json_writes_what_json_cannot_hold_as_null(database: str) -> None:
    """Why test_decoding is used: NaN would arrive as NULL."""
    name, slot = f"t_{uuid.uuid4().hex[:8]}", f"fv_{uuid.uuid4().hex[:8]}"
    _run(database, f"CREATE TABLE {name} (id int PRIMARY KEY, d double precision, n numeric(9,2))")
    with psycopg.connect(database, autocommit=True) as connection:
        try:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", (slot,))
        except psycopg.errors.UndefinedFile:
            pytest.skip("wal2json is not installed")
        try:
            connection.execute("SET synchronous_commit = on")  # what is not flushed is not decoded
            connection.execute(f"INSERT INTO {name} VALUES (1, '-Infinity', 'NaN')".encode())
            peek = "SELECT data::json FROM pg_logical_slot_peek_changes(%s, NULL, NULL, 'format-version', '2')"
            lines = [row[0] for row in connection.execute(peek.encode(), (slot,))]
            (values,) = [[c["value"] for c in line["columns"]] for line in lines if line["action"] == "I"]
            assert values == [1, None, None]
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


@pytest.mark.parametrize("technique", ["decoding", "decoding, full"])
def test_a_large_value_that_did_not_change(database: str, technique: str) -> None:
    """The log leaves it out: it is taken from the old image, or refused."""
    captured = Captured(database, technique)
    _run(database, f"ALTER TABLE {captured.name} ALTER COLUMN name SET STORAGE EXTERNAL")
    consumer = Consumer(captured.source())
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "x" * 100_000)
    consumer.poll()
    _run(database, f"UPDATE {captured.name} SET ref = 5")
    if technique == "decoding":
        with pytest.raises(CaptureFailed, match="lacks the large value name; set REPLICA IDENTITY FULL"):
            consumer.poll()
    else:
        assert consumer.poll() == {"un/uo"}
    _slot(consumer).drop()


@pytest.mark.parametrize("identity", ["NOTHING"])
def test_a_table_whose_log_names_no_rows_is_refused(database: str, identity: str) -> None:
    captured = Captured(database, "decoding")
    _run(database, f"ALTER TABLE {captured.name} REPLICA IDENTITY {identity}")
    with pytest.raises(CaptureFailed, match="its REPLICA IDENTITY is NOTHING"):
        captured.source()


# -- tables that cannot be captured, and rights ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "cause"),
    [
        ("TABLE {t} (id int)", "it has no primary key"),
        ("TABLE {t} (id int PRIMARY KEY) PARTITION BY RANGE (id)", "it has partitions or inherited tables"),
        ("UNLOGGED TABLE {t} (id int PRIMARY KEY)", "it has no log"),
        ("TABLE {t} (id int PRIMARY KEY DEFERRABLE)", "its primary key is deferrable: two rows may have one key"),
        ("TABLE {t} (a int, b int, PRIMARY KEY (b, a) DEFERRABLE INITIALLY DEFERRED)", "its primary key is deferrable"),
    ],
)
def test_a_table_that_cannot_be_captured_is_refused(database: str, definition: str, cause: str) -> None:
    name = f"public.t_{uuid.uuid4().hex[:8]}"
    _run(database, "CREATE " + definition.format(t=name))
    with pytest.raises(CaptureFailed, match=f"table {name}: {cause}"):
        Tracking(Server(database), name)


def test_a_missing_table_is_named(database: str) -> None:
    with pytest.raises(CaptureFailed, match=r"table public\.nowhere: the server does not have it"):
        Tracking(Server(database), "public.nowhere")


def test_a_value_that_no_type_can_hold_is_named(database: str) -> None:
    name = f"public.t_{uuid.uuid4().hex[:8]}"
    _run(database, f"CREATE TABLE {name} (id int PRIMARY KEY, n numeric(5,2))", f"INSERT INTO {name} VALUES (1, 'NaN')")
    source = Tracking(Server(database), name)
    source.install()
    with pytest.raises(CaptureFailed, match=f"table {name}: column n of {name}.*which is no decimal"):
        source.poll(None)
    source.drop()


# -- audit columns -----------------------------------------------------------------------------------------------------

_THREE = AuditColumns("changed", "inserted", "deleted")


@pytest.mark.parametrize("table", ["three audit columns"], indirect=True)
def test_a_key_may_come_back_once_its_deletion_was_delivered(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
    consumer.poll()
    with captured.connect() as connection:
        captured.delete(connection, 1)
    assert consumer.poll() == {"del"}
    again = f"UPDATE {captured.name} SET deleted = NULL, inserted = clock_timestamp(), changed = clock_timestamp()"
    _run(captured.url, again)
    assert consumer.poll() == {"ins"}


def test_a_key_that_comes_back_at_once_is_an_error(database: str) -> None:
    """Its times say "inserted", and the consumer has the row: never a wrong row."""
    captured = Captured(database, "three audit columns")
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
        connection.execute(f"UPDATE {captured.name} SET changed = '2020-01-01', inserted = '2020-01-01'".encode())
    consumer = Consumer(captured.source())
    consumer.poll()
    _run(
        database,
        f"UPDATE {captured.name} SET deleted = NULL, inserted = clock_timestamp(), changed = clock_timestamp()",
    )
    poll = consumer.source.poll(consumer.position)
    with pytest.raises(CaptureFailed, match=r"key \(id=1\) is to be inserted and exists already"):
        applied(consumer.rows, poll.delta)


@pytest.mark.parametrize("table", ["one audit column", "two audit columns", "three audit columns"], indirect=True)
def test_a_row_that_changes_twice_with_the_same_time(table: tuple[Captured, Consumer]) -> None:
    """Times in whole seconds; here one that is always beyond the position."""
    captured, consumer = table
    time = "changed = '2100-01-01', inserted = '2100-01-01'"
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
        captured.insert(connection, 2, 0, "a")
        connection.execute(f"UPDATE {captured.name} SET {time}".encode())
    consumer.poll()
    _run(captured.url, f"UPDATE {captured.name} SET name = 'b', {time} WHERE id = 1")
    assert consumer.poll() == ({"ups"} if captured.technique == "one audit column" else {"up"})
    assert consumer.poll() == frozenset()


def test_times_in_whole_seconds_lie_after_the_position(database: str) -> None:
    with Server(database).snapshot() as snapshot:
        latest = snapshot.fetch("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0]
        assert snapshot.settled is not None
        assert snapshot.settled <= latest - 2_000_000, "one second for the cut, one for a transaction not listed yet"


@pytest.mark.parametrize("table", ["three audit columns"], indirect=True)
def test_the_image_of_a_row_that_changed_at_the_same_time_is_not_its_old_one(table: tuple[Captured, Consumer]) -> None:
    captured, consumer = table
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "a")
        captured.insert(connection, 2, 0, "a")
        connection.execute(f"UPDATE {captured.name} SET changed = '2100-01-01'".encode())
    consumer.poll()
    _run(captured.url, f"UPDATE {captured.name} SET name = 'b', deleted = clock_timestamp() WHERE id = 1")
    assert consumer.poll() == {"delk"}
    _run(captured.url, f"UPDATE {captured.name} SET deleted = clock_timestamp() WHERE id = 2")
    assert consumer.poll() == {"del"}


@pytest.mark.parametrize("table", ["three audit columns"], indirect=True)
def test_audit_columns_that_are_read_row_by_row_tell_the_same(
    table: tuple[Captured, Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a value is no column's: the errors of such values name them."""

    def refused(*_: object) -> None:
        raise NotColumns

    monkeypatch.setattr(audit, "copied", refused)
    captured, consumer = table
    with captured.connect() as connection:
        for key in (1, 2, 3):
            captured.insert(connection, key, 0, "a")
    assert consumer.poll() == {"ins"}
    with captured.connect() as connection:
        captured.insert(connection, 4, 0, "b")
        captured.delete(connection, 1)
        connection.execute(f"UPDATE {captured.name} SET name = 'c', changed = clock_timestamp() WHERE id = 2".encode())
    assert consumer.poll() == {"ins", "up", "del"}
    assert consumer.poll() == frozenset()


def test_a_row_without_a_time_is_an_error(database: str) -> None:
    captured = Captured(database, "two audit columns")
    _run(
        database,
        f"ALTER TABLE {captured.name} ALTER COLUMN inserted DROP NOT NULL",
        f"INSERT INTO {captured.name} (id, inserted) VALUES (7, NULL)",
    )
    with pytest.raises(CaptureFailed, match=r"the row \(7\) has no time in an audit column"):
        captured.source().poll(None)


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        (AuditColumns("name"), "its audit column name is no timestamptz"),
        (AuditColumns("changed", None, "deleted"), "a time of deletion needs a time of insertion"),
        (AuditColumns("nowhere"), "its audit column nowhere is no timestamptz"),
    ],
)
def test_audit_columns_are_checked(database: str, columns: AuditColumns, cause: str) -> None:
    captured = Captured(database, "three audit columns")
    with pytest.raises(CaptureFailed, match=cause):
        Audit(Server(database), captured.name, columns)


def test_a_user_who_cannot_see_other_transactions_is_refused(database: str) -> None:
    captured, user = Captured(database, "two audit columns"), f"u_{uuid.uuid4().hex[:8]}"
    _run(database, f"CREATE USER {user}", f"GRANT SELECT ON {captured.name} TO {user}")
    url = database.replace("freshview@", f"{user}@")
    source = Audit(Server(url), captured.name, AuditColumns("changed", "inserted"))
    with pytest.raises(CaptureFailed, match="GRANT pg_read_all_stats TO the user"):
        source.poll(None)
    _run(database, f"GRANT pg_read_all_stats TO {user}")
    assert source.poll(None).delta.num_changes == 0


@pytest.mark.parametrize("table", ["two audit columns"], indirect=True)
def test_a_prepared_transaction_holds_the_position_back(table: tuple[Captured, Consumer]) -> None:
    """When it began is not known: its rows may appear with any time since the position."""
    captured, consumer = table
    consumer.poll()
    assert consumer.position is not None
    since: Any = json.loads(consumer.position)["since"]
    name = uuid.uuid4().hex
    with captured.connect() as connection:
        captured.insert(connection, 1, 0, "prepared")
        connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
        connection.rollback()
    with captured.connect() as connection:
        captured.insert(connection, 2, 0, "later")
    assert consumer.poll() == {"ins"}
    assert consumer.position is not None
    assert json.loads(consumer.position)["since"] == since
    with psycopg.connect(captured.url, autocommit=True) as connection:
        connection.execute(f"COMMIT PREPARED '{name}'".encode())
    assert consumer.poll() == {"ins"}
    assert [row[0] for row in cells(consumer.rows)] == [1, 2]


# -- what the server finds equal, and what it writes in its own time ---------------------------------------------------


def _consumed(database: str, technique: str, columns: str, *commands: str) -> Iterator[Consumer]:
    """A consumer of a new table t with these columns, before and after each of the commands."""
    name = f"public.t_{uuid.uuid4().hex[:12]}"
    _run(database, f"CREATE TABLE {name} ({columns})")
    source = TECHNIQUES[technique](Server(database), name)
    try:
        consumer = Consumer(source)
        consumer.poll()
        for command in commands:
            _run(database, command.replace("{t}", name))
            yield consumer
    finally:
        source.drop()  # type: ignore[attr-defined]


_EQUAL_KEYS = {
    "numeric": ("1.0", "1.00"),
    "interval": ("1 day", "24 hours"),
    "text COLLATE {c}": ("a", "A"),
}


@pytest.mark.parametrize("type_", _EQUAL_KEYS)
@pytest.mark.parametrize("technique", _LOGS)
def test_a_key_that_becomes_another_one_which_the_server_finds_equal(database: str, technique: str, type_: str) -> None:
    collation = f"c_{uuid.uuid4().hex[:8]}"
    _run(database, f"CREATE COLLATION {collation} (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    columns = f"k {type_.replace('{c}', collation)} PRIMARY KEY, v int"
    one, other = _EQUAL_KEYS[type_]
    commands = (
        f"INSERT INTO {{t}} VALUES ('{one}', 1)",
        f"UPDATE {{t}} SET k = '{other}'",
        "UPDATE {t} SET v = 2",
        f"DELETE FROM {{t}}; INSERT INTO {{t}} VALUES ('{one}', 3)",
    )
    for consumer in _consumed(database, technique, columns, *commands):
        consumer.poll()
        assert consumer.rows.num_rows == 1


@pytest.mark.parametrize("technique", _LOGS)
def test_a_null_of_json_is_a_value_and_dates_in_ranges_are_unambiguous(database: str, technique: str) -> None:
    columns = "k int PRIMARY KEY, doc jsonb, docs jsonb[], days daterange, price money"
    insert = "INSERT INTO {t} VALUES (1, 'null', ARRAY['null'::jsonb], '[02/01/2026,03/01/2026)', '1234.5')"
    found = _consumed(database, technique, columns, f"SET DateStyle = 'SQL, DMY'; {insert}", "UPDATE {t} SET k = 2")
    for consumer in found:
        consumer.poll()
        (row,) = consumer.rows.to_pylist()
        assert (row["doc"], row["docs"], row["days"]) == ("null", '{"null"}', "[2026-01-02,2026-01-03)")


@pytest.mark.parametrize("technique", ["decoding, full", "tracking"])
def test_a_text_that_reads_like_the_mark_of_a_value_that_was_not_sent(database: str, technique: str) -> None:
    """The large value is what was not sent, and has lines be read one by one."""
    columns = "k int PRIMARY KEY, v text, large text"
    commands = (
        "ALTER TABLE {t} ALTER large SET STORAGE EXTERNAL; INSERT INTO {t} VALUES (1, 'x', repeat('-', 20000))",
        "UPDATE {t} SET v = 'unchanged-toast-datum'",
    )
    for consumer in _consumed(database, technique, columns, *commands[:1]):
        consumer.poll()
        _run(database, commands[1].replace("{t}", consumer.source.name))
        consumer.poll()
        assert consumer.rows.column("v").to_pylist() == ["unchanged-toast-datum"]


@pytest.mark.parametrize(
    "body",
    [
        "UPDATE {t} SET v = v + 10 WHERE k = NEW.k",
        "DELETE FROM {t} WHERE k = NEW.k",
        "DELETE FROM {t} WHERE k = NEW.k; INSERT INTO {t} VALUES (NEW.k, 7)",
    ],
)
@pytest.mark.parametrize("technique", ["tracking", "decoding, full", "decoding"])
def test_a_trigger_that_writes_to_its_own_table_changes_the_order_of_notes_alone(
    database: str, technique: str, body: str
) -> None:
    commands = (
        "INSERT INTO {t} VALUES (1, 1)",
        _trigger(body, "AFTER INSERT OR UPDATE"),
        "INSERT INTO {t} VALUES (2, 2), (3, 3)",
        "UPDATE {t} SET v = 5",
        "INSERT INTO {t} VALUES (4, 4)",
    )
    for consumer in _consumed(database, technique, "k int PRIMARY KEY, v int", *commands):
        consumer.poll()


def _trigger(body: str, when: str) -> str:
    """A trigger of a table {t} that runs a body for changes which no trigger made."""
    return (
        "CREATE FUNCTION {t}_f() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF pg_trigger_depth() < 2 THEN {body}; END IF; RETURN NEW; END $$; "
        f"CREATE TRIGGER a {when} ON {{t}} FOR EACH ROW EXECUTE FUNCTION {{t}}_f()"
    )


@pytest.mark.parametrize(
    "body",
    [
        "UPDATE {t} SET v = v + 10 WHERE k = NEW.k",
        "UPDATE {t} SET v = OLD.v WHERE k = NEW.k",  # the change is undone: the images make a coherent chain
        "DELETE FROM {t} WHERE k = NEW.k",
        "UPDATE {t} SET k = k + 100 WHERE k = NEW.k",
    ],
)
@pytest.mark.parametrize("technique", ["triggers", "triggers, cheap"])
def test_a_log_whose_order_a_trigger_has_changed_is_an_error(database: str, technique: str, body: str) -> None:
    commands = ("INSERT INTO {t} VALUES (1, 1), (2, 1)",)
    for consumer in _consumed(database, technique, "k int PRIMARY KEY, v int", *commands):
        consumer.poll()
        _run(database, _trigger(body, "AFTER UPDATE").replace("{t}", consumer.source.name))
        _run(database, f"UPDATE {consumer.source.name} SET v = 5")
        with pytest.raises(CaptureFailed, match=r"changed a row before record \d+ .* capture 'tracking'"):
            consumer.poll()


@pytest.mark.parametrize("technique", ["triggers", "triggers, cheap"])
def test_triggers_that_leave_the_order_as_it_is_are_none(database: str, technique: str) -> None:
    """A trigger that sets columns of its row, and one that changes other rows of the table."""
    for consumer in _consumed(database, technique, "k int PRIMARY KEY, v int", "INSERT INTO {t} VALUES (1, 1), (9, 0)"):
        name = consumer.source.name
        consumer.poll()
        _run(
            database,
            _trigger("NEW.v := NEW.v * 2; UPDATE {t} SET v = v + 1 WHERE k = 9", "BEFORE UPDATE").replace("{t}", name),
        )
        _run(database, f"UPDATE {name} SET v = 5 WHERE k = 1", f"UPDATE {name} SET v = 6 WHERE k = 1")
        consumer.poll()
        assert sorted(consumer.rows.to_pylist(), key=lambda r: r["k"]) == [{"k": 1, "v": 12}, {"k": 9, "v": 2}]


def test_notes_that_are_missing_are_an_error(database: str) -> None:
    for consumer in _consumed(database, "tracking", "k int PRIMARY KEY", "INSERT INTO {t} VALUES (1)"):
        notes = consumer.source.name.replace("public.", "public.fv_track_")
        _run(database, f"INSERT INTO {notes} (op, k0) VALUES ('I', 1)")
        with pytest.raises(CaptureFailed, match="notes of its changes are missing"):
            consumer.poll()
