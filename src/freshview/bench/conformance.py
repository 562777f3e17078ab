"""`make conformance`: which TPC-H and TPC-DS queries can be views, how they are maintained, and that they are exact.

Every query, its ORDER BY and LIMIT included, becomes a view over small data; every table gets random inserts, updates
and deletes in one transaction; every view is maintained and compared with what Spark answers to the query's own text.
(Where a LIMIT ends among rows that tie, that text orders them by all columns, as the view does.) This command writes
the counts in docs/conformance.md.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlglot
from sqlglot import exp

import freshview
from freshview import Warehouse
from freshview.bench.tpcds import shrink
from freshview.errors import FreshviewError, NotMaintainable
from freshview.events import Event
from freshview.relation.schema import Schema
from freshview.views.invariants import compared

if TYPE_CHECKING:
    import duckdb

_SCALES = {"tpch": ("dbgen", 0.01), "tpcds": ("dsdgen", 0.01)}
_SHARE = 0.04  # of each table's rows is deleted, the same share updated, and the same inserted

Say = Callable[[str], None]


@dataclass(frozen=True)
class Judgement:
    """The result of one query. An empty view, or one that did not change, proves little: so both are counted."""

    number: int
    accepted: bool
    incremental: bool = False
    exact: bool = False
    rows: int = 0  # of the view when it was created
    changed: int = 0  # rows that maintenance deleted or inserted
    create_seconds: float = 0.0
    maintain_seconds: float = 0.0
    note: str = ""
    reading_seconds: float = 0.0  # of the creation: Spark was asked how it reads the text, by plans or by the self-test


def benchmark(name: str) -> tuple[dict[str, pa.Table], list[tuple[int, str]]]:
    """Return the tables and query texts of a benchmark, from DuckDB's extension of that name."""
    generator, scale = _SCALES[name]
    connection = _duckdb_with(name)
    queries = _texts(connection, name)
    connection.execute(f"CALL {generator}(sf = {scale})")
    if name == "tpcds":
        shrink(connection, [text for _, text in queries])
    names = [r[0] for r in connection.execute("SELECT table_name FROM information_schema.tables ORDER BY 1").fetchall()]
    return {t: connection.execute(f"SELECT * FROM {t}").to_arrow_table() for t in names}, queries


def queries_of(name: str) -> list[tuple[int, str]]:
    """Return the query texts of a benchmark, with their numbers."""
    return _texts(_duckdb_with(name), name)


def _duckdb_with(name: str) -> duckdb.DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD '{extension(name)}'")
    return connection


def _texts(connection: duckdb.DuckDBPyConnection, name: str) -> list[tuple[int, str]]:
    return connection.execute(f"SELECT query_nr, query FROM {name}_queries() ORDER BY 1").fetchall()


def extension(name: str) -> Path:
    """Return the file of DuckDB's extension that generates a benchmark's data."""
    spec = find_spec(f"duckdb_extension_{name}")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"duckdb-extension-{name} is not installed; pip install duckdb-extension-{name}")
    return next(Path(spec.submodule_search_locations[0]).rglob("*.duckdb_extension"))


def in_spark(text: str) -> str:
    """Return a query of a benchmark in Spark's dialect."""
    return sqlglot.parse_one(text, read="duckdb").sql(dialect="spark")


def with_ties_broken(text: str, columns: int) -> str:
    """Return a query whose LIMIT takes the same of rows that tie as a view does: those that come first by all columns.

    `columns` is the number of the query's columns.
    """
    tree = sqlglot.parse_one(text, read="spark")
    order = tree.args.get("order")
    if tree.args.get("limit") is None or order is None:
        return text
    ties = [exp.Ordered(this=exp.Literal.number(i + 1), desc=False, nulls_first=False) for i in range(columns)]
    order.set("expressions", [*order.expressions, *ties])
    return tree.sql(dialect="spark")


def named_apart(text: str) -> str:
    """Return a query with distinct column names: a view cannot have two columns of one name."""
    tree = sqlglot.parse_one(text, read="spark")
    select = tree
    while isinstance(select, exp.SetOperation | exp.Subquery):
        select = select.this
    seen: set[str] = set()
    for i, item in enumerate(select.expressions if isinstance(select, exp.Select) else ()):
        if isinstance(item, exp.Star) or item.is_star:
            continue
        name = item.alias_or_name or item.unnest().alias_or_name or f"c{i}"
        if name.lower() in seen or not name.replace("_", "a").isalnum():
            name = f"{name}_{i}" if name.replace("_", "a").isalnum() else f"c{i}"
        if item.alias_or_name != name:
            item.replace(exp.alias_(item.unalias().copy(), name))
        seen.add(name.lower())
    return tree.sql(dialect="spark")


def load(wh: Warehouse, tables: dict[str, pa.Table]) -> None:
    for name, rows in tables.items():
        frame = wh.engine().session.createDataFrame(rows)
        frame.createOrReplaceTempView(f"source_{name}")
        wh.sql(f"CREATE TABLE {name} AS SELECT * FROM source_{name}")
        frame.sparkSession.catalog.dropTempView(f"source_{name}")


