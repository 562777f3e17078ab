"""Remote tables in the catalog, without Spark: what they name, and what is refused."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from tests.internals import internals

import freshview
from freshview.errors import AlreadyExists, CaptureFailed, FreshviewError, InvalidStatement, NotFound
from freshview.relation.conditions import Among, Compared, Condition

pytestmark = pytest.mark.postgres


@pytest.fixture
def table(database: str) -> str:
    name = "public.remote_customer"
    with psycopg.connect(database) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {name}".encode())
        connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, name text)".encode())
    return name


def test_a_remote_table_has_the_columns_and_the_key_of_its_source(
    wh: freshview.Warehouse, database: str, table: str, tmp_path: Path
) -> None:
    wh.sql(f"CREATE SOURCE crm USING POSTGRES OPTIONS (url '{database}')")
    wh.sql(f"CREATE REMOTE TABLE c FROM crm.{table} KEYS (ID)")
    wh.sql(f"CREATE REMOTE TABLE IF NOT EXISTS c FROM crm.{table}")
    wh.sql("CREATE REMOTE TABLE unqualified FROM crm.remote_customer")
    with freshview.connect(tmp_path / "warehouse") as other:
        found = internals(other).catalog.relation("c")
        assert (found.kind, found.schema.names, found.schema.key) == ("remote table", ("id", "name"), ("id",))
        assert internals(other).catalog.relation("unqualified").facts["table"] == table
    assert [t.name for t in wh.status().tables] == []


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("CREATE REMOTE TABLE c FROM crm.$", AlreadyExists, "exists already"),
        ("CREATE REMOTE TABLE d FROM nowhere.$", NotFound, "source nowhere"),
        ("CREATE REMOTE TABLE d FROM crm.public.nothing", CaptureFailed, "the server does not have it"),
        ("CREATE REMOTE TABLE d FROM crm.$ KEYS (name)", InvalidStatement, r"the primary key of .* is \(id\)"),
        ("CREATE REMOTE TABLE d FROM files.t", InvalidStatement, "cannot be queried for rows"),
        ("DROP TABLE c", InvalidStatement, "Use DROP REMOTE TABLE"),
        ("DROP REMOTE TABLE own", InvalidStatement, "is no remote table"),
        ("DROP SOURCE crm", InvalidStatement, "remote table c is a table of it"),
        ("ALTER TABLE c RENAME TO d", InvalidStatement, "views know it by its name"),
        ("ALTER TABLE c ADD COLUMN x INT", InvalidStatement, "its columns cannot be changed here"),
        ("INSERT INTO c VALUES (1, 'a')", InvalidStatement, "is read-only here"),
        ("CHECKPOINT c", InvalidStatement, "no rows of it are stored"),
        ("REFRESH MATERIALIZED VIEW c", InvalidStatement, "is not a materialized view"),
    ],
)
def test_bad_statements_are_refused_and_change_nothing(
    wh: freshview.Warehouse, database: str, table: str, statement: str, error: type[FreshviewError], message: str
) -> None:
    wh.sql(f"CREATE SOURCE crm USING POSTGRES OPTIONS (url '{database}')")
    wh.sql("CREATE SOURCE files USING CANAL OPTIONS (path '/data')")
    wh.sql(f"CREATE REMOTE TABLE c FROM crm.{table}")
    wh.sql("CREATE TABLE own (id INT)")
    before = wh.status().csn
    with pytest.raises(error, match=message):
        wh.sql(statement.replace("$", table))
    assert wh.status().csn == before


def test_a_remote_table_that_is_dropped_frees_its_source(wh: freshview.Warehouse, database: str, table: str) -> None:
    wh.sql(f"CREATE SOURCE crm USING POSTGRES OPTIONS (url '{database}')")
    wh.sql(f"CREATE REMOTE TABLE c FROM crm.{table}")
    wh.sql("DROP REMOTE TABLE c")
    wh.sql("DROP REMOTE TABLE IF EXISTS c")
    wh.sql("DROP SOURCE crm")
    with pytest.raises(NotFound, match="source crm"):
        wh.sql(f"CREATE REMOTE TABLE c FROM crm.{table}")


def test_conditions_on_columns_are_answered_by_the_server_where_its_equality_is_spark_s(
    wh: freshview.Warehouse, database: str
) -> None:
    """Law: what the server leaves out does not meet the conditions; types that are texts here only are read whole."""
    with psycopg.connect(database) as connection:
        connection.execute("DROP TABLE IF EXISTS public.remote_typed")
        columns = "id int PRIMARY KEY, code varchar(3), fixed char(3), day date, uid uuid, amount numeric"
        connection.execute(f"CREATE TABLE public.remote_typed ({columns})".encode())
        for i in range(5):
            row = (i, "abc"[: i % 3 + 1], "x" * (i % 3), f"2024-01-0{i + 1}", uuid.UUID(int=i), i)
            connection.execute("INSERT INTO public.remote_typed VALUES (%s, %s, %s, %s, %s, %s)", row)
    wh.sql(f"CREATE SOURCE crm USING POSTGRES OPTIONS (url '{database}')")
    wh.sql("CREATE REMOTE TABLE typed FROM crm.remote_typed")
    relation, dimensions = internals(wh).catalog.relation("typed"), internals(wh).dimensions

    def found(*asked: tuple[str, Condition]) -> list[int]:
        return sorted(dimensions.contents([relation], {"typed": asked})["typed"].column("id").to_pylist())

    def among(name: str, *values: object) -> tuple[str, Condition]:
        return name, Among(pa.array(values, relation.schema.column(name).type.arrow))

    assert found() == [0, 1, 2, 3, 4]
    assert found(among("id", 3, 4, 99)) == [3, 4]
    assert found(among("id")) == []
    assert found(among("code", "a"), among("id", 0, 1)) == [0]
    assert {0, 3} <= set(found(among("fixed", "   "))), "padded or not"
    assert found(among("day", dt.date(2024, 1, 2))) == [1]
    assert found(among("uid", "no uuid")) == found(among("amount", "1.0")) == [0, 1, 2, 3, 4]
    assert found(("id", Compared("<", pa.scalar(3, pa.int32())))) == [0, 1, 2, 3, 4]
