"""A slice of the hunt with fixed seeds: a few definitions of each kind, none of which is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK
from tests.hunt import oracle as oracles
from tests.hunt.kinds import KINDS
from tests.hunt.oracle import Oracle
from tests.hunt.run import run_batch
from tests.hunt.shrink import as_test
from tests.hunt.spark import be_quiet
from tests.hunt.tables import Column, Table

from freshview.definition import selftest

pytestmark = [pytest.mark.spark, pytest.mark.selftest]

_MAINTAINED = ("grammar", "types")  # all views at once; the others by the queries that read them
_FOREIGN = ("grammar",)  # others write the tables that can be theirs
_SIZES = {"functions": 3, "grammar": 3, "types": 3, "settings": 2}
if IS_SOAK:
    _SIZES = {"functions": 6, "grammar": 5, "types": 6, "settings": 4}


@pytest.mark.parametrize("kind", KINDS)
def test_views_of_random_definitions_equal_spark(
    spark: SparkSession, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After CREATE and after each round of changes; `make hunt` looks at thousands."""
    be_quiet()
    if not IS_SOAK:  # what a self-test does not find, this test does
        monkeypatch.setattr(selftest, "_SECONDS", 0.5)
    batch = KINDS[kind](spark, "slice", _SIZES[kind])
    foreign = frozenset(t.name for t in batch.tables if kind in _FOREIGN and t.can_be_foreign)
    assert bool(foreign) == (kind in _FOREIGN)
    drawn = (*batch.definitions, batch.definitions[0])  # one twice
    tally = run_batch(spark, replace(batch, definitions=drawn, maintained=kind in _MAINTAINED, foreign=foreign))
    assert not tally.wrong, "\n\n".join(map(as_test, tally.wrong))
    assert not tally.manners, "\n".join(f"{f.definition.text}\n  {f.difference}" for f in tally.manners)
    assert tally.lowered
    assert tally.lowered + tally.recomputed + tally.refused == tally.definitions


@pytest.mark.parametrize(("call", "is_determined"), [("var_pop(k)", False), ("sum(k)", True)])
def test_a_digit_that_depends_on_the_parts_in_which_spark_has_the_rows_is_undetermined(
    spark: SparkSession, call: str, is_determined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variance of 0, 0 and 1 ends in 4 or in 2; in one part it does not depend on the order."""
    if not IS_SOAK:
        monkeypatch.setattr(oracles, "_ORDERS", 2 * len(oracles._PARTS))
    table = Table("t", (Column("n", "int"), Column("k", "bigint")))
    state = {"t": [(1, 0), (2, 0), (3, 1)]}
    oracle = Oracle(spark, [table], {"spark.sql.shuffle.partitions": "1"})
    oracle.load(state)
    text = f"SELECT {call} AS v FROM (SELECT n, k FROM t GROUP BY n, k)"
    assert oracle.is_determined(text, (), state, oracle.answer(text)) == is_determined
    assert oracle.session.conf.get("spark.sql.shuffle.partitions") == "1"
