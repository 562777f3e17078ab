"""The examples in docstrings run, on the shared Spark session, each with a folder of its own."""

from __future__ import annotations

import doctest
import inspect
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import freshview
from freshview import Warehouse

pytestmark = pytest.mark.reading

_OPTIONS = doctest.ELLIPSIS


def _public() -> dict[str, Any]:
    return {name: getattr(freshview, name) for name in freshview.__all__ if not name.startswith("__")}


def _modules() -> list[ModuleType]:
    """The package, and all modules in which something public is written."""
    names = {value.__module__ for value in _public().values() if inspect.isclass(value) or inspect.isfunction(value)}
    return [freshview, *(sys.modules[name] for name in sorted({*names, "freshview.errors"}) if "freshview" in name)]


def _examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in _modules():
        yield from (found for found in finder.find(module, module.__name__) if found.examples)


_EXAMPLES = {example.name: example for example in _examples()}


@pytest.mark.parametrize("name", sorted(_EXAMPLES))
def test_an_example_runs_as_it_is_printed(name: str, spark: SparkSession, tmp_path: Path) -> None:
    example = _EXAMPLES[name]
    example.globs = {
        "freshview": freshview,
        "folder": tmp_path / "warehouse",
        "spark": spark,
        "timedelta": timedelta,
        "pa": pa,
    }
    spark.createDataFrame([(1,)], "id INT")  # makes it the active one, which examples take that name none
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=_OPTIONS, verbose=False)
    try:
        result = runner.run(example, out=told.append, clear_globs=False)
    finally:
        for value in example.globs.values():
            if isinstance(value, Warehouse):
                value.close()
    assert not result.failed, "".join(told)


def test_what_users_call_has_an_example() -> None:
    """connect, every method of a warehouse and of a transaction, and what they give back."""
    methods = [
        f"{owner.__module__}.{owner.__name__}.{name}"
        for owner in (freshview.Warehouse, freshview.UserTransaction)
        for name, value in vars(owner).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]
    inner = {
        "freshview.warehouse.warehouse.Warehouse.engine",  # for those who extend it
        "freshview.warehouse.warehouse.Warehouse.propagate",  # shown together with partial_refresh
        "freshview.transactions.user_transaction.UserTransaction.create",
        "freshview.transactions.user_transaction.UserTransaction.run",
        "freshview.transactions.user_transaction.UserTransaction.write_for",  # this and the next three: for flows
        "freshview.transactions.user_transaction.UserTransaction.move",
        "freshview.transactions.user_transaction.UserTransaction.lookup",
        "freshview.transactions.user_transaction.UserTransaction.contents",
        "freshview.warehouse.warehouse.Warehouse.calibrate",  # it takes tens of seconds: tests/spark/test_optimize.py
    }
    results = (
        freshview.CheckReport,
        freshview.Events,
        freshview.Invariant,
        freshview.Job,
        freshview.Outcome,
        freshview.Status,
        freshview.UserTransaction,
        freshview.ViewStatus,
        freshview.Warehouse,
        freshview.connect,
    )
    wanted = {*methods, *(f"{r.__module__}.{r.__name__}" for r in results), "freshview", "freshview.errors"}
    assert inner < wanted
    assert wanted - inner - set(_EXAMPLES) == set()
