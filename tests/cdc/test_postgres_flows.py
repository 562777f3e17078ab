"""Flows from a real PostgreSQL server: after every cycle the fed table is the source's, and a history has every change,
whatever dies between poll, commit and confirmation."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.catalog.helpers import contents
from tests.catalog.test_flows import Died, Killer
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.flows import FlowCatalog
from freshview.errors import CaptureFailed, FreshviewError, InvalidStatement
from freshview.flows.explain import explain_flow

pytestmark = pytest.mark.postgres

_AUDIT = "capture 'audit', changed 'changed', inserted 'inserted', deleted 'deleted'"
_CAPTURES = {
    "tracking": "capture 'tracking'",
    "triggers": "capture 'triggers'",
    "cheap": "capture 'triggers', 'net effect' 'cheap'",
    "decoding": "capture 'decoding'",
    "decoding, cheap": "capture 'decoding', 'net effect' 'cheap'",
    "audit": _AUDIT,
}


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    with freshview.connect(tmp_path / "warehouse") as wh:
        yield wh


class _Remote:
    """A table of the server (id, name, city, n): `n` grows with every write."""

    def __init__(self, database: str, wh: Warehouse, capture: str, more: str = "") -> None:
        self.url, self.wh, self.n = database, wh, 0
        self.table = f"t_{uuid.uuid4().hex[:10]}"
        self.audited = "audit" in capture
        stamps = ", changed timestamptz DEFAULT clock_timestamp(), inserted timestamptz DEFAULT clock_timestamp()"
        stamps = f"{stamps}, deleted timestamptz" if self.audited else ""
        self.run(f"CREATE TABLE {self.table} (id int PRIMARY KEY, name text, city text, n bigint{stamps})")
        wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{database}', {capture}{more})")

    def run(self, *commands: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            for command in commands:
                cursor = connection.execute(command.encode())
            return cursor.fetchall() if cursor.description else []

    def flow(self, clauses: str = "", keys: str = "id", target: str = "t") -> None:
        self.wh.sql(f"CREATE FLOW f AS AUTO CDC INTO {target} FROM s.public.{self.table} KEYS ({keys}) {clauses}")

    def rows(self) -> list[tuple[Any, ...]]:
        live = " WHERE deleted IS NULL" if self.audited else ""
        return sorted(self.run(f"SELECT id, name, city, n FROM {self.table}{live}"))

    def write(self, draw: random.Random) -> None:
        """One random transaction."""
        commands = []
        for _ in range(draw.randint(1, 5)):
            self.n += 1
            key, name = draw.randrange(8), f"v{draw.randrange(5)}"
            stamp = ", changed = clock_timestamp()" if self.audited else ""
            live = " AND deleted IS NULL" if self.audited else ""
            alive = " WHERE x.deleted IS NULL" if self.audited else ""
            gone = f"DELETE FROM {self.table} WHERE id = {key}"
            if self.audited:
                gone = f"UPDATE {self.table} SET deleted = clock_timestamp() WHERE id = {key} AND deleted IS NULL"
            commands.append(
                draw.choice(
                    [
                        f"INSERT INTO {self.table} AS x (id, name, city, n) VALUES ({key}, '{name}', 'c', {self.n}) "
                        f"ON CONFLICT (id) DO UPDATE SET name = '{name}', n = {self.n}{stamp}{alive}",
                        f"UPDATE {self.table} SET city = '{name}', n = {self.n}{stamp} WHERE id = {key}{live}",
                        gone,
                    ]
                )
            )
        self.run(*commands)


def _here(wh: Warehouse) -> list[tuple[Any, ...]]:
    return sorted((r["id"], r["name"], r["city"], r["n"]) for r in contents(wh, "t"))


def _refreshed(wh: Warehouse, killer: Killer, moment: int | None) -> None:
    """REFRESH FLOW, which dies at a moment and is run again."""
    killer.left = moment
    try:
        wh.sql("REFRESH FLOW f")
    except Died:
        killer.left = None
        wh.sql("REFRESH FLOW f")
    killer.left = None


@pytest.mark.parametrize("sequence", ["", "SEQUENCE BY n"], ids=["in the source's order", "by a sequence"])
@pytest.mark.parametrize("capture", _CAPTURES)
def test_the_fed_table_is_the_source_s_after_every_cycle(
    database: str, wh: Warehouse, capture: str, sequence: str
) -> None:
    remote, killer = _Remote(database, wh, _CAPTURES[capture]), Killer(wh)
    draw = random.Random(f"{capture}{sequence}")
    columns = "COLUMNS (id, name, city, n)" if remote.audited else ""
    remote.write(draw)
    remote.flow(f"{sequence} {columns}")
    for round_ in range(12):
        remote.write(draw)
        _refreshed(wh, killer, draw.choice([None, 1, 2, 3]))
        assert _here(wh) == remote.rows(), f"round {round_}"
    wh.sql("DROP FLOW f")


@pytest.mark.parametrize("capture", ["triggers", "decoding"])
def test_a_history_has_every_change_of_a_log(database: str, wh: Warehouse, capture: str) -> None:
    """The oracle is what the test wrote."""
    remote, killer, draw = _Remote(database, wh, _CAPTURES[capture]), Killer(wh), random.Random(capture)
    remote.flow("SEQUENCE BY n STORED AS SCD TYPE 2 TRACK HISTORY ON (name)")
    wh.sql("REFRESH FLOW f")  # the first poll takes the rows that there are; from then on each change counts
    wrote: dict[int, list[tuple[int, str, str]]] = {}
    n = 0
    for _ in range(8):
        commands = []
        for _ in range(draw.randint(1, 6)):
            n += 1
            key, name, city = draw.randrange(4), draw.choice("ab"), draw.choice("xy")
            commands.append(
                f"INSERT INTO {remote.table} VALUES ({key}, '{name}', '{city}', {n}) ON CONFLICT (id) "
                f"DO UPDATE SET name = '{name}', city = '{city}', n = {n}"
            )
            wrote.setdefault(key, []).append((n, name, city))
        remote.run(*commands)
        _refreshed(wh, killer, draw.choice([None, 1, 2, 3]))
        want = []
        for key, changes in wrote.items():
            own: list[list[Any]] = []
            for number, name, city in changes:
                if own and own[-1][1] == name:
                    own[-1][2:4] = [city, number]
                else:
                    own.append([key, name, city, number, number])
            starts = [row[4] for row in own]
            want += [(*row, end) for row, end in zip(own, [*starts[1:], None], strict=True)]
        rows = [(r["id"], r["name"], r["city"], r["n"], r["__START_AT"], r["__END_AT"]) for r in contents(wh, "t")]
        assert sorted(rows, key=repr) == sorted(want, key=repr)
    wh.sql("DROP FLOW f")


def test_a_deleted_row_ends_at_the_time_of_the_poll(database: str, wh: Warehouse) -> None:
    remote = _Remote(database, wh, "capture 'tracking'")
    remote.run(f"ALTER TABLE {remote.table} ADD COLUMN at timestamptz DEFAULT clock_timestamp()")
    remote.flow("SEQUENCE BY at STORED AS SCD TYPE 2")
    remote.run(f"INSERT INTO {remote.table} VALUES (1, 'a', 'x', 1), (2, 'b', 'x', 1)")
    wh.sql("REFRESH FLOW f")
    remote.run(f"DELETE FROM {remote.table} WHERE id = 1")
    wh.sql("REFRESH FLOW f")
    one, two = contents(wh, "t")
    assert one["__END_AT"] > one["__START_AT"]
    assert two["__END_AT"] is None
    wh.sql("DROP FLOW f")


def test_rows_of_a_feed_are_events_of_their_keys(database: str, wh: Warehouse) -> None:
    """KEYS is not the key of the source's table: its rows are changes, and removing old ones deletes nothing."""
    remote = _Remote(database, wh, "capture 'tracking'")
    with pytest.raises(InvalidStatement, match="events without an order of their own"):
        remote.flow(keys="name")
    remote.flow("SEQUENCE BY n COLUMNS (name, city)", keys="name")
    remote.run(f"INSERT INTO {remote.table} VALUES (1, 'k', 'old', 10), (2, 'k', 'new', 20), (3, 'k', 'older', 5)")
    wh.sql("REFRESH FLOW f")
    assert contents(wh, "t") == [{"name": "k", "city": "new"}]
    remote.run(f"DELETE FROM {remote.table} WHERE n < 15")
    wh.sql("REFRESH FLOW f")
    assert contents(wh, "t") == [{"name": "k", "city": "new"}]
    wh.sql("DROP FLOW f")


