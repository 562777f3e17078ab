"""Pathway's side of the peers suite: V1 as a streaming computation, told of changes on standard input.

Run as a script by an interpreter that has pathway (it needs other versions of things than we do), so it imports
nothing of ours. Pathway has no decimals: amounts travel as whole cents, and are exact.

A line in is a JSON object: {"left": {table: file}, "come": {table: file}} with Parquet files, or {"answer": true}.
A line out answers it: {"taken": true}, or {"rows": [...]}.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pathway as pw  # type: ignore[import-not-found]
import pyarrow.compute as pc
import pyarrow.parquet as pq

_CUSTOMER, _ORDERS, _LINEITEM, _NATION, _MARK = range(5)
_COLUMNS: dict[str, tuple[int, dict[str, str]]] = {
    "customer": (_CUSTOMER, {"k1": "c_custkey", "ref": "c_nationkey", "s": "c_mktsegment"}),
    "orders": (_ORDERS, {"k1": "o_orderkey", "ref": "o_custkey"}),
    "lineitem": (
        _LINEITEM,
        {"k1": "l_orderkey", "k2": "l_linenumber", "price": "l_extendedprice", "quantity": "l_quantity"},
    ),
    "nation": (_NATION, {"k1": "n_nationkey", "s": "n_name"}),
}
_NOTHING = {"k1": 0, "k2": 0, "ref": 0, "price": 0, "quantity": 0, "s": ""}
_AT_ONCE = 500_000  # rows of a commit while loading


class Line(pw.Schema):  # type: ignore[misc]
    """A row of any table: one stream, so that a change of several tables is one commit."""

    kind: int = pw.column_definition(primary_key=True)
    k1: int = pw.column_definition(primary_key=True)
    k2: int = pw.column_definition(primary_key=True)
    ref: int
    price: int
    quantity: int
    s: str


def rows_of(table: str, path: str) -> Iterator[dict[str, Any]]:
    kind, columns = _COLUMNS[table]
    for batch in pq.ParquetFile(path).iter_batches(batch_size=100_000, columns=list(columns.values())):
        values = {}
        for name, source in columns.items():
            column = batch.column(source)
            if name in ("price", "quantity"):
                column = pc.cast(pc.multiply(column, 100), "int64")
            values[name] = column.to_pylist()
        for row in zip(*values.values(), strict=True):
            yield {**_NOTHING, "kind": kind, **dict(zip(values, row, strict=True))}


class Source(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """The tables, and then whatever is told; a mark ends each commit."""

    def __init__(self, data: Path) -> None:
        super().__init__()
        self._data = data
        self.told: queue.Queue[dict[str, dict[str, str]] | None] = queue.Queue()
        self.taken = threading.Event()
        self.marks = 0

    def run(self) -> None:
        sent = 0
        for table in _COLUMNS:
            for row in rows_of(table, str(self._data / f"{table}.parquet")):
                self.next(**row)
                sent += 1
                if sent % _AT_ONCE == 0:
                    self.commit()
        self._end_commit()
        while (change := self.told.get()) is not None:
            for table, path in change["left"].items():
                for row in rows_of(table, path):
                    self.delete(**row)
            for table, path in change["come"].items():
                for row in rows_of(table, path):
                    self.next(**row)
            self._end_commit()

    def _end_commit(self) -> None:
        self.marks += 1
        self.next(**{**_NOTHING, "kind": _MARK, "k1": self.marks})
        self.commit()
        self.taken.set()


class Answer:
    """The rows of V1 as they are after the last mark that was worked off."""

    def __init__(self) -> None:
        self._rows: dict[Any, tuple[Any, ...]] = {}
        self._marked: dict[int, int] = {}  # mark → the time it belongs to
        self._ended = -1  # the last time of which all of V1 has come
        self._changed = threading.Condition()

    def on_row(self, key: Any, row: dict[str, Any], is_addition: bool, **_: Any) -> None:
        told = tuple(row[c] for c in ("n_name", "c_mktsegment", "totalcnt", "price", "quantity"))
        with self._changed:
            if is_addition:
                self._rows[key] = told
            elif self._rows.get(key) == told:  # else its successor has come already
                del self._rows[key]

    def on_mark(self, row: dict[str, Any], time: int, **_: Any) -> None:
        with self._changed:
            self._marked[row["k1"]] = time
            self._changed.notify_all()

    def on_time_end(self, time: int) -> None:
        with self._changed:
            self._ended = max(self._ended, time)
            self._changed.notify_all()

    def after(self, mark: int) -> list[tuple[Any, ...]]:
        with self._changed:
            self._changed.wait_for(lambda: mark in self._marked and self._marked[mark] <= self._ended)
            return sorted(self._rows.values())


def v1(lines: pw.Table) -> pw.Table:
    """V1, its joins in the order that keeps what is stored between them smallest."""
    customer, orders, lineitem, nation = (
        lines.filter(pw.this.kind == kind) for kind in (_CUSTOMER, _ORDERS, _LINEITEM, _NATION)
    )
    homes = customer.join(nation, customer.ref == nation.k1).select(
        k=customer.k1, n_name=nation.s, c_mktsegment=customer.s
    )
    placed = orders.join(homes, orders.ref == homes.k).select(
        k=orders.k1, n_name=homes.n_name, c_mktsegment=homes.c_mktsegment
    )
    joined = lineitem.join(placed, lineitem.k1 == placed.k).select(
        n_name=placed.n_name, c_mktsegment=placed.c_mktsegment, price=lineitem.price, quantity=lineitem.quantity
    )
    return joined.groupby(pw.this.n_name, pw.this.c_mktsegment).reduce(
        pw.this.n_name, pw.this.c_mktsegment, totalcnt=pw.reducers.count(),
        price=pw.reducers.sum(pw.this.price), quantity=pw.reducers.sum(pw.this.quantity),
    )  # fmt: skip


def serve(source: Source, answer: Answer) -> None:
    """Answer each line that comes in; the end of the input ends it all."""
    for text in sys.stdin:
        asked = json.loads(text)
        if "answer" in asked:
            told: dict[str, Any] = {"rows": answer.after(source.marks)}
        else:
            source.taken.clear()
            source.told.put(asked)
            source.taken.wait()
            told = {"taken": True}
        print(json.dumps(told), flush=True)
    source.told.put(None)


def main() -> None:
    source, answer = Source(Path(sys.argv[1])), Answer()
    lines = pw.io.python.read(source, schema=Line, autocommit_duration_ms=None, max_backlog_size=200_000)
    result = v1(lines)
    marks = lines.filter(pw.this.kind == _MARK)
    pw.io.subscribe(marks, on_change=answer.on_mark)
    pw.io.subscribe(result, on_change=answer.on_row, on_time_end=answer.on_time_end)

    def begin() -> None:
        source.taken.wait()  # all is loaded
        answer.after(1)
        print(json.dumps({"version": pw.__version__}), flush=True)
        serve(source, answer)

    threading.Thread(target=begin, daemon=True).start()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main()
