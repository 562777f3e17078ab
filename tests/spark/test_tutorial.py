"""The pages that a newcomer meets do what they show: README, tutorial, the examples of the SQL and error references."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.docs.blocks import ROOT, as_shown, steps
from tests.docs.running import differences
from tests.spark.sessions import on_a_quiet_machine

from freshview import Warehouse, errors
from freshview.cli import errors_reference
from freshview.cli.place import Place
from freshview.cli.running import Running
from freshview.errors import FreshviewError
from freshview.sql.parser import parse
from freshview.sql.script import statements

pytestmark = pytest.mark.reading


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    """An empty folder to work in; the shared session is the one that is found."""
    assert spark
    monkeypatch.chdir(tmp_path)
    on_a_quiet_machine(monkeypatch, 0.1)
    return tmp_path


@pytest.mark.selftest
def test_the_tutorial_prints_what_it_shows(place: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert list(differences(page, place / "shop")) == []


def test_the_readme_prints_what_it_shows(place: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert any(step.shown for step in steps(page, "python"))
    assert list(differences(page, place / "warehouse")) == []


def test_the_examples_of_the_sql_reference_run(place: Path, swh: Warehouse) -> None:
    """One after the other, with a table for those that need one that is there already. What needs systems of others is
    run against real ones by tests/cdc; here it is parsed."""
    write_deltalake(str(place / "weather"), pa.table({"day": [1, 2]}))
    page = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
    page = page.replace("/data/weather", str(place / "weather")).replace("VERSION AS OF 42", "VERSION AS OF 8")
    page = page.replace("2026-01-31 12:00:00", "9999-12-31 12:00:00")
    others = page[page.index("## Sources and flows") : page.index("## Upkeep")]
    for step in steps(page, "sql"):
        for text in statements(step.block.text):
            if step.block.text in others:  # they name servers and files of others: the statements are read
                assert parse(text)
                continue
            answer = swh.sql(text)
            if hasattr(answer, "collect"):
                assert answer.collect() or "VERSION" in text, text


def _divided(wh: Warehouse) -> object:
    with Running(Place(wh.path)) as running:
        return running.run("SELECT 1 / (id - 1) FROM customer")


def _unusable(wh: Warehouse) -> object:
    eager = "TBLPROPERTIES ('maintenance' = 'eager')"
    wh.sql(f"CREATE MATERIALIZED VIEW shares {eager} AS SELECT 1 / (id - 2) AS share FROM customer")
    return wh.sql("INSERT INTO customer VALUES (2, 'Grace')")


def _random(wh: Warehouse) -> object:
    return wh.sql("CREATE MATERIALIZED VIEW v AS SELECT rand() AS r FROM customer")


@pytest.mark.parametrize(
    ("error", "act"),
    [(errors.QueryFailed, _divided), (errors.ViewUnusable, _unusable), (errors.NotMaintainable, _random)],
)
def test_the_example_of_an_error_is_what_the_code_says(
    error: type[FreshviewError], act: Callable[[Warehouse], object], swh: Warehouse
) -> None:
    swh.sql("CREATE TABLE customer (id INT PRIMARY KEY, name STRING NOT NULL)")
    swh.sql("INSERT INTO customer VALUES (1, 'Ada')")
    with pytest.raises(error) as raised:
        act(swh)
    assert as_shown(errors_reference.entry(error)["Example"], str(raised.value)), raised.value