_AT_SOURCE = {
    "tracking": "a trigger notes the key of each changed row; a poll joins the noted keys to the table",
    "triggers": "a trigger stores the old and the new image of each changed row; a poll reads the images",
    "decoding": "nothing at a change; the server keeps its log until it is confirmed, and a poll decodes it",
    "audit": "the application keeps the times; a poll reads the rows by time (add an index on the columns)",
}
_HERE = {
    "": "rows are written without reading the old ones",
    "SEQUENCE BY n": "the last sequence of each changed key is read; rows are written without reading the old ones",
    "IGNORE NULL UPDATES": "the row of each changed key is read and written",
    "SEQUENCE BY n STORED AS SCD TYPE 2": "the rows of each changed key are read, and those that differ are written",
}


@pytest.mark.parametrize(("capture", "clauses"), [*((c, "") for c in _CAPTURES), *(("tracking", h) for h in _HERE)])
def test_explain_says_what_is_paid_where(database: str, wh: Warehouse, capture: str, clauses: str) -> None:
    _Remote(database, wh, _CAPTURES[capture]).flow(clauses)
    lines = explain_flow(internals(wh).flows, "f").splitlines()
    technique = "triggers" if capture == "cheap" else capture.partition(",")[0]
    assert f"  at the source: {_AT_SOURCE[technique]}" in lines
    assert f"  here: {_HERE[clauses]}" in lines
    others = [line.split("'")[1] for line in lines if line.startswith("  instead: capture ")]
    assert sorted(others) == sorted(_AT_SOURCE.keys() - {technique})


