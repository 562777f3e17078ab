"""Views of remote tables, kept from the partial deltas of a real server: what they show, refuse, explain and leave."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from freshview import Warehouse
from freshview.cdc.postgres.tables import PostgresTable
from freshview.errors import CaptureFailed, InvalidStatement, NotMaintainable

pytestmark = pytest.mark.postgres


class World:
    """Customers with addresses on a server, and a source over them."""

    def __init__(self, wh: Warehouse, url: str, options: str = "capture 'tracking', poll 'on query'") -> None:
        self.wh, self.url, self.schema = wh, url, f"s_{uuid.uuid4().hex[:10]}"
        self.run(
            f"CREATE SCHEMA {self.schema}",
            f"CREATE TABLE {self.schema}.cust (cid int PRIMARY KEY, cname text, discount int, addr bigint)",
            f"CREATE TABLE {self.schema}.addr (aid int PRIMARY KEY, city text, country text)",
            f"INSERT INTO {self.schema}.cust VALUES (1, 'Adam', 0, 1), (2, 'Bob', 0, 2), (3, 'Carl', 0, 3)",
            f"INSERT INTO {self.schema}.addr VALUES (1, 'Austin', 'US'), (2, 'Berlin', 'DE'), (3, 'Chemnitz', 'DE')",
        )
        wh.sql(f"CREATE SOURCE crm USING POSTGRES OPTIONS (url '{url}', {options})")
        for table in ("cust", "addr"):
            wh.sql(f"CREATE REMOTE TABLE {table} FROM crm.{self.schema}.{table}")

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with psycopg.connect(self.url) as connection:
            yield connection

    def run(self, *statements: str) -> None:
        with self.connection() as connection:
            for statement in statements:
                connection.execute(statement.replace("$", self.schema).encode())


DIMENSION = """CREATE MATERIALIZED VIEW d AS
    SELECT cid, cname, addr, city, upper(country) AS country
    FROM cust JOIN addr ON cust.addr = addr.aid WHERE addr.country = 'DE'"""


@pytest.fixture
def world(swh: Warehouse, database: str) -> World:
    return World(swh, database)


def _rows(wh: Warehouse, text: str, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, wh.sql(text, **options).collect()))


def test_the_running_example_end_to_end(world: World) -> None:
    """Figures 3 and 11, with change tracking on both tables."""
    wh = world.wh
    created = wh.sql(DIMENSION)
    assert created.rows == 2
    assert _rows(wh, "SELECT * FROM d") == [(2, "Bob", 2, "Berlin", "DE"), (3, "Carl", 3, "Chemnitz", "DE")]
    world.run(
        "UPDATE $.cust SET discount = 5 WHERE cid = 1",
        "UPDATE $.cust SET addr = 4 WHERE cid = 2",
        "DELETE FROM $.cust WHERE cid = 3",
        "INSERT INTO $.cust VALUES (4, 'Dave', 0, 4)",
        "UPDATE $.addr SET city = 'Aachen', country = 'DE' WHERE aid = 1",
        "DELETE FROM $.addr WHERE aid = 3",
        "INSERT INTO $.addr VALUES (4, 'Dresden', 'DE')",
    )
    expected = [(1, "Adam", 1, "Aachen", "DE"), (2, "Bob", 4, "Dresden", "DE"), (4, "Dave", 4, "Dresden", "DE")]
    assert _rows(wh, "SELECT * FROM d") == expected
    assert wh.check("d").ok
    before = created.csn
    assert _rows(wh, "SELECT * FROM d", as_of=before) == [
        (2, "Bob", 2, "Berlin", "DE"),
        (3, "Carl", 3, "Chemnitz", "DE"),
    ]


def test_a_statement_that_writes_reads_dimension_views_as_of_now(world: World) -> None:
    world.wh.sql(DIMENSION)
    world.wh.sql("CREATE TABLE taken (cid INT PRIMARY KEY)")
    world.run("INSERT INTO $.cust VALUES (4, 'Dora', 0, 3)")
    assert world.wh.sql("INSERT INTO taken SELECT cid FROM d").rows == 3


def test_views_above_a_dimension_view_are_maintained_from_its_segments(world: World) -> None:
    wh = world.wh
    wh.sql(DIMENSION)
    wh.sql("CREATE MATERIALIZED VIEW per_city AS SELECT city, count(*) AS n FROM d GROUP BY city")
    assert _rows(wh, "SELECT * FROM per_city") == [("Berlin", 1), ("Chemnitz", 1)]
    world.run("UPDATE $.cust SET addr = 2 WHERE cid IN (1, 3)")
    assert _rows(wh, "SELECT * FROM per_city") == [("Berlin", 3)]
    assert wh.check("per_city").ok
    assert wh.check("d").ok
    assert [job.strategy for job in wh.history("per_city")][-1] == "incremental"


def test_a_remote_table_is_queried_at_its_source(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wh = world.wh
    assert _rows(wh, "SELECT cname, city FROM cust JOIN addr ON addr = aid WHERE aid = 1") == [("Adam", "Austin")]
    world.run("UPDATE $.addr SET city = 'Aachen' WHERE aid = 1")
    fetched, rows = [], PostgresTable.rows

    def counted(table: PostgresTable, *given: Any) -> pa.Table:
        fetched.append(rows(table, *given))
        return fetched[-1]

    monkeypatch.setattr(PostgresTable, "rows", counted)
    assert _rows(wh, "SELECT city FROM addr WHERE aid = 1") == [("Aachen",)]
    assert _rows(wh, "SELECT cid, city FROM cust c JOIN addr a ON addr = aid WHERE c.cid IN (2, 9)") == [(2, "Berlin")]
    assert _rows(wh, "SELECT aid FROM addr WHERE city = 'Chemnitz' AND length(country) = 2") == [(3,)]
    assert [t.num_rows for t in fetched] == [1, 1, 3, 1], "only rows with the keys come from the server"
    with pytest.raises(InvalidStatement, match="its old state cannot be queried"):
        wh.sql("SELECT * FROM cust", as_of=1)
    with pytest.raises(InvalidStatement, match="is read-only here"):
        wh.sql("DELETE FROM cust")
    listed = {row.name: row.kind for row in wh.sql("SHOW TABLES").collect()}
    assert listed == {"cust": "remote table", "addr": "remote table"}


def test_views_that_cannot_be_kept_are_refused(world: World) -> None:
    wh = world.wh
    wh.sql("CREATE TABLE held (id INT PRIMARY KEY)")
    for query, message in [
        ("SELECT country, count(*) AS n FROM addr GROUP BY country", "it has a grouping or DISTINCT"),
        ("SELECT cid, city FROM cust LEFT JOIN addr ON addr = aid", "an outer join or a subquery"),
        ("SELECT cid, id FROM cust JOIN held ON cid = id", "which is kept here"),
        ("SELECT cid, aid FROM cust JOIN addr ON cname = city", "no order of its joins"),
        ("SELECT city FROM addr", "it drops addr.aid, and change tracking of addr delivers up, delk"),
    ]:
        with pytest.raises(NotMaintainable, match=message):
            wh.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    assert [row.name for row in wh.sql("SHOW MATERIALIZED VIEWS").collect()] == []


@pytest.mark.parametrize(
    ("type_", "keys"),
    [
        ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"]),
        ("numeric", ["1.0", "Infinity"]),
        ("numeric(50,2)", ["1.00", "-2.50"]),
        ("inet", ["10.0.0.1/32", "10.0.0.0/8"]),
        ("$.mood", ["sad", "glad"]),
    ],
)
def test_texts_that_are_no_value_of_a_key_join_nothing(world: World, type_: str, keys: list[str]) -> None:
    """A key whose type Spark has not is a text here, and joins texts of any kind."""
    world.run(
        "CREATE TYPE $.mood AS ENUM ('glad', 'sad')",
        f"CREATE TABLE $.t (k {type_} PRIMARY KEY, v text)",
        "CREATE TABLE $.s (id int PRIMARY KEY, ref text)",
        f"INSERT INTO $.t VALUES ('{keys[0]}', 'first')",
        f"INSERT INTO $.s VALUES (1, 'n/a'), (2, '{keys[0]}'), (3, NULL), (4, '1'), (5, '')",
    )
    for table in ("s", "t"):
        world.wh.sql(f"CREATE REMOTE TABLE {table} FROM crm.{world.schema}.{table}")
    world.wh.sql("CREATE MATERIALIZED VIEW texts AS SELECT id, v FROM s JOIN t ON s.ref = t.k")
    assert _rows(world.wh, "SELECT * FROM texts") == [(2, "first")]
    world.run(
        f"INSERT INTO $.s VALUES (6, 'no'), (7, '{keys[1]}'), (8, '{keys[0].upper()} '), (9, '1.000')",
        f"INSERT INTO $.t VALUES ('{keys[1]}', 'second')",
        "UPDATE $.s SET ref = '?' WHERE id = 2",
    )
    assert _rows(world.wh, "SELECT * FROM texts") == [(7, "second")]
    assert world.wh.check("texts").ok


def test_a_full_refresh_computes_the_view_from_all_rows_of_its_tables(world: World) -> None:
    wh = world.wh
    wh.sql(DIMENSION)
    wh.sql("CREATE MATERIALIZED VIEW per_city AS SELECT city, count(*) AS n FROM d GROUP BY city")
    world.run("TRUNCATE $.addr", "INSERT INTO $.addr VALUES (2, 'Bonn', 'DE')")
    for name in ("d", "per_city"):
        with pytest.raises(CaptureFailed, match="REFRESH MATERIALIZED VIEW … FULL"):
            wh.sql(f"SELECT * FROM {name}")
    assert wh.sql("REFRESH MATERIALIZED VIEW d FULL").rows == 3
    assert _rows(wh, "SELECT * FROM d") == [(2, "Bob", 2, "Bonn", "DE")]
    assert _rows(wh, "SELECT * FROM per_city") == [("Bonn", 1)]
    world.run("UPDATE $.cust SET addr = 2 WHERE cid = 3")
    assert _rows(wh, "SELECT * FROM per_city") == [("Bonn", 2)]
    assert wh.check("d").ok


def test_explain_shows_sets_rules_and_statements(world: World) -> None:
    wh = world.wh
    wh.sql(DIMENSION)
    world.run("UPDATE $.cust SET addr = 2 WHERE cid IN (1, 3)")
    wh.sql("REFRESH MATERIALIZED VIEW d")
    text = str(wh.explain("d"))
    for part in [
        f"cust = crm.{world.schema}.cust: change tracking delivers ins, up, delk; polled on query",
        "⋈ addr: flags by j, extra term for up, delk of the left side (§5.6)",
        "up becomes ups (§5.5)",
        "applied by: DELETE by key (delk), ",
        "MERGE by key (ups)",
        "a trigger notes the key of every changed row",
        "last cycle: cust 2 up → 2 ups",
    ]:
        assert part in text, text


def test_what_is_dropped_leaves_nothing_at_the_source(world: World) -> None:
    wh = world.wh
    wh.sql(DIMENSION)
    with pytest.raises(InvalidStatement, match="is used by d"):
        wh.sql("DROP REMOTE TABLE cust")
    with pytest.raises(InvalidStatement, match="remote table addr is a table of it"):
        wh.sql("DROP SOURCE crm")
    wh.sql("DROP MATERIALIZED VIEW d")
    for table in ("cust", "addr"):
        wh.sql(f"DROP REMOTE TABLE {table}")
    wh.sql("DROP SOURCE crm")
    with world.connection() as connection:
        query = "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s"
        names = {name for (name,) in connection.execute(query, (world.schema,))}
        assert names == {"cust", "addr", "cust_pkey", "addr_pkey"}
        triggers = "SELECT FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND NOT tgisinternal"
        assert connection.execute(triggers, (f"{world.schema}.cust",)).fetchall() == []
