"""The grammar of the law covers the table of proven constructs."""

from __future__ import annotations

import random

from sqlglot import parse_one
from tests.unit.local.grammar import Expressions

from freshview.local.expressions import PROVEN


def test_every_proven_construct_is_drawn_by_the_grammar_of_the_law() -> None:
    rng = random.Random(1)
    writer = Expressions(rng)
    drawn = [writer.any() for _ in range(3000)] + [writer.aggregate() for _ in range(300)]
    seen = {type(node) for text in drawn for node in parse_one(text, read="spark").walk()}
    assert not PROVEN.keys() - seen