# -- what is installed at the source ---------------------------------------------------------------


def _left(remote: _Remote) -> int:
    """The number of things at the server that a flow left."""
    objects = "SELECT count(*) FROM pg_class WHERE relname LIKE 'fv\\_%' AND relkind = 'r'"
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fv\\_%'"
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'fv\\_%' AND database = current_database()"
    return sum(int(remote.run(query)[0][0]) for query in (objects, triggers, slots))


@pytest.mark.parametrize("capture", ["tracking", "triggers", "decoding"])
def test_what_a_flow_installs_goes_with_its_source(postgres: Any, wh: Warehouse, capture: str) -> None:
    remote, killer = _Remote(postgres.new_database(), wh, _CAPTURES[capture]), Killer(wh)
    remote.flow()
    assert _left(remote) == 0  # nothing happens at the source before the first poll
    killer.left = 1
    with pytest.raises(Died):
        wh.sql("REFRESH FLOW f")  # it dies with the triggers installed and nothing committed
    killer.left = None
    wh.sql("REFRESH FLOW f")
    assert _left(remote) > 0
    wh.sql("DROP SOURCE s CASCADE")
    assert _left(remote) == 0


def test_two_flows_do_not_take_each_other_s_changes(database: str, wh: Warehouse) -> None:
    remote = _Remote(database, wh, "capture 'tracking'")
    remote.flow()
    wh.sql(f"CREATE FLOW g AS AUTO CDC INTO u FROM s.public.{remote.table} KEYS (id)")
    for flow in "fg":
        wh.sql(f"REFRESH FLOW {flow}")
    remote.run(f"INSERT INTO {remote.table} VALUES (1, 'a', 'x', 1)")
    for flow in "fg":
        assert wh.sql(f"REFRESH FLOW {flow}").rows == 1
    wh.sql("DROP SOURCE s CASCADE")


def test_triggers_that_were_created_anew_are_noticed(database: str, wh: Warehouse) -> None:
    """A full refresh that dies after it installed the triggers must not hide the changes before."""
    remote, killer = _Remote(database, wh, "capture 'tracking'"), Killer(wh)
    remote.flow()
    wh.sql("REFRESH FLOW f")
    remote.run(f"INSERT INTO {remote.table} VALUES (1, 'a', 'x', 1)")
    killer.left = 1
    with pytest.raises(Died):
        wh.sql("REFRESH FLOW f FULL")
    killer.left = None
    with pytest.raises(CaptureFailed, match="was created anew"):
        wh.sql("REFRESH FLOW f")
    wh.sql("REFRESH FLOW f FULL")
    assert _here(wh) == remote.rows()
    wh.sql("DROP FLOW f")


def test_a_flow_whose_server_is_gone_is_dropped_by_force(postgres: Any, wh: Warehouse) -> None:
    remote = _Remote(postgres.new_database(), wh, "capture 'tracking'")
    remote.flow()
    wh.sql("REFRESH FLOW f")
    catalog, told = internals(wh).catalog, []
    wh.events.listen(lambda e: told.append(e.name))
    with catalog.database.write() as c:
        from freshview.catalog import tables as t

        c.execute(t.sources.update().values(options='{"url": "host=127.0.0.1 port=1 connect_timeout=2"}'))
    with pytest.raises(InvalidStatement, match="DROP FLOW f FORCE"):
        wh.sql("DROP FLOW f")
    assert len(FlowCatalog(catalog).flows()) == 1
    wh.sql("DROP FLOW f FORCE")
    assert "flow.left" in told
    assert FlowCatalog(catalog).flows() == []


