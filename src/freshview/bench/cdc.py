"""Figures of change capture: changes taken from PostgreSQL by technique, dimension views, fresh answers over a server.

Each step starts a server of its own on loopback. At scale 1: 100,000 changes per technique and per flow; dumps of
3,000,000 rows; a view over 1,000,000 × 100,000 rows.
"""

from __future__ import annotations

import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import freshview
from freshview import Warehouse
from freshview.bench.measure import Chart, Figure, Timing, duration, memory, peak_memory, reset_peak, seconds_of, spread
from freshview.bench.postgres_server import LocalServer, NoServer, server_tools
from freshview.cdc.dumps import Dumps
from freshview.cdc.postgres.audit import Audit, AuditColumns
from freshview.cdc.postgres.decoding import Decoding
from freshview.cdc.postgres.server import Server
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.postgres.tracking import Tracking
from freshview.cdc.postgres.triggers import TriggerLog
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

_CHANGES = 100_000
_SETTINGS = {"wal_level": "logical", "max_replication_slots": "10", "max_wal_size": "4GB"}
_ONE = AuditColumns("changed", never=frozenset({"deletions"}))
_TECHNIQUES: dict[str, Callable[[Server, str], PostgresTable]] = {
    "tracking": Tracking,
    "log (triggers)": TriggerLog,
    "log (triggers, cheap net effect)": lambda s, t: TriggerLog(s, t, precise=False),
    "log (decoding)": lambda s, t: Decoding(s, t, "fv_bench"),
    "one audit column": lambda s, t: Audit(s, t, _ONE),
}
_LIMITED = ("tracking", "log (triggers)", "log (decoding)")  # of which the issue asks for a speed


@contextmanager
def _server() -> Iterator[str]:
    tools = server_tools()
    if tools is None:
        raise NoServer("PostgreSQL is not installed")
    server = LocalServer(tools, _SETTINGS)
    try:
        yield server.url()
    finally:
        server.stop()


def _run(url: str, *statements: str) -> float:
    """Run statements in one transaction; return the seconds."""
    import psycopg

    with psycopg.connect(url) as connection:
        begun = time.perf_counter()
        for statement in statements:
            connection.execute(statement.encode())
        connection.commit()
        return time.perf_counter() - begun


@contextmanager
def _warehouse(folder: Path, name: str) -> Iterator[Warehouse]:
    place = folder / f"cdc-{name}"
    shutil.rmtree(place, ignore_errors=True)
    with freshview.connect(place) as wh:
        yield wh
    shutil.rmtree(place, ignore_errors=True)


_COLUMNS = "id int PRIMARY KEY, a int, v text, changed timestamptz NOT NULL DEFAULT now()"
_SCHEMA = Schema(
    tuple(
        Column(name, parse_type(type_), nullable=name != "id")
        for name, type_ in (("id", "INT"), ("a", "INT"), ("v", "STRING"), ("changed", "TIMESTAMP"))
    ),
    ("id",),
)


class _TimedSource:
    """A source whose polls are timed."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def poll(self, position: str | None) -> Any:
        begun = time.perf_counter()
        try:
            return self._source.poll(position)
        finally:
            self.seconds = time.perf_counter() - begun


@dataclass(frozen=True)
class _Cost:
    """The seconds of one technique: the statement without and with the capture, the poll and the whole way here."""

    without: Timing
    beside: Timing
    poll: Timing
    here: Timing

    @property
    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        """What the technique costs at the source, and here."""
        there = {"statement": self.without.p50, "capture": max(0.0, self.beside.p50 - self.without.p50)}
        return there, {"poll": self.poll.p50, "commit": max(0.0, self.here.p50 - self.poll.p50)}


def techniques(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time the capture of updates by each technique: the statement at the source with and without, and the way here."""
    count = max(int(_CHANGES * scale), 1000)
    costs: dict[str, _Cost] = {}
    with _server() as url:
        for number, (name, open_table) in enumerate(_TECHNIQUES.items()):
            tables = (f"public.p{number}", f"public.c{number}")
            _fill(url, tables, count)
            source: Any = open_table(Server(url), tables[1])
            if hasattr(source, "install"):
                source.install()
            with _warehouse(folder, "techniques") as wh:
                costs[name] = _cost(wh, url, tables, _TimedSource(source), lambda _: None, repeat)
            if hasattr(source, "drop"):
                source.drop()
        tables, dumps = ("public.pd", "public.cd"), folder / "cdc-dumps"
        shutil.rmtree(dumps, ignore_errors=True)
        dumps.mkdir(parents=True)
        _fill(url, tables, count)
        with _warehouse(folder, "techniques") as wh:
            dumped = _TimedSource(Dumps(dumps, tables[1], _SCHEMA))
            costs["snapshot differential"] = _cost(
                wh, url, tables, dumped, partial(_dump, url, tables[1], dumps), repeat
            )
        shutil.rmtree(dumps, ignore_errors=True)
    figures = [_captured(name, count, cost) for name, cost in costs.items()]
    return [replace(figures[0], chart=_trade_off(count, costs)), *figures[1:]]


