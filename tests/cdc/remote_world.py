"""Random worlds of remote tables: tables of servers, each captured by its own technique, and views over them."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cdc.servers import Captured

from freshview import Warehouse

_OPTIONS = {
    "one audit column": "capture 'audit', changed 'changed', never 'deletions'",
    "two audit columns": "capture 'audit', changed 'changed', inserted 'inserted', never 'deletions'",
    "three audit columns": "capture 'audit', changed 'changed', inserted 'inserted', deleted 'deleted'",
    "triggers": "capture 'triggers'",
    "triggers, cheap": "capture 'triggers', 'net effect' 'cheap'",
    "tracking": "capture 'tracking'",
    "decoding, full": "capture 'decoding'",
    "decoding": "capture 'decoding'",
    "decoding, cheap": "capture 'decoding', 'net effect' 'cheap'",
}
_KEYS = 6


class World:
    """Tables of servers, in turn, each captured by a technique of its own, and random views over them."""

    def __init__(self, rng: random.Random, url: str, techniques: list[str], *others: str) -> None:
        self.rng = rng
        self.url = url
        urls = (url, *others)
        self.tables = [Captured(urls[i % len(urls)], technique) for i, technique in enumerate(techniques)]
        for table in self.tables:
            with table.connect() as connection:
                if table.technique == "decoding, full":
                    connection.execute(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL".encode())
                for key in range(_KEYS - 1):
                    table.insert(connection, key, rng.randrange(_KEYS), rng.choice("xyz"))

    def name(self, wh: Warehouse) -> None:
        """Create the sources and remote tables r0, r1, …"""
        for i, table in enumerate(self.tables):
            options = f"url '{table.url}', poll 'on query', {_OPTIONS[table.technique]}"
            wh.sql(f"CREATE SOURCE s{i} USING POSTGRES OPTIONS ({options})")
            wh.sql(f"CREATE REMOTE TABLE r{i} FROM s{i}.{table.name}")

    def query(self, joins: int) -> str:
        """A random view: joins to keys from any table before, filters, columns and expressions, maybe nested."""
        rng = self.rng
        parts = [f"FROM r{rng.randrange(len(self.tables))} x0"]
        for n in range(1, joins + 1):
            right = f"r{rng.randrange(len(self.tables))}"
            if rng.random() < 0.3:
                right = f"(SELECT id, ref, name FROM {right} WHERE name <> '{rng.choice('xyz')}')"
            before = f"x{rng.randrange(n)}.{rng.choice(['ref', 'ref', 'id'])}"
            parts.append(f"JOIN {right} x{n} ON {before} = x{n}.id")
        columns = ["x0.id AS k"]
        for n in range(joins + 1):
            some = [f"x{n}.ref AS r{n}", f"x{n}.name AS n{n}", f"x{n}.ref + x0.id AS s{n}", f"upper(x{n}.name) AS u{n}"]
            columns += rng.sample(some, rng.randrange(1, 3))
        conditions = [f"x{rng.randrange(joins + 1)}.name IN ('x', 'y')"] if rng.random() < 0.5 else []
        conditions += [f"x{rng.randrange(joins + 1)}.ref <> x0.id"] if rng.random() < 0.3 else []
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {', '.join(columns)} {' '.join(parts)}{where}"

    def change(self) -> None:
        """A few transactions of random changes, changed keys among them."""
        rng = self.rng
        for _ in range(rng.randrange(1, 4)):
            table = rng.choice(self.tables)
            with table.connect() as connection:
                for _ in range(rng.randrange(1, 4)):
                    self._change(connection, table)

    def _change(self, connection: Any, table: Captured) -> None:
        rng, key = self.rng, self.rng.randrange(_KEYS)
        kinds = ["insert", "update"]
        kinds += ["delete"] if table.may_delete else []
        kinds += ["move"] if table.may_delete and "audit" not in table.technique else []
        kinds += ["revive"] if table.technique == "three audit columns" else []
        match rng.choice(kinds):
            case "insert":
                table.insert(connection, key, rng.randrange(_KEYS), rng.choice("xyz"))
            case "update":
                table.update(connection, key, rng.choice("xyz"))
            case "delete":
                table.delete(connection, key)
            case "revive":
                table.delete(connection, key)
                table.revive(connection, key, rng.randrange(_KEYS), rng.choice("xyz"))
            case "move":
                new = rng.randrange(_KEYS)
                taken = connection.execute(f"SELECT FROM {table.name} WHERE id = {new}".encode()).fetchone()
                if taken is None:
                    table.move(connection, key, new)

    def answer(self, query: str) -> list[tuple[Any, ...]]:
        """What the server itself answers to the text of a view; of several servers, SQLite over their tables."""
        if len({table.url for table in self.tables}) > 1:
            return answer_over({f"r{i}": self._rows(table) for i, table in enumerate(self.tables)}, query)
        text = query
        for i, table in enumerate(self.tables):
            live = " WHERE deleted IS NULL" if "audit" in table.technique else ""
            text = text.replace(f"r{i} x", f"(SELECT id, ref, name FROM {table.name}{live}) x")
            text = text.replace(f"FROM r{i} WHERE", f"FROM (SELECT id, ref, name FROM {table.name}{live}) y WHERE")
        with self.tables[0].connect() as connection:
            return sorted(connection.execute(text.encode()).fetchall())

    def _rows(self, table: Captured) -> list[tuple[Any, ...]]:
        live = " WHERE deleted IS NULL" if "audit" in table.technique else ""
        with table.connect() as connection:
            return connection.execute(f"SELECT id, ref, name FROM {table.name}{live}".encode()).fetchall()


def answer_over(tables: Mapping[str, Sequence[tuple[Any, ...]]], query: str) -> list[tuple[Any, ...]]:
    """What SQLite answers to the text of a view over rows (id, ref, name) of tables."""
    connection = sqlite3.connect(":memory:")
    try:
        for name, rows in tables.items():
            connection.execute(f"CREATE TABLE {name} (id, ref, name)")
            connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
        return sorted(connection.execute(query).fetchall())
    finally:
        connection.close()
