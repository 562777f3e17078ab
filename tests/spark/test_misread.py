"""What lowering reads, Spark reads the same: the examples of all of Spark's functions, as they are and written back."""

from __future__ import annotations

import re

import pytest
import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlglot import exp

from freshview.errors import NotMaintainable
from freshview.maintenance.determinism import refuse_indeterminate
from freshview.sql.fragments import Unsupported
from freshview.sql.misread import refuse_misread
from freshview.sql.rendering import text as rendered

pytestmark = pytest.mark.spark

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
    functions = [r[0] for r in spark.sql("SHOW SYSTEM FUNCTIONS").collect() if r[0][0].isalpha()]
    tried, wrong = 0, []
    for name in functions:
        description = "\n".join(r[0] for r in spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect())
        for example in _EXAMPLE.findall(description):
            written = _written_back(example)
            if written is None:
                continue
            tried += 1
            try:
                meant = spark.sql(example).collect()
            except PySparkException:
                continue  # an example that shows an error
            try:
                found = spark.sql(written).collect()
            except PySparkException as error:
                wrong.append((example, written, str(error).splitlines()[0]))
                continue
            if repr([tuple(r) for r in meant]) != repr([tuple(r) for r in found]):
                wrong.append((example, written, repr(found)))
    assert tried > 50
    assert not wrong
