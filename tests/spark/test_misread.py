"""What lowering reads, Spark reads the same: the examples of all of Spark's functions, as they are and written back."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlglot import exp
from tests.spark.sessions import apart

from freshview.definition.determinism import refuse_indeterminate
from freshview.errors import NotMaintainable
from freshview.sql.fragments import Unsupported
from freshview.sql.misread import refuse_misread
from freshview.sql.rendering import text as rendered

pytestmark = [pytest.mark.spark, pytest.mark.reading]

_EXAMPLE = re.compile(r"^\s*> (SELECT .*?);\s*$", re.MULTILINE | re.DOTALL)


def _written_back(example: str) -> str | None:
    """The example as lowering would write it, if it is written otherwise; None if lowering does not take it."""
    try:
        tree = sqlglot.parse_one(example, read="spark")
        refuse_misread(example, tree)
        refuse_indeterminate(example)
    except (sqlglot.errors.SqlglotError, Unsupported, NotMaintainable):
        return None
    if not isinstance(tree, exp.Select) or tree.args.get("from_") is not None:
        return None  # what stands in FROM is not written by expression
    written = "SELECT " + ", ".join(rendered(e) for e in tree.expressions)
    return written if _plain(written) != _plain(example) else None


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", text).casefold()


def test_examples_of_all_functions_mean_the_same_when_written_back(spark: SparkSession) -> None:
    session = apart(spark)
    functions = [r[0] for r in session.sql("SHOW SYSTEM FUNCTIONS").collect() if r[0][0].isalpha()]
    tried, wrong = 0, []
    for name in functions:
        description = "\n".join(r[0] for r in session.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect())
        for example in _EXAMPLE.findall(description):
            written = _written_back(example)
            if written is not None:
                tried += 1
                wrong += _differences(session, example, written)
    assert tried > 50
    assert not wrong


def _differences(session: SparkSession, example: str, written: str) -> list[tuple[str, str, str]]:
    """What is wrong with a text that was written back, if anything is."""
    with suppress(PySparkException):  # the two side by side, if Spark takes them so
        rows = session.sql(f"{example}, {written.removeprefix('SELECT ')}").collect()
        if rows and all(repr(r[: len(r) // 2]) == repr(r[len(r) // 2 :]) for r in rows):
            return []
    try:
        meant = session.sql(example).collect()
    except PySparkException:
        return []  # an example that shows an error
    try:
        found = session.sql(written).collect()
    except PySparkException as error:
        return [(example, written, str(error).splitlines()[0])]
    same = repr([tuple(r) for r in meant]) == repr([tuple(r) for r in found])
    return [] if same else [(example, written, repr(found))]