def test_a_slot_that_is_no_longer_read_is_reported(database: str, wh: Warehouse) -> None:
    remote = _Remote(database, wh, "capture 'decoding'")
    remote.flow()
    wh.sql("REFRESH FLOW f")
    plan = explain_flow(internals(wh).flows, "f")
    assert "bytes of log are kept" in plan
    others = [line.split("'")[1] for line in plan.splitlines() if line.startswith("  instead: capture")]
    assert others == ["tracking", "triggers", "audit"]
    assert wh.status().flows[0].warning == "ok"
    catalog = internals(wh).catalog
    with catalog.database.write() as c:
        from freshview.catalog import tables as t

        c.execute(t.flows.update().values(polled_at=t.flows.c.polled_at - 2 * 3600 * 10**6))
    assert "the server keeps its log for the replication slot" in wh.status().flows[0].warning
    wh.sql("DROP FLOW f")


# -- schema changes at the source ------------------------------------------------------------------


@pytest.mark.parametrize("capture", ["tracking", "triggers", "decoding", "audit"])
@pytest.mark.parametrize("clauses", ["", "SEQUENCE BY n", "SEQUENCE BY n STORED AS SCD TYPE 2"])
def test_a_column_that_was_added_is_added_here(database: str, wh: Warehouse, capture: str, clauses: str) -> None:
    """Its default gives all rows a value, which no trigger and no log reports."""
    remote, killer = _Remote(database, wh, _CAPTURES[capture]), Killer(wh)
    remote.run(*(f"INSERT INTO {remote.table} (id, name, n) VALUES ({i}, 'a', {i})" for i in range(3)))
    columns = "COLUMNS * EXCEPT (changed, inserted)" if remote.audited else ""
    remote.flow(f"{clauses} {columns}")
    wh.sql("REFRESH FLOW f")
    stamp = ", changed = clock_timestamp()" if remote.audited else ""
    remote.run(f"UPDATE {remote.table} SET name = 'before', n = 10{stamp} WHERE id = 1")
    remote.run(f"ALTER TABLE {remote.table} ADD COLUMN extra int DEFAULT 7")
    remote.run(f"UPDATE {remote.table} SET name = 'after', n = 11{stamp} WHERE id = 2")
    _refreshed(wh, killer, 2)
    live = [r for r in contents(wh, "t") if r.get("__END_AT") is None]
    found = sorted((r["id"], r["name"], r["n"], r["extra"]) for r in live)
    assert found == [(0, "a", 0, 7), (1, "before", 10, 7), (2, "after", 11, 7)]
    wh.sql("DROP FLOW f")


def test_a_column_that_was_added_stops_the_flow_if_asked(database: str, wh: Warehouse) -> None:
    remote = _Remote(database, wh, "capture 'tracking'", more=", 'on schema change' 'stop'")
    remote.flow()
    wh.sql("REFRESH FLOW f")
    remote.run(f"ALTER TABLE {remote.table} ADD COLUMN extra int")
    with pytest.raises(CaptureFailed, match=r"it was \(.*\) and is \(.* extra integer.*REFRESH FLOW … FULL"):
        wh.sql("REFRESH FLOW f")
    wh.sql("ALTER TABLE t ADD COLUMN extra INT")
    remote.run(f"INSERT INTO {remote.table} VALUES (1, 'a', 'x', 1, 5)")
    wh.sql("REFRESH FLOW f FULL")
    assert [(r["id"], r["extra"]) for r in contents(wh, "t")] == [(1, 5)]
    wh.sql("DROP FLOW f")


