"""Sessions of tests: how they are set, what they run and answer, and a machine that counts as quiet."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.conftest import INTERPRETED

from freshview.schedule import upkeep
from freshview.spark import scan
from freshview.storage import segments
from freshview.transactions import dml
from freshview.views import lifecycle

Rows = list[tuple[Any, ...]]


def rows(of: Any, query: str, **options: Any) -> Rows:
    """What a warehouse or a transaction answers, in an order that rows of any values have."""
    return sorted((tuple(r) for r in of.sql(query, **options).collect()), key=repr)


def jobs_run(spark: SparkSession, act: Callable[[], object]) -> int:
    """How many Spark jobs this thread runs meanwhile."""
    group = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(group, "counted")
    try:
        act()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def on_a_quiet_machine(patch: pytest.MonkeyPatch, every: float) -> None:
    """Managers that begin now look for work so often (seconds), and see no load."""
    patch.setattr(upkeep, "SECONDS", every)
    patch.setattr(upkeep, "machine_load", lambda: 0.0)


def as_if_large(patch: pytest.MonkeyPatch) -> None:
    """Tables of any size are read and written as large ones are: by Spark, and in files."""
    patch.setattr(segments, "INLINE_BYTES", 1 << 10)
    for module in (scan, dml, lifecycle):
        patch.setattr(module, "LOCAL_ROWS", 0)


def apart(spark: SparkSession) -> SparkSession:
    """A session that knows nothing of Freshview, to compare with.

    It generates no code, which for a few rows is the shorter way; in a soak another way than a warehouse's.
    """
    session = spark.newSession()
    for key, value in INTERPRETED.items():
        session.conf.set(key, value)
    return session


@contextmanager
def setting(spark: SparkSession, **values: str) -> Iterator[None]:
    """Set the session for a while; `__` in a name stands for a dot."""
    names = {k.replace("__", "."): v for k, v in values.items()}
    before = {k: spark.conf.get(k) for k in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))
