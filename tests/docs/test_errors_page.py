"""The error reference: whole, as the docstrings have it, and its examples are what the code says.

What needs Spark is raised in tests/spark/test_tutorial.py.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.docs.blocks import ROOT, as_shown
from tests.internals import internals

import freshview
from freshview import Warehouse, errors
from freshview.cdc.model import partial_delta
from freshview.cli import errors_reference
from freshview.errors import FreshviewError
from freshview.refresh.turns import crowded
from freshview.relation.fields import cast_column
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.spark.errors import spark_errors
from freshview.spark.java import check_java


def test_the_page_is_written_from_the_docstrings() -> None:
    """If this fails: python -m freshview.cli.errors_reference > docs/errors.md"""
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == errors_reference.text()


def test_every_error_is_told_with_cause_remedy_and_example() -> None:
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {c.__name__ for c in errors_reference.classes()} == names - {"FreshviewError"}
    for error in errors_reference.classes():
        assert all(errors_reference.entry(error).values()), error.__name__


def test_a_docstring_without_its_parts_is_noticed() -> None:
    class Untold(FreshviewError):
        """Something happened."""

    with pytest.raises(ValueError, match="Untold"):
        errors_reference.entry(Untold)


# -- examples --------------------------------------------------------------------------------------


def _conflict(wh: Warehouse) -> None:
    first, second = wh.transaction(), wh.transaction()
    for name, transaction in (("Ada", first), ("Grace", second)):
        transaction.upsert("customer", [{"id": 1, "name": name}])
    first.commit()
    second.commit()


def _closed(wh: Warehouse) -> None:
    with wh.transaction() as transaction:
        transaction.delete("customer", [1])
    transaction.delete("customer", [2])


def _expired(wh: Warehouse) -> None:
    wh.sql("INSERT INTO customer VALUES (2, 'Grace')")
    wh.sql("CHECKPOINT customer")
    wh.vacuum(timedelta(0))
    internals(wh).state("customer", 1)


def _insert(row: dict[str, object]) -> Callable[[Warehouse], None]:
    def act(wh: Warehouse) -> None:
        with wh.transaction() as transaction:
            transaction.insert("customer", [row])

    return act


def _inside(wh: Warehouse) -> None:
    with wh.transaction() as transaction:
        transaction.sql("DROP TABLE customer")


def _foreign(wh: Warehouse) -> None:
    freshview.connect(wh.path, catalog=f"sqlite:///{wh.path.parent / 'other.db'}")


def _no_folder(wh: Warehouse) -> None:
    (wh.path.parent / "file").touch()
    freshview.connect(wh.path.parent / "file" / "warehouse")


def _other_fields(_: Warehouse) -> None:
    given, wanted = (pa.schema({"who": pa.struct({n: pa.string(), "age": pa.int32()})}) for n in ("Name", "name"))
    cast_column(given.empty_table().column(0), wanted.field(0).type, "column who")


def _changed_twice(_: Warehouse) -> None:
    schema = Schema((Column("id", parse_type("INT")),), ("id",))
    rows = pa.table([pa.array([1], pa.int32())], schema=schema.arrow)
    partial_delta("customer", schema, ins=rows, up=rows)


_RAISED: dict[type[FreshviewError], Callable[[Warehouse], object]] = {
    errors.WriteConflict: _conflict,
    errors.DuplicateKey: _insert({"id": 1, "name": "Ada"}),
    errors.NotNullViolation: _insert({"id": 2, "name": None}),
    errors.NotFound: lambda wh: wh.sql("DROP TABLE custmer"),
    errors.AlreadyExists: lambda wh: wh.sql("CREATE TABLE Customer (id INT)"),
    errors.InvalidStatement: _inside,
    errors.TypeMismatch: _insert({"id": "one", "name": "Ada"}),
    errors.FieldMismatch: _other_fields,
    errors.CaptureFailed: _changed_twice,
    errors.SnapshotExpired: _expired,
    errors.TransactionClosed: _closed,
    errors.CorruptWarehouse: _foreign,
    errors.CatalogUnavailable: lambda wh: freshview.connect(wh.path, catalog="mysql://user@host/database"),
    errors.StorageUnavailable: _no_folder,
}


@pytest.mark.parametrize("error", _RAISED, ids=lambda e: e.__name__)
def test_an_example_is_what_the_code_says(error: type[FreshviewError], wh: Warehouse) -> None:
    wh.sql("CREATE TABLE customer (id INT PRIMARY KEY, name STRING NOT NULL)")
    wh.sql("INSERT INTO customer VALUES (1, 'Ada')")
    with pytest.raises(error) as raised:
        _RAISED[error](wh)
    assert type(raised.value) is error
    assert as_shown(errors_reference.entry(error)["Example"], str(raised.value)), raised.value


def test_the_example_of_missing_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(errors.SparkUnavailable) as raised:
        check_java()
    assert as_shown(errors_reference.entry(errors.SparkUnavailable)["Example"], str(raised.value)), raised.value


class JavaError(Exception):
    """An exception as py4j raises it for a Java exception that PySpark does not know."""


JavaError.__module__ = "py4j.protocol"


@pytest.mark.parametrize(
    ("error", "thrown"),
    [
        (errors.SparkFailed, "java.io.IOException: No space left on device"),
        (errors.BroadcastTooLarge, "Cannot broadcast the table that is larger than 8.0 GiB: 9 GiB."),
        (errors.Cancelled, "[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job tag x"),
    ],
)
def test_the_examples_of_what_spark_throws(error: type[FreshviewError], thrown: str) -> None:
    with pytest.raises(error) as raised, spark_errors("query SELECT 1"):
        raise JavaError(f"An error occurred while calling o1.collect.\n: {thrown}")
    assert as_shown(errors_reference.entry(error)["Example"], str(raised.value)), raised.value


def test_the_example_of_a_crowd() -> None:
    view: Any = SimpleNamespace(name="totals")
    assert as_shown(errors_reference.entry(errors.Crowded)["Example"], str(crowded(view)))
