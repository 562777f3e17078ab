"""PostgreSQL for the peers suite: a private server on loopback, loaded by COPY, with V1 as a materialized view."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from freshview.bench.data import KEYS, V1
from freshview.bench.peers import TABLES, Missing, TableChange
from freshview.bench.postgres_server import LocalServer, NoServer, server_tools
from freshview.bench.processes import descendants
from freshview.storage.main import plain

_SETTINGS = {"shared_buffers": "1GB", "work_mem": "256MB", "maintenance_work_mem": "512MB", "max_wal_size": "8GB"}


def postgres(_home: Path, data: Path) -> Postgres:
    """Return a loaded server; raise Missing if there can be none."""
    tools = server_tools()
    if tools is None:
        raise Missing("no PostgreSQL server is installed (initdb and postgres were not found)")
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise Missing("psycopg is not installed") from error
    try:
        server = LocalServer(tools, {**_SETTINGS, "max_parallel_workers_per_gather": str(os.cpu_count())})
    except NoServer as error:
        raise Missing(str(error)) from error
    try:
        return Postgres(server, data)
    except BaseException:
        server.stop()
        raise


class Postgres:
    """Tables with primary keys; a transaction applies the change, then REFRESH recomputes the stored view."""

    name = "PostgreSQL, REFRESH"

    def __init__(self, server: LocalServer, data: Path) -> None:
        import psycopg

        self._server = server
        self._connection = psycopg.connect(server.url(), autocommit=True)
        for table in TABLES:
            self._load(table, data / f"{table}.parquet")
        self._connection.execute(f"CREATE MATERIALIZED VIEW v1 AS {V1}".encode())
        self._connection.execute("VACUUM ANALYZE")
        self.setup = (
            f"{self._connection.info.server_version // 10000}, "
            f"{', '.join(f'{k} {v}' for k, v in _SETTINGS.items())}; REFRESH MATERIALIZED VIEW, then SELECT"
        )

    def _load(self, table: str, source: Path) -> None:
        file = pq.ParquetFile(source)
        columns = ", ".join(f"{f.name} {column_type(f.type)}" for f in file.schema_arrow)
        self._connection.execute(f"CREATE TABLE {table} ({columns})".encode())
        for batch in file.iter_batches(batch_size=200_000):
            self._copy(table, plain(pa.Table.from_batches([batch])))
        self._connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({KEYS[table]})".encode())

    def _copy(self, table: str, rows: pa.Table) -> None:
        with self._connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)".encode()) as copy:
            copy.write(as_csv(rows))

    def apply(self, change: TableChange) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            if change.customers is not None:
                moved = change.customers.select(["c_nationkey", "c_custkey"]).to_pylist()
                update = b"UPDATE customer SET c_nationkey = %(c_nationkey)s WHERE c_custkey = %(c_custkey)s"
                cursor.executemany(update, moved)
            if change.gone:
                cursor.execute(b"DELETE FROM lineitem WHERE l_orderkey = ANY(%s)", [list(change.gone)])
                cursor.execute(b"DELETE FROM orders WHERE o_orderkey = ANY(%s)", [list(change.gone)])
            for table, rows in change.come.items():
                self._copy(table, rows)

    def answer(self) -> Sequence[Sequence[object]]:
        self._connection.execute("REFRESH MATERIALIZED VIEW v1")
        return self._connection.execute("SELECT * FROM v1").fetchall()

    def processes(self) -> Sequence[int]:
        return descendants(self._server.process)

    def close(self) -> None:
        self._connection.close()
        self._server.stop()


def column_type(kind: pa.DataType) -> str:
    """Return PostgreSQL's type for a column of TPC-H."""
    if pa.types.is_decimal(kind):
        return f"NUMERIC({kind.precision},{kind.scale})"
    if pa.types.is_date(kind):
        return "DATE"
    if pa.types.is_integer(kind):
        return "BIGINT" if kind.bit_width > 32 else "INT"
    return "TEXT"


def as_csv(rows: pa.Table) -> bytes:
    """Return rows as CSV for COPY."""
    text = io.BytesIO()
    pcsv.write_csv(rows, text, pcsv.WriteOptions(include_header=False))
    return text.getvalue()
