"""What the tutorial shows of PostgreSQL, against a real server; and its view at another address of that server."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.conftest import PostgresServer
from tests.docs.blocks import ROOT, blocks

from freshview import Warehouse
from freshview.errors import CaptureFailed
from freshview.sql.script import statements

pytestmark = pytest.mark.postgres

_URL = "postgresql://reader@db.example.com/crm"


def _run(url: str, *commands: str) -> None:
    with psycopg.connect(url) as connection:
        for command in commands:
            connection.execute(command.encode())


def _rows(wh: Warehouse, text: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, wh.sql(text).collect()))


def test_the_tutorial_s_statements_over_a_server_do_what_it_says(swh: Warehouse, postgres: PostgresServer) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    shown = next(b.text for b in blocks(page) if b.text.startswith("CREATE SOURCE"))
    url = postgres.new_database()
    assert _URL in shown
    _run(
        url,
        "CREATE TABLE person (id int PRIMARY KEY, name text, address int)",
        "CREATE TABLE address (id int PRIMARY KEY, city text)",
        "INSERT INTO address VALUES (1, 'London'), (2, 'Oslo')",
        "INSERT INTO person VALUES (1, 'Ada', 1)",
    )
    for text in statements(shown.replace(_URL, url)):
        swh.sql(text)
    assert _rows(swh, "SELECT id, name FROM people") == [(1, "Ada")]
    assert _rows(swh, "SELECT * FROM addressed") == [(1, "Ada", "London")]
    _run(url, "UPDATE person SET address = 2, name = 'Ada L.'")
    assert _rows(swh, "SELECT id, name FROM people") == [(1, "Ada L.")]
    assert _rows(swh, "SELECT * FROM addressed") == [(1, "Ada L.", "Oslo")]
    _run(url, "INSERT INTO person VALUES (2, 'Alan', 1)")
    swh.sql(f"ALTER SOURCE crm SET OPTIONS (url '{url}?application_name=elsewhere')")
    assert len(_rows(swh, "SELECT id FROM people")) == 2
    assert _rows(swh, "SELECT id, city FROM addressed") == [(1, "Oslo"), (2, "London")]
    swh.sql(f"ALTER SOURCE crm SET OPTIONS (url '{url}?port=1')")
    for relation in ("people", "addressed"):
        with pytest.raises(CaptureFailed, match="PostgreSQL"):
            swh.sql(f"SELECT * FROM {relation}")
    swh.sql(f"ALTER SOURCE crm SET OPTIONS (url '{url}')")
    swh.sql("DROP SOURCE crm CASCADE")
