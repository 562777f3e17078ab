"""The worker process of Pathway in the peers suite: V1 as a streaming computation, with changes on standard input.

An interpreter that has pathway runs this script. Pathway needs other versions of packages than Freshview, so the script
imports nothing of Freshview. Pathway has no decimals: amounts are whole cents, and exact.

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
_AT_ONCE = 500_000  # rows per commit while loading


class AnyRow(pw.Schema):  # type: ignore[misc]
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


class TableRows(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """The rows of the tables, then the changes that are queued; a mark ends each commit."""

    def __init__(self, data: Path) -> None:
        super().__init__()
        self._data = data
        self.changes: queue.Queue[dict[str, dict[str, str]] | None] = queue.Queue()
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
        while (change := self.changes.get()) is not None:
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


class LatestAnswer:
    """The rows of V1 after the last mark that was processed."""

    def __init__(self) -> None:
        self._rows: dict[Any, tuple[Any, ...]] = {}
        self._marked: dict[int, int] = {}  # mark → the time it belongs to
        self._ended = -1  # the last time whose rows of V1 are complete
        self._changed = threading.Condition()

    def on_row(self, key: Any, row: dict[str, Any], is_addition: bool, **_: Any) -> None:
        values = tuple(row[c] for c in ("n_name", "c_mktsegment", "totalcnt", "price", "quantity"))
        with self._changed:
            if is_addition:
                self._rows[key] = values
            elif self._rows.get(key) == values:  # else the new row of the key has come already
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
    """Return V1, joined in the order that keeps the intermediate results smallest."""
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
    group, price, quantity = (pw.this.n_name, pw.this.c_mktsegment), pw.this.price, pw.this.quantity
    sums = {"price": pw.reducers.sum(price), "quantity": pw.reducers.sum(quantity)}
    return joined.groupby(*group).reduce(*group, totalcnt=pw.reducers.count(), **sums)


def serve(source: TableRows, answer: LatestAnswer) -> None:
    """Answer each line of standard input, until it ends."""
    for text in sys.stdin:
        asked = json.loads(text)
        if "answer" in asked:
            reply: dict[str, Any] = {"rows": answer.after(source.marks)}
        else:
            source.taken.clear()
            source.changes.put(asked)
            source.taken.wait()
            reply = {"taken": True}
        print(json.dumps(reply), flush=True)
    source.changes.put(None)


def main() -> None:
    source, answer = TableRows(Path(sys.argv[1])), LatestAnswer()
    lines = pw.io.python.read(source, schema=AnyRow, autocommit_duration_ms=None, max_backlog_size=200_000)
    result = v1(lines)
    marks = lines.filter(pw.this.kind == _MARK)
    pw.io.subscribe(marks, on_change=answer.on_mark)
    pw.io.subscribe(result, on_change=answer.on_row, on_time_end=answer.on_time_end)

    def begin() -> None:
        source.taken.wait()  # until the tables are loaded
        answer.after(1)
        print(json.dumps({"version": pw.__version__}), flush=True)
        serve(source, answer)

    threading.Thread(target=begin, daemon=True).start()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main()