def _fill(url: str, tables: Sequence[str], count: int) -> None:
    rows = f"SELECT i, i, 'value ' || i FROM generate_series(1, {count}) i"
    for table in tables:
        _run(url, f"CREATE TABLE {table} ({_COLUMNS})", f"INSERT INTO {table} (id, a, v) {rows}")


def _dump(url: str, table: str, folder: Path, turn: int) -> None:
    """Write a whole table to a file."""
    import psycopg

    query = f"COPY {table} TO STDOUT (FORMAT csv, HEADER)"
    with (
        psycopg.connect(url, options="-c TimeZone=UTC") as connection,
        connection.cursor().copy(query.encode()) as rows,
        (folder / f"{turn:04}.csv").open("wb") as file,
    ):
        for row in rows:
            file.write(row)


def _cost(
    wh: Warehouse, url: str, tables: Sequence[str], source: _TimedSource, extract: Callable[[int], None], repeat: int
) -> _Cost:
    """Time rounds of an update of all rows, without a capture and with one, and the way of its changes here.

    `extract` is what the owner of the source does for the capture after a change.
    """
    wh.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, v STRING, changed TIMESTAMP)")
    extract(0)
    wh.capture("t", source)
    without, beside, polls, here = [], [], [], []
    change = "UPDATE {} SET a = a + 1, changed = clock_timestamp()"
    for turn in range(1, repeat + 1):
        without.append(_run(url, change.format(tables[0])))
        changed = _run(url, change.format(tables[1]))
        beside.append(changed + seconds_of(lambda turn=turn: extract(turn)))  # type: ignore[misc]
        here.append(seconds_of(lambda: wh.capture("t", source)))
        polls.append(source.seconds)
    return _Cost(*(Timing(tuple(seconds)) for seconds in (without, beside, polls, here)))


def _trade_off(count: int, costs: Mapping[str, _Cost]) -> Chart:
    """What each technique costs at the source and here (PARTIAL §4)."""
    panels = {
        "at the source": {name: cost.parts[0] for name, cost in costs.items()},
        "here": {name: cost.parts[1] for name, cost in costs.items()},
    }
    return Chart("trade-off", f"Capturing {count:,} updates of a table in PostgreSQL", panels)


def _captured(name: str, count: int, cost: _Cost) -> Figure:
    without, beside, here = cost.without, cost.beside, cost.here
    end_to_end = [count / (b + h) for b, h in zip(beside.seconds, here.seconds, strict=True)]
    details = {
        "the statement without capture": str(without),
        "the statement with capture": str(beside),
        "overhead at the source": f"{beside.p50 / without.p50:.2f} ×",
        "polled": str(cost.poll),
        "polled and committed here": str(here),
        "changes per second here": f"{count / here.p50:,.0f}",
    }
    limit = 20_000.0 if name in _LIMITED else None
    speed = statistics.median(end_to_end)
    between = (min(end_to_end), max(end_to_end))
    title = f"{name}: changes per second, end to end ({count:,} updates)"
    return Figure(title, speed, limit, "1/s", details, at_least=True, spread=between)


_FLOWS = {
    "without a sequence": "",
    "SEQUENCE BY, type 1": "SEQUENCE BY changed",
    "SEQUENCE BY, type 2": "SEQUENCE BY changed STORED AS SCD TYPE 2",
}