def change(wh: Warehouse, tables: Iterable[str], seed: int) -> int:
    """Delete, update and insert (copies of) random rows of every table, in one transaction; return the row count."""
    draw = random.Random(seed)
    total = 0
    with wh.transaction() as tx:
        core = tx._core
        for name in tables:
            relation = core.relation(name)
            rows = wh._storage.reader.contents(core.state(relation))
            count = max(2, int(rows.num_rows * _SHARE))
            picked = draw.sample(range(rows.num_rows), min(rows.num_rows, 2 * count))
            old = rows.take(pa.array(picked))
            copies = rows.take(pa.array(draw.choices(range(rows.num_rows), k=count)))
            total += core.apply(relation, old, pa.concat_tables([_mixed(old.slice(count), rows, draw), copies]))
    return total


def _mixed(chosen: pa.Table, rows: pa.Table, draw: random.Random) -> pa.Table:
    """Return the chosen rows, each with one value from another row; four columns are changed in all."""
    parts = []
    size = -(-chosen.num_rows // 4) or 1
    for start in range(0, chosen.num_rows, size):
        part = chosen.slice(start, size)
        column = draw.randrange(rows.num_columns)
        values = rows.column(column).take(pa.array(draw.choices(range(rows.num_rows), k=part.num_rows)))
        parts.append(part.set_column(column, rows.schema.field(column), values))
    return pa.concat_tables([rows.slice(0, 0), *parts])


def run(name: str, seed: int, numbers: set[int] | None, say: Say, done: Iterable[Judgement] = ()) -> list[Judgement]:
    """Return judgements on a benchmark's queries, or on those with these numbers; judgements in `done` are kept."""
    tables, queries = benchmark(name)
    judgements = {v.number: v for v in done}
    wanted = [(n, t) for n, t in queries if (numbers is None or n in numbers) and n not in judgements]
    if not wanted:
        return [judgements[n] for n in sorted(judgements)]
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, freshview.connect(Path(folder) / "warehouse") as wh:
        load(wh, tables)
        reading = ReadingSeconds(wh)
        created: list[tuple[Judgement, str]] = []
        for number, query in wanted:
            text = named_apart(in_spark(query))
            judgement = create(wh, number, text, reading)
            if judgement.accepted:
                created.append((judgement, text))
                note = f"{judgement.rows} rows"
            else:
                judgements[number], note = judgement, f"refused: {judgement.note}"
            say(f"{name} {number}: created in {judgement.create_seconds:.1f} s, {note}")
        changed = change(wh, sorted(tables), seed)
        say(f"{name}: {len(created)} views created, {changed} rows changed, {time.perf_counter() - begun:.0f} s so far")
        for judgement, text in created:
            judgements[judgement.number] = judged = judge(wh, judgement, text)
            say(f"{name} {json.dumps(asdict(judged))}")
    return [judgements[n] for n in sorted(judgements)]


class ReadingSeconds:
    """The seconds for which Spark was asked how it reads a view, by the events of a warehouse."""

    def __init__(self, wh: Warehouse) -> None:
        self.seconds = 0.0
        self._begun = 0.0
        wh.events.listen(self._heard)

    def _heard(self, event: Event) -> None:
        if event.name == "view.reading" and event.details["step"] == "text":
            self._begun = time.perf_counter()
        elif event.name == "view.reading" and event.details["step"] == "read":
            self.seconds += _since(self._begun)


def create(wh: Warehouse, number: int, text: str, reading: ReadingSeconds | None = None) -> Judgement:
    """Create a view q<number>, maintained by delta rules if it can be, even where recomputing would be cheaper."""
    if reading is not None:
        reading.seconds = 0.0
    created = _create(wh, number, text)
    return replace(created, reading_seconds=reading.seconds) if reading is not None else created


def _create(wh: Warehouse, number: int, text: str) -> Judgement:
    begun = time.perf_counter()
    try:
        try:
            outcome = wh.sql(f"CREATE MATERIALIZED VIEW q{number} TBLPROPERTIES ('refresh'='incremental') AS {text}")
        except NotMaintainable:
            outcome = wh.sql(f"CREATE MATERIALIZED VIEW q{number} AS {text}")
    except FreshviewError as error:
        return Judgement(number, False, note=_first_line(error), create_seconds=_since(begun))
    return Judgement(number, True, rows=outcome.rows, create_seconds=_since(begun))


def judge(wh: Warehouse, judgement: Judgement, text: str) -> Judgement:
    """Maintain a view after its tables have changed, and compare it with the answer to its text."""
    view = f"q{judgement.number}"
    known = asdict(judgement)
    begun = time.perf_counter()
    try:
        definition = wh._views.definitions.of(wh._catalog.relation(view))
        jobs = wh.maintain([view])
        known["maintain_seconds"] = _since(begun)
        known["changed"] = sum(j.view_rows for j in jobs)
        strategies = {j.strategy for j in jobs} - {"nothing"}
        known["incremental"] = definition.incremental and strategies <= {"incremental"}
        known["note"] = definition.reason or ("recomputed in this run" if "full" in strategies else "")
        stored = wh.sql(f"SELECT * FROM {view}")
        schema: Schema = wh._catalog.relation(view).schema
        visible = Schema(tuple(schema.column(c) for c in definition.names))
        found = compared(wh.engine(), wh.sql(with_ties_broken(text, len(definition.names))), stored, visible)
    except FreshviewError as error:
        return Judgement(**{**known, "exact": False, "note": _first_line(error)})
    if found.missing_rows or found.extra_rows:
        known["note"] = f"{found.missing_rows} rows missing, {found.extra_rows} extra"
        return Judgement(**{**known, "exact": False})
    return Judgement(**{**known, "exact": True})


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 2)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


