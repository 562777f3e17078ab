"""`make conformance`: which TPC-H and TPC-DS queries can be views, how they are maintained, and that they are exact.

Every query (without its final ORDER BY and LIMIT) becomes a view over small data; every table gets random
inserts, updates and deletes in one transaction; every view is maintained and compared with its definition.
The counts in docs/conformance.md are written by this command.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp

import freshview
from freshview import Warehouse
from freshview.errors import FreshviewError

_SCALES = {"tpch": ("dbgen", 0.001), "tpcds": ("dsdgen", 0.01)}


@dataclass(frozen=True)
class Verdict:
    """What became of one query."""

    number: int
    accepted: bool
    incremental: bool
    exact: bool
    note: str


def benchmark(name: str) -> tuple[dict[str, pa.Table], list[tuple[int, str]]]:
    """Tables and query texts of a benchmark, from DuckDB's extension of that name."""
    import duckdb

    generator, scale = _SCALES[name]
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD '{_extension(name)}'")
    queries = connection.execute(f"SELECT query_nr, query FROM {name}_queries() ORDER BY 1").fetchall()
    connection.execute(f"CALL {generator}(sf = {scale})")
    names = [r[0] for r in connection.execute("SELECT table_name FROM information_schema.tables ORDER BY 1").fetchall()]
    return {t: connection.execute(f"SELECT * FROM {t}").to_arrow_table() for t in names}, queries


def _extension(name: str) -> Path:
    from importlib.util import find_spec

    spec = find_spec(f"duckdb_extension_{name}")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"duckdb-extension-{name} is not installed; pip install duckdb-extension-{name}")
    return next(Path(spec.submodule_search_locations[0]).rglob("*.duckdb_extension"))


def without_order(text: str) -> str:
    """A query without its outermost ORDER BY and LIMIT."""
    tree = sqlglot.parse_one(text, read="duckdb")
    for part in ("order", "limit", "offset"):
        tree.set(part, None)
    return tree.sql(dialect="spark")


def named_apart(text: str) -> str:
    """Output columns with names of their own: a view cannot have two of one name."""
    tree = sqlglot.parse_one(text, read="spark")
    select = tree
    while isinstance(select, exp.SetOperation | exp.Subquery):
        select = select.this
    seen: set[str] = set()
    for i, item in enumerate(select.expressions if isinstance(select, exp.Select) else ()):
        if isinstance(item, exp.Star) or item.is_star:
            continue
        name = item.alias_or_name or f"c{i}"
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


def change(wh: Warehouse, tables: list[str], seed: int, share: float) -> int:
    """Random deletes, updates (of one column) and inserts (of copies) on every table, in one transaction."""
    draw = random.Random(seed)
    total = 0
    with wh.transaction() as tx:
        core = tx._core
        for name in tables:
            relation = core.relation(name)
            rows = wh._storage.reader.contents(core.state(relation))
            count = max(1, int(rows.num_rows * share))
            picked = draw.sample(range(rows.num_rows), min(rows.num_rows, 2 * count))
            old = rows.take(pa.array(picked))
            copies = rows.take(pa.array(draw.choices(range(rows.num_rows), k=count)))
            column = draw.randrange(rows.num_columns)
            updated = old.slice(count)
            mixed = updated.set_column(
                column, rows.schema.field(column), updated.column(column).take(_shuffled(updated, draw))
            )
            total += core.apply(relation, old, pa.concat_tables([mixed.cast(rows.schema), copies]))
    return total


def _shuffled(rows: pa.Table, draw: random.Random) -> pa.Array:
    order = list(range(rows.num_rows))
    draw.shuffle(order)
    return pa.array(order, pa.int64())


def run(name: str, seed: int, only: set[int] | None, say: Any = print) -> list[Verdict]:
    tables, queries = benchmark(name)
    created: dict[int, str] = {}
    verdicts: dict[int, Verdict] = {}
    with tempfile.TemporaryDirectory() as folder, freshview.connect(Path(folder) / "warehouse") as wh:
        load(wh, tables)
        for number, text in queries:
            if only and number not in only:
                continue
            try:
                wh.sql(f"CREATE MATERIALIZED VIEW q{number} AS {named_apart(without_order(text))}")
                created[number] = f"q{number}"
            except FreshviewError as error:
                verdicts[number] = Verdict(number, False, False, False, str(error).splitlines()[0][:160])
                say(f"{name} {number}: refused: {verdicts[number].note}", flush=True)
        rows = change(wh, sorted(tables), seed, share=0.02)
        say(f"{name}: {len(created)} views created, {rows} rows changed", flush=True)
        for number, view in created.items():
            verdicts[number] = _verdict(wh, number, view)
            say(f"{name} {number}: {verdicts[number]}", flush=True)
    return [verdicts[n] for n in sorted(verdicts)]


def _verdict(wh: Warehouse, number: int, view: str) -> Verdict:
    definition = wh._keeper.definition(wh._catalog.relation(view))
    try:
        begun = time.perf_counter()
        jobs = wh.maintain([view])
        seconds = time.perf_counter() - begun
        report = wh.check(view)
    except FreshviewError as error:
        return Verdict(number, True, definition.incremental, False, str(error).splitlines()[0][:160])
    strategy = jobs[-1].strategy if jobs else "nothing"
    note = definition.reason or f"{strategy} in {seconds:.1f} s"
    if not report.ok:
        note = f"{len(report.missing)} rows missing, {len(report.extra)} extra"
    return Verdict(number, True, definition.incremental, report.ok, note)


def write(path: Path, results: dict[str, list[Verdict]], seed: int) -> None:
    lines = [
        "# Conformance",
        "",
        f"Written by `make conformance` (seed {seed}). Every query without its final ORDER BY and LIMIT.",
        "",
    ]
    lines += [
        "| benchmark | queries | accepted as views | maintained incrementally | exact after random changes |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, verdicts in results.items():
        counts = [len(verdicts), *(sum(getattr(v, f) for v in verdicts) for f in ("accepted", "incremental", "exact"))]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    for name, verdicts in results.items():
        lines += [
            "",
            f"## {name}",
            "",
            "| query | accepted | incremental | exact | note |",
            "| --- | --- | --- | --- | --- |",
        ]
        for v in verdicts:
            marks = " | ".join("yes" if x else "no" for x in (v.accepted, v.incremental, v.exact))
            lines.append(f"| {v.number} | {marks} | {v.note.replace('|', '/')} |")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="freshview.bench.conformance", description=__doc__)
    parser.add_argument("benchmarks", nargs="*", default=list(_SCALES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=lambda s: {int(n) for n in s.split(",")}, default=None)
    parser.add_argument("--out", type=Path, default=Path("docs/conformance.md"))
    arguments = parser.parse_args()
    results = {name: run(name, arguments.seed, arguments.only) for name in arguments.benchmarks}
    write(arguments.out, results, arguments.seed)
    return 0 if all(v.exact or not v.accepted for vs in results.values() for v in vs) else 1


if __name__ == "__main__":
    sys.exit(main())