def flows(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time flows from a table in PostgreSQL: an update of all rows there, and REFRESH FLOW here."""
    count = max(int(_CHANGES * scale), 1000)
    figures = []
    with _server() as url:
        for number, (name, clauses) in enumerate(_FLOWS.items()):
            table = f"public.f{number}"
            _fill(url, [table], count)
            with _warehouse(folder, "flows") as wh:
                wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{url}', capture 'tracking')")
                wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.{table} KEYS (id) {clauses}")
                first = seconds_of(lambda: wh.sql("REFRESH FLOW f"))
                there, here = [], []
                for _ in range(repeat):
                    there.append(_run(url, f"UPDATE {table} SET a = a + 1, changed = clock_timestamp()"))
                    here.append(seconds_of(lambda: wh.sql("REFRESH FLOW f")))
                present = "WHERE __END_AT IS NULL" if "TYPE 2" in clauses else ""
                ours = [tuple(row) for row in wh.sql(f"SELECT id, a, v FROM t {present} ORDER BY id").collect()]
                is_right = ours == [(i, i + repeat, f"value {i}") for i in range(1, count + 1)]
                wh.sql("DROP FLOW f")
            speeds = [count / (a + b) for a, b in zip(there, here, strict=True)]
            details = {
                "the statement with capture": str(Timing(tuple(there))),
                "REFRESH FLOW": str(Timing(tuple(here))),
                "first load": duration(first),
            }
            title = f"flow {name}: changes per second, end to end ({count:,} updates)"
            between = (min(speeds), max(speeds))
            figures.append(
                Figure(title, statistics.median(speeds), None, "1/s", details, at_least=True, spread=between)
            )
            right = f"flow {name}: the table equals that of the source"
            figures.append(Figure(right, float(is_right), 1.0, "", {}, at_least=True, always=True))
    return figures


def large_dumps(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time the comparison of two dumps with millions of rows, of which 0.1 % differ, and what it takes of memory."""
    import duckdb

    rows = max(int(3_000_000 * scale), 10_000)
    dumps = folder / "large-dumps"  # not the folder of the warehouse, which is emptied
    shutil.rmtree(dumps, ignore_errors=True)
    (dumps / "t").mkdir(parents=True)
    query = (
        "COPY (SELECT i AS id, i + CASE WHEN i % 1000 = {turn} THEN {turn} ELSE 0 END AS a, 'some value ' || i AS v, "
        f"md5(i::VARCHAR) AS note FROM range({rows}) r(i) WHERE i % 50000 <> {{turn}}) TO '{{file}}' (HEADER)"
    )

    def dumped(turn: int) -> int:
        file = dumps / "t" / f"{turn:04}.csv"
        duckdb.sql(query.format(turn=turn, file=file))
        return file.stat().st_size

    with _warehouse(folder, "large-dumps") as wh:
        wh.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT, v STRING, note STRING)")
        size = dumped(0)
        wh.sql(f"CREATE SOURCE s USING CSV OPTIONS (path '{dumps}')")
        columns = "id BIGINT, a BIGINT, v STRING, note STRING"
        flow = f"CREATE FLOW f AS AUTO CDC INTO t FROM s.t ({columns}) KEYS (id)"
        loaded = seconds_of(lambda: (wh.sql(flow), wh.sql("REFRESH FLOW f")))
        times, grown = [], []
        for turn in range(1, repeat + 1):
            dumped(turn)
            reset_peak()
            begun = memory()
            times.append(seconds_of(lambda: wh.sql("REFRESH FLOW f")))
            grown.append(peak_memory() - begun)
        session = wh.engine().session
        last = session.read.csv(str(dumps / "t" / f"{repeat:04}.csv"), header=True, schema=columns)
        ours = wh.sql("SELECT * FROM t")
        is_right = ours.exceptAll(last).isEmpty() and last.exceptAll(ours).isEmpty()
    shutil.rmtree(dumps, ignore_errors=True)
    time_taken = Timing(tuple(times))
    details = {
        "a poll": str(time_taken),
        "first load": duration(loaded),
        "a dump": f"{size / 1e6:,.0f} MB",
        "Python grows by": f"{max(grown) / 1e6:,.0f} MB",
    }
    title = f"dumps of {rows:,} rows, 0.1 % differ: rows compared per second"
    return [
        Figure(title, rows / time_taken.p50, None, "1/s", details, at_least=True),
        Figure("the table equals the last dump", float(is_right), 1.0, "", {}, at_least=True, always=True),
    ]


_VIEW = "SELECT f.id, f.amount, f.dim, d.name, upper(d.region) AS region FROM fact f JOIN dim d ON f.dim = d.id"


