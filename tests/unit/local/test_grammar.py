"""The grammar of the law covers the table of proven constructs."""

from __future__ import annotations

import random

import pytest
from sqlglot import parse_one
from tests.unit.local.grammar import Expressions

from freshview.local.expressions import PROVEN, over
from freshview.local.typed import INT, Typed, Unproven
from freshview.relation.types import DataType


def test_every_proven_construct_is_drawn_by_the_grammar_of_the_law() -> None:
    writer, missing = Expressions(random.Random(1)), set(PROVEN)
    for turn in range(3300):
        text = writer.any() if turn % 11 else writer.aggregate()
        missing -= {type(node) for node in parse_one(text, read="spark").walk()}
        if not missing:
            break
    assert not missing


@pytest.mark.parametrize("text", ["abs(v)", "- v", "CAST(.5 AS STRING)", "COALESCE(CAST(i AS DECIMAL(38, 0)), v, 0.5)"])
def test_what_the_law_has_refuted_is_not_in_the_table(text: str) -> None:
    """Spark keeps 34 digits of a changed sign; the embedded engine writes '.5'; Spark widens more than two in turn."""
    columns = {"v": Typed("v", DataType("decimal", (38, 10))), "i": Typed("i", INT)}
    with pytest.raises(Unproven):
        over(columns).typed(parse_one(text, read="spark"))
