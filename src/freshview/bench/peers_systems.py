"""The systems of the peers suite: Freshview, plain Spark, PostgreSQL, DuckDB, Pathway, each in its usual setup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, convert_to_deltalake, write_deltalake

from freshview import Warehouse
from freshview.bench.data import V1
from freshview.bench.peers import DUCKDB, ORDER_KEY, OURS, STORED, TABLES, Maker, Missing, TableChange
from freshview.bench.peers_pathway import Pathway, pathway
from freshview.bench.peers_postgres import Postgres, postgres
from freshview.bench.tables import load, new
from freshview.spark.session import obtain_session

if TYPE_CHECKING:
    import duckdb


class Freshview:
    """A lazy view: the update stores the change, the query refreshes the view."""

    name = OURS
    setup = "lazy view, refreshed by the query"

    def __init__(self, home: Path, data: Path) -> None:
        self._wh = new(home / self.name.replace(" ", "-").lower())
        load(self._wh, data, TABLES)
        self._wh.sql(f"CREATE MATERIALIZED VIEW v1 AS {V1}")

    def apply(self, change: TableChange) -> None:
        with self._wh.transaction() as tx:
            if change.customers is not None:
                tx.upsert("customer", change.customers)
            for table, rows in change.come.items():
                tx.sql(f"DELETE FROM {table} WHERE {ORDER_KEY[table]} IN ({_listed(change.gone)})")
                tx.insert(table, rows)

    def answer(self) -> Sequence[Sequence[object]]:
        rows: Sequence[Sequence[object]] = self._wh.sql("SELECT * FROM v1").collect()
        return rows

    def processes(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        self._wh.close()


class WithStored(Freshview):
    """A lazy view over results that the optimiser stores, once it is asked to."""

    name = STORED
    setup = "lazy view, refreshed by the query, over what `optimize` stores"
    stored = "nothing"

    @property
    def warehouse(self) -> Warehouse:
        return self._wh

    def optimise(self) -> None:
        """Store what is proposed by what the history says of changes."""
        self._wh.optimize(apply=True)
        found = [view.about for view in self._wh.status().views if view.mode == "auxiliary"]
        self.stored = "; ".join(about.split(";")[0] for about in found) or "nothing"


class PlainSpark:
    """Spark over Delta tables: the change rewrites files (delta-rs), the query recomputes V1."""

    name = "Spark, recomputed"
    setup = "Delta tables changed by delta-rs, V1 recomputed in a session set as Freshview's"

    def __init__(self, home: Path, data: Path) -> None:
        self._session = obtain_session().newSession()
        self._paths = {table: home / "spark" / table for table in TABLES}
        for table, path in self._paths.items():
            self._session.read.parquet(str(data / f"{table}.parquet")).write.parquet(str(path))
            convert_to_deltalake(str(path))
        self._schemas = {t: self._session.read.parquet(str(p)).schema for t, p in self._paths.items()}

    def apply(self, change: TableChange) -> None:
        if change.customers is not None:
            customer = DeltaTable(str(self._paths["customer"]))
            merge = customer.merge(change.customers, "t.c_custkey = s.c_custkey", source_alias="s", target_alias="t")
            merge.when_matched_update_all().execute()
        for table, rows in change.come.items():
            DeltaTable(str(self._paths[table])).delete(f"{ORDER_KEY[table]} IN ({_listed(change.gone)})")
            write_deltalake(str(self._paths[table]), rows, mode="append")

    def answer(self) -> Sequence[Sequence[object]]:
        for table, path in self._paths.items():
            files = DeltaTable(str(path)).file_uris()
            self._session.read.schema(self._schemas[table]).parquet(*files).createOrReplaceTempView(table)
        return self._session.sql(V1).collect()

    def processes(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        for table in TABLES:
            self._session.catalog.dropTempView(table)


class Duck:
    """DuckDB on a database file: the update changes the tables in place, the query recomputes V1."""

    name = DUCKDB

    def __init__(self, home: Path, data: Path) -> None:
        self._connection = _duckdb(home / "peers.duckdb")
        for table in TABLES:
            self._connection.execute(f"CREATE TABLE {table} AS SELECT * FROM '{data / f'{table}.parquet'}'")
        version = self._connection.execute("SELECT version()").fetchall()[0][0]
        self.setup = f"{version}, tables in a database file, V1 recomputed by its text"

    def apply(self, change: TableChange) -> None:
        self._connection.begin()
        if change.customers is not None:
            moved = "UPDATE customer SET c_nationkey = s.c_nationkey FROM s WHERE customer.c_custkey = s.c_custkey"
            self._run(moved, change.customers)
        gone = pa.table({"k": pa.array(change.gone, pa.int64())})
        for table, rows in change.come.items():
            self._run(f"DELETE FROM {table} WHERE {ORDER_KEY[table]} IN (SELECT k FROM s)", gone)
            self._run(f"INSERT INTO {table} BY NAME SELECT * FROM s", rows)
        self._connection.commit()

    def _run(self, text: str, rows: pa.Table) -> None:
        self._connection.register("s", rows)
        self._connection.execute(text)
        self._connection.unregister("s")

    def answer(self) -> Sequence[Sequence[object]]:
        return self._connection.execute(V1).fetchall()

    def processes(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        self._connection.close()


def _duckdb(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise Missing("duckdb is not installed") from error
    return duckdb.connect(str(path))


def _listed(keys: Sequence[int]) -> str:
    return ", ".join(map(str, keys))


MAKERS: dict[str, Maker] = {
    OURS: Freshview,
    PlainSpark.name: PlainSpark,
    Postgres.name: postgres,
    Duck.name: Duck,
    Pathway.name: pathway,
}