@pytest.mark.parametrize(
    ("change", "remedies"),
    [
        ("ALTER TABLE {t} ALTER COLUMN n TYPE numeric(20,0)", None),
        ("ALTER TABLE {t} RENAME COLUMN city TO town", ["ALTER TABLE t RENAME COLUMN city TO town"]),
        ("ALTER TABLE {t} DROP COLUMN city", None),
        ("DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, name text, city text, n bigint)", []),
    ],
    ids=["widened", "renamed", "dropped", "recreated"],
)
def test_other_changes_of_columns_are_refused_with_the_position(
    database: str, wh: Warehouse, change: str, remedies: list[str] | None
) -> None:
    remote = _Remote(database, wh, "capture 'tracking'")
    remote.run(f"INSERT INTO {remote.table} VALUES (1, 'a', 'x', 1)")
    remote.flow()
    wh.sql("REFRESH FLOW f")
    remote.run(*change.format(t=remote.table).split(";"))
    before = contents(wh, "t")
    with pytest.raises(FreshviewError, match=r"since the position|has no column") as raised:
        wh.sql("REFRESH FLOW f")
    assert contents(wh, "t") == before
    assert str(raised.value) in wh.status().flows[0].warning
    if remedies is not None:
        for remedy in remedies:
            wh.sql(remedy)
        wh.sql("REFRESH FLOW f FULL")
        assert len(contents(wh, "t")) == len(remote.run(f"SELECT * FROM {remote.table}"))
    wh.sql("DROP FLOW f FORCE")


@pytest.mark.parametrize("capture", ["tracking", "triggers", "decoding"])
def test_a_change_that_cannot_be_read_is_set_aside_and_the_table_read_anew(
    database: str, wh: Warehouse, capture: str
) -> None:
    remote = _Remote(database, wh, _CAPTURES[capture], more=", 'on error' 'quarantine'")
    remote.run(f"INSERT INTO {remote.table} VALUES (1, 'a', 'x', 1), (2, 'a', 'x', 1)")
    remote.flow()
    wh.sql("REFRESH FLOW f")
    remote.run(f"TRUNCATE {remote.table}", f"INSERT INTO {remote.table} VALUES (3, 'a', 'x', 1)")
    for _ in range(2):
        wh.sql("REFRESH FLOW f")
        assert _here(wh) == remote.rows()
    (event,) = FlowCatalog(internals(wh).catalog).set_aside()
    assert "truncated" in event.cause
    remote.run(f"UPDATE {remote.table} SET name = 'b' WHERE id = 3")
    wh.sql("REPLAY QUARANTINE f")
    assert _here(wh) == remote.rows()
    assert FlowCatalog(internals(wh).catalog).set_aside() == []
    wh.sql("DROP FLOW f")


def test_a_truncated_table_is_refused_and_read_anew(database: str, wh: Warehouse) -> None:
    remote = _Remote(database, wh, "capture 'tracking'")
    remote.run(f"INSERT INTO {remote.table} VALUES (1, 'a', 'x', 1), (2, 'a', 'x', 1)")
    remote.flow()
    wh.sql("REFRESH FLOW f")
    remote.run(f"TRUNCATE {remote.table}", f"INSERT INTO {remote.table} VALUES (3, 'a', 'x', 1)")
    with pytest.raises(CaptureFailed, match="it was truncated"):
        wh.sql("REFRESH FLOW f")
    wh.sql("REFRESH FLOW f FULL")
    assert _here(wh) == remote.rows()
    wh.sql("DROP FLOW f")


@pytest.mark.parametrize("capture", ["tracking", "decoding"])
def test_a_password_of_the_environment_is_written_nowhere(
    database: str,
    tmp_path: Path,
    capture: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not in the catalog, with its sources, flows, positions and errors, nor in another file, an event or the log."""
    secret = f"hush{uuid.uuid4().hex}"
    monkeypatch.setenv("PGPASSWORD", secret)
    with caplog.at_level("DEBUG"), freshview.connect(tmp_path / "warehouse") as wh:
        said: list[str] = []
        wh.events.listen(lambda event: said.append(repr(event)))
        remote = _Remote(database, wh, _CAPTURES[capture])
        remote.run(f"INSERT INTO {remote.table} VALUES (1, 'a', 'x', 1)")
        remote.flow()
        wh.sql("REFRESH FLOW f")
        assert _here(wh) == remote.rows()
        said.append(repr(explain_flow(internals(wh).flows, "f")))
        remote.run(f"DROP TABLE {remote.table}")
        with pytest.raises(FreshviewError) as raised:
            wh.sql("REFRESH FLOW f")
        said += [str(raised.value), repr(wh.status()), caplog.text]
        written = [path.read_bytes() for path in (tmp_path / "warehouse").rglob("*") if path.is_file()]
        wh.sql("DROP FLOW f FORCE")
    assert any(remote.table.encode() in content for content in written)  # the catalog is among what was read
    assert not any(secret in text for text in said)
    assert not any(secret.encode() in content for content in written)