def dimension(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a cycle of a dimension view after 0.1 % of its tables changed, and computing it from the remote state."""
    facts, dims = max(int(1_000_000 * scale), 1000), max(int(100_000 * scale), 100)
    with _server() as url, _warehouse(folder, "dimension") as wh:
        _run(
            url,
            "CREATE TABLE fact (id int PRIMARY KEY, amount int, dim int, note text)",
            "CREATE TABLE dim (id int PRIMARY KEY, name text, region text)",
            f"INSERT INTO fact SELECT i, i % 1000, 1 + i % {dims}, 'note ' || i FROM generate_series(1, {facts}) i",
            f"INSERT INTO dim SELECT i, 'name ' || i, 'region ' || i % 25 FROM generate_series(1, {dims}) i",
            "CREATE INDEX ON fact (dim)",
            "ANALYZE",
        )
        wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{url}', capture 'tracking')")
        for table in ("fact", "dim"):
            wh.sql(f"CREATE REMOTE TABLE {table} FROM s.public.{table}")
        created = seconds_of(lambda: wh.sql(f"CREATE MATERIALIZED VIEW v AS {_VIEW}"))
        whole = sum(_arrow_bytes(wh, table) for table in ("fact", "dim"))
        cycles, computed, fetched = [], [], []
        for turn in range(repeat + 1):
            _run(
                url,
                f"UPDATE fact SET amount = amount + 1 WHERE id % 1000 = {turn}",
                f"UPDATE dim SET name = name || '.' WHERE id % 1000 = {turn}",
            )
            cycle = seconds_of(lambda: wh.refresh("v"))
            anew = seconds_of(lambda: wh.sql(_VIEW).write.format("noop").mode("overwrite").save())
            if turn:
                cycles.append(cycle)
                computed.append(anew)
                found = re.search(r"(\d+) bytes fetched", str(wh.explain("v")))
                fetched.append(int(found[1]) if found else 0)
        cycle_time, anew_time = Timing(tuple(cycles)), Timing(tuple(computed))
        details = {
            "a cycle": str(cycle_time),
            "computing it from the remote state": str(anew_time),
            "creating it": duration(created),
        }
        share = 100 * max(fetched) / whole
        rows = f"{facts:,} × {dims:,} rows"
        ratio, between = anew_time.p50 / cycle_time.p50, spread(anew_time, cycle_time)
        is_right = wh.check("v").ok
        return [
            Figure(
                f"dimension view over {rows}, 0.1 %: recompute / cycle", ratio, 5.0, "×", details, True, None, between
            ),
            Figure("bytes fetched of the tables", share, 2.0, "%", {"bytes": f"{max(fetched):,} of {whole:,}"}),
            Figure("the view equals its definition", float(is_right), 1.0, "", {}, at_least=True, always=True),
        ]


def _arrow_bytes(wh: Warehouse, table: str) -> int:
    return int(wh.sql(f"SELECT * FROM {table}").toArrow().nbytes)


def fresh(folder: Path, scale: float, repeat: int) -> list[Figure]:
    """Time a fresh answer after one commit at the source (poll on query), and after the same change of a table here."""
    rows, turns = max(int(100_000 * scale), 1000), 5 * repeat + 2
    query = "SELECT count(*) AS n, sum(total) AS total FROM {}"
    with _server() as url, _warehouse(folder, "fresh") as wh:
        generated = f"SELECT i, i % 100, i FROM generate_series(1, {rows}) i"
        _run(url, "CREATE TABLE t (id int PRIMARY KEY, grp int, amount int)", f"INSERT INTO t {generated}")
        wh.sql(f"CREATE SOURCE s USING POSTGRES OPTIONS (url '{url}', capture 'tracking', poll 'on query')")
        wh.sql("CREATE REMOTE TABLE remote FROM s.public.t")
        wh.sql("CREATE MATERIALIZED VIEW copy AS SELECT id, grp, amount FROM remote")
        wh.sql("CREATE TABLE own (id INT PRIMARY KEY, grp INT, amount INT)")
        wh.sql("INSERT INTO own SELECT * FROM copy")
        for name, table in (("above", "copy"), ("beside", "own")):
            grouped = f"SELECT grp, sum(amount) AS total FROM {table} GROUP BY grp"
            wh.sql(f"CREATE MATERIALIZED VIEW {name} AS {grouped}")
        there, here, trips = [], [], []
        for turn in range(turns):
            _run(url, f"UPDATE t SET amount = amount + 1 WHERE id = {1 + turn}")
            remote = seconds_of(lambda: wh.sql(query.format("above")).collect())
            wh.sql(f"UPDATE own SET amount = amount + 1 WHERE id = {1 + turn}")
            own = seconds_of(lambda: wh.sql(query.format("beside")).collect())
            trip = seconds_of(lambda: _run(url, "SELECT 1"))
            if turn >= 2:
                there.append(remote)
                here.append(own + trip)
                trips.append(trip)
        remote_time, own_time = Timing(tuple(there)), Timing(tuple(here))
        details = {
            "fresh answer over the server": str(remote_time),
            "over our own table, and one round trip": str(own_time),
            "a round trip with a connection of its own": str(Timing(tuple(trips))),
        }
        ratio, between = remote_time.p50 / own_time.p50, spread(remote_time, own_time)
        title = "fresh answer after one commit at the source / after the same change here"
        return [Figure(title, ratio, 1.3, "×", details, spread=between)]


STEPS = (techniques, flows, large_dumps, dimension, fresh)
