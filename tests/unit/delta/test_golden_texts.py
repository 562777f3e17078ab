"""The text of a delta, kept in golden/*.sql, so that it stays readable and a change of it is seen.

After a change that is meant, write the files anew with FRESHVIEW_WRITE_GOLDEN=1 and read the difference:

    FRESHVIEW_WRITE_GOLDEN=1 python -m pytest tests/unit/delta/test_golden_texts.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlglot
from tests.unit.delta.cases import all_of

from freshview.algebra.nodes import Scan, Stored
from freshview.delta.forms import choose_form, delta_plan
from freshview.sql.lowering import lower
from freshview.sql.rendering import render

FOLDER = Path(__file__).parent / "golden"
SCHEMAS = {
    "orders": ("id", "customer", "amount"),
    "customers": ("id", "name", "country"),
}
VIEWS = {
    "filter": "SELECT id, amount * 2 AS twice FROM orders WHERE amount > 10 AND NOT (customer = 1 OR customer IS NULL)",
    "join": "SELECT c.name, o.amount FROM orders o JOIN customers c ON o.customer = c.id",
    "left_join": "SELECT c.name, o.amount FROM customers c LEFT JOIN orders o ON o.customer = c.id",
    "not_in": "SELECT name FROM customers WHERE id NOT IN (SELECT customer FROM orders)",
    "sums": (
        "SELECT c.country, SUM(o.amount) AS amount, COUNT(*) AS n"
        " FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.country"
    ),
    "best": "SELECT customer, MAX(amount) AS best FROM orders GROUP BY customer HAVING COUNT(*) > 1",
    "groups": "SELECT customer, COUNT(DISTINCT amount) AS n FROM orders GROUP BY customer HAVING COUNT(*) > 1",
    "except_all": "SELECT id FROM customers EXCEPT ALL SELECT customer FROM orders",
    "top": "SELECT id FROM orders ORDER BY amount DESC NULLS LAST LIMIT 10",
    "top_groups": "SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer ORDER BY total DESC LIMIT 10",
    "window": "SELECT id, RANK() OVER (PARTITION BY customer ORDER BY amount DESC) AS place FROM orders",
}
CHANGED = {"join": {"orders", "customers"}, "sums": {"orders", "customers"}, "except_all": {"orders", "customers"}}


def _source(scan: Scan) -> str:
    return "stored" if isinstance(scan.source, Stored) else f"{scan.relation}_{scan.version}"


def _text(name: str) -> str:
    lowered = lower(VIEWS[name], SCHEMAS)
    form = choose_form(lowered, tuple(n for _, n in lowered.outputs), all_of("int"))
    changed = CHANGED.get(name, {"orders"})
    plan = delta_plan(form, lowered, changed, dict.fromkeys(form.stored, "bigint"))
    assert plan is not None
    head = f"-- {VIEWS[name]}\n-- stored as {form.rule}; changed: {', '.join(sorted(changed))}\n"
    return f"{head}{render(plan, _source)}\n"


@pytest.mark.parametrize("name", VIEWS)
def test_the_text_of_a_delta_is_the_golden_one(name: str) -> None:
    """The text is the one in golden/, and it is one statement that parses as Spark SQL."""
    found = _text(name)
    assert len(sqlglot.parse(found, read="spark")) == 1
    file = FOLDER / f"{name}.sql"
    if os.environ.get("FRESHVIEW_WRITE_GOLDEN"):
        file.write_text(found)
    assert found == file.read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {f.stem for f in FOLDER.glob("*.sql")} == set(VIEWS)


def test_the_same_view_gives_the_same_text() -> None:
    """Texts are stable, so that Spark's plans and our caches can be reused."""
    assert all(_text(name) == _text(name) for name in VIEWS)
