"""A table of the warehouse that takes the changes of a PostgreSQL table: it follows, whatever dies in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.catalog.helpers import contents
from tests.cdc.servers import TECHNIQUES, Captured

import freshview
from freshview.errors import CaptureFailed

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("technique", [t for t in TECHNIQUES if "audit" not in t])
def test_a_table_follows_a_table_of_postgresql(database: str, tmp_path: Path, technique: str) -> None:
    captured = Captured(database, technique)
    source: Any = captured.source()
    confirm, dies = source.confirm, False

    def confirm_or_die(position: str) -> None:
        if dies:
            raise CaptureFailed("the process", "it died after its commit")
        confirm(position)

    source.confirm = confirm_or_die
    with freshview.connect(tmp_path / "warehouse") as wh:
        wh.sql("CREATE TABLE t (id INT PRIMARY KEY, ref INT, name STRING)")
        with captured.connect() as connection:
            for key in range(4):
                captured.insert(connection, key, 0, "a")
        assert wh.capture("t", source).rows == 4
        for round_ in range(4):
            with captured.connect() as connection:
                captured.update(connection, round_ % 2, f"b{round_}")
                captured.insert(connection, 10 + round_, 0, "new")
                captured.delete(connection, 10 + round_ - 1)
                captured.move(connection, 2 + 100 * round_, 102 + 100 * round_)
            dies = round_ % 2 == 0
            if dies:
                with pytest.raises(CaptureFailed, match="it died"):
                    wh.capture("t", source)
            else:
                wh.capture("t", source)
            with captured.connect() as connection:
                remote = connection.execute(f"SELECT id, ref, name FROM {captured.name}".encode()).fetchall()
            here = [(row["id"], row["ref"], row["name"]) for row in contents(wh, "t")]
            assert sorted(here) == sorted(remote)
    source.drop()