def write(path: Path, results: dict[str, list[Judgement]], seed: int) -> None:
    """Write the document: counts, and a line for each query."""
    lines = [
        "# Conformance",
        "",
        f"Written by `make conformance` (seed {seed}). Every query is a view over small data, its ORDER BY and LIMIT",
        "included; only columns of one name are named apart. One transaction then inserts, updates and deletes",
        "random rows of every table; the view is maintained and compared, as a bag, with Spark's answer to its text.",
        "Where a LIMIT ends among rows that tie, that text orders them by all columns, as the view does.",
        "An aggregate without GROUP BY has a row even of empty tables, so a change proves more than its having rows.",
        "",
        "Before: as the page had it that this run replaces. Reading: Spark is asked how it reads the text, in CREATE.",
        "",
        "| benchmark | queries | accepted as views | incremental before | maintained incrementally"
        " | exact after the changes | with rows | changed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    before = incremental_in(path.read_text() if path.exists() else "")
    for name, judgements in results.items():
        accepted, *others = [sum(bool(getattr(v, f)) for v in judgements) for f in _COUNTED]
        counts = [len(judgements), accepted, before.get(name, "—"), *others]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    for name, judgements in results.items():
        lines += [
            "",
            f"## {name}",
            "",
            "| query | accepted | incremental | exact | rows | rows changed | create, s | reading, s | maintain, s"
            " | note |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for v in judgements:
            marks = ["yes" if x else "no" for x in (v.accepted, v.incremental, v.exact)]
            seconds = [f"{s:.1f}" for s in (v.create_seconds, v.reading_seconds, v.maintain_seconds)]
            sizes = [v.rows, v.changed, *seconds]
            lines.append(f"| {' | '.join(map(str, [v.number, *marks, *sizes]))} | {v.note.replace('|', '/')} |")
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = _HUNT.search(path.read_text()) if path.exists() else None  # the section that `make hunt` writes
    path.write_text("\n".join([*lines, *(["", kept[0]] if kept else [])]) + "\n")


def incremental_in(page: str) -> dict[str, int]:
    """Return how many views of each benchmark are incremental by a page of this kind."""
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    title = next((row for row in rows if "maintained incrementally" in row), None)
    if title is None:
        return {}
    place = title.index("maintained incrementally")
    return {row[0]: int(row[place]) for row in rows if row[0] in _SCALES and row[place].isdigit()}


_HUNT = re.compile("<!-- hunt -->.*<!-- /hunt -->", re.DOTALL)
_COUNTED = ("accepted", "incremental", "exact", "rows", "changed")


def _remembered(log: Path | None, name: str) -> list[Judgement]:
    """Return the judgements of an earlier run, from its log."""
    lines = log.read_text().splitlines() if log is not None and log.exists() else []
    return [Judgement(**json.loads(line.split(" ", 1)[1])) for line in lines if line.startswith(f"{name} {{")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="freshview.bench.conformance", description=__doc__)
    parser.add_argument("benchmarks", nargs="*", default=list(_SCALES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=lambda s: {int(n) for n in s.split(",")}, default=None)
    parser.add_argument("--out", type=Path, default=Path("docs/conformance.md"))
    parser.add_argument("--log", type=Path, default=None, help="add judgements to this file, and skip those it has")
    arguments = parser.parse_args()

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
        if arguments.log is not None:
            with arguments.log.open("a") as log:
                log.write(line + "\n")

    results = {}
    for name in arguments.benchmarks:
        results[name] = run(name, arguments.seed, arguments.only, say, _remembered(arguments.log, name))
    before = incremental_in(arguments.out.read_text() if arguments.out.exists() else "")
    for name, judgements in results.items():
        now = sum(v.incremental for v in judgements)
        say(f"{name}: {before.get(name, '—')} incremental before, {now} of {len(judgements)} now")
    write(arguments.out, results, arguments.seed)
    return 0 if all(v.exact or not v.accepted for vs in results.values() for v in vs) else 1


if __name__ == "__main__":
    sys.exit(main())
