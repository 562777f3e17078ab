"""What the soaks of lazy maintenance work on: three small tables, views of several kinds, random rows."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from freshview import Warehouse

KEYS = 300  # of each table

TABLES = {
    "customer": "id INT, region STRING, PRIMARY KEY (id)",
    "orders": "id INT, customer INT, day INT, amount INT, PRIMARY KEY (id)",
    "item": "id INT, orders INT, qty INT, PRIMARY KEY (id)",
}
_BY_REGION = (
    "SELECT c.region, count(*) n, sum(o.amount) total, max(o.amount) best "
    "FROM orders o JOIN customer c ON o.customer = c.id GROUP BY c.region"
)
_BY_DAY = "SELECT day, count(*) n, min(amount) least FROM orders GROUP BY day"


@dataclass(frozen=True)
class View:
    """A view, and what it means in terms of the tables alone."""

    definition: str
    meaning: str
    filters: tuple[str, ...]  # what queries may ask of it
    properties: str = ""


def _plain(definition: str, *filters: str, properties: str = "") -> View:
    return View(definition, definition, filters, properties)


VIEWS = {
    "by_region": _plain(_BY_REGION, "region = 'r3'", "n > 20"),
    "placed": _plain(
        "SELECT c.id, c.region, o.id AS number, o.amount FROM customer c LEFT JOIN orders o ON o.customer = c.id",
        "region = 'r5'",
        "number IS NULL",
        "id < 40",
    ),
    "large": View(
        "SELECT region, total, n FROM by_region WHERE n > 10",
        f"SELECT region, total, n FROM ({_BY_REGION}) WHERE n > 10",
        ("region = 'r1'",),
    ),
    "by_day": _plain(_BY_DAY),  # nobody asks for it: it is the manager's
}
EAGER = {
    "quantities": _plain(
        "SELECT orders, sum(qty) q, count(*) n FROM item GROUP BY orders",
        "orders < 30",
        properties="TBLPROPERTIES ('maintenance'='eager') ",
    )
}
DEFERRED = {  # read as of its last refresh, so that queries do not compare it; its invariants are checked in the end
    "aside": _plain(
        _BY_REGION, properties="TBLPROPERTIES ('maintenance'='deferred', 'refresh.policy'='partial every 5 seconds') "
    )
}
ALL = {**VIEWS, **EAGER, **DEFERRED}


def seed() -> int:
    """Return the seed of a run and print it, so that the run can be replayed."""
    number = int(os.environ.get("FRESHVIEW_SOAK_SEED", random.SystemRandom().randrange(10**6)))
    print(f"FRESHVIEW_SOAK_SEED={number}", flush=True)
    return number


def row_of(draw: random.Random, table: str, key: int) -> dict[str, Any]:
    """A row of a table with this key."""
    match table:
        case "customer":
            return {"id": key, "region": f"r{draw.randrange(8)}"}
        case "orders":
            customer = draw.randrange(KEYS) if draw.random() < 0.9 else None
            return {"id": key, "customer": customer, "day": draw.randrange(30), "amount": draw.randrange(1000)}
        case _:
            return {"id": key, "orders": draw.randrange(KEYS), "qty": draw.randrange(9)}


def some_rows(draw: random.Random, table: str, most: int) -> list[dict[str, Any]]:
    """Up to so many rows with different keys."""
    return [row_of(draw, table, key) for key in draw.sample(range(KEYS), draw.randint(1, most))]


def build(wh: Warehouse, draw: random.Random, views: dict[str, View]) -> None:
    """Full tables, and views over them."""
    for table, columns in TABLES.items():
        wh.sql(f"CREATE TABLE {table} ({columns})")
        with wh.transaction() as tx:
            tx.upsert(table, [row_of(draw, table, key) for key in range(KEYS)])
    for name, view in views.items():
        wh.sql(f"CREATE MATERIALIZED VIEW {name} {view.properties}AS {view.definition}")


def bag(frame: Any) -> Counter[tuple[Any, ...]]:
    """The rows of a frame, each as often as it is there."""
    return Counter(tuple(row) for row in frame.collect())


def require_same(told: str, answer: Counter[Any], recomputed: Counter[Any]) -> None:
    """Law: what a view answers is what its definition gives."""
    assert answer == recomputed, f"{told}: missing {recomputed - answer}, extra {answer - recomputed}"
