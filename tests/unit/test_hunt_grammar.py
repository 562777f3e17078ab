"""The generator of the hunt: definitions and rows come from a seed alone, and every clause is met."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.hunt import every_type, grammar
from tests.hunt.batch import Batch
from tests.hunt.functions import _in_turn, split_arguments
from tests.hunt.report import summary
from tests.hunt.run import Failure, Tally, _verdict
from tests.hunt.shrink import IMPORTS, as_test, shorter_texts, value_text
from tests.hunt.tables import EVERY_TYPE, GRAMMAR, NAN, arrow_type, changed, draw_changes, initial, typed_tables
from tests.hunt.values import Answer, bag

_DRAWS = 1500


def test_a_definition_is_determined_by_its_seed() -> None:
    first = [grammar.definition(f"s/{n}") for n in range(100)]
    assert first == [grammar.definition(f"s/{n}") for n in range(100)]
    assert len({d.text for d, _ in first}) > 95


def test_a_subquery_of_a_scope_without_columns_is_drawn() -> None:
    """A hunt ended there: a pair of values IN a subquery needs an outer column for its second value."""
    grammar.definition("n40/43/1")


def test_every_clause_is_met() -> None:
    met = Counter(clause for n in range(_DRAWS) for clause in grammar.definition(f"c/{n}")[1])
    assert set(grammar.CLAUSES) == set(met)


def test_brackets_and_quotes_are_balanced() -> None:
    for n in range(_DRAWS):
        definition, _ = grammar.definition(f"b/{n}")
        text = definition.text
        assert "{" not in text.replace("'{\"A\":1}'", ""), text
        assert text.count("(") == text.count(")"), text
        assert len(text) < 20_000


def test_rows_are_determined_by_their_seed_and_numbered() -> None:
    """A keyed table has each number once; in others rows of one number are equal, whatever the changes."""
    for seed in range(50):
        draw, again = random.Random(seed), random.Random(seed)
        state, same = initial(draw, GRAMMAR), initial(again, GRAMMAR)
        assert repr(state) == repr(same)
        for _ in range(4):
            changes = draw_changes(draw, GRAMMAR, state)
            assert repr(changes) == repr(draw_changes(again, GRAMMAR, state))
            state = changed(state, changes)
        for table in GRAMMAR:
            numbers = [r[0] for r in state[table.name]]
            if table.keyed:
                assert len(numbers) == len(set(numbers))
            else:
                assert len(set(map(repr, state[table.name]))) == len(set(numbers))


def test_every_type_makes_arrow_rows_of_its_own() -> None:
    for table in typed_tables(sorted(EVERY_TYPE)):
        rows = initial(random.Random(1), [table])[table.name]
        assert table.arrow(rows).num_rows == len(rows)
    batch = every_type.batch("1", 40)
    assert len({d.text for d in batch.definitions}) == 40


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("map<int,array<string>>", pa.map_(pa.int32(), pa.list_(pa.string()))),
        ("decimal(20,0)", pa.decimal128(20, 0)),
        ("char(3)", pa.string()),
        ("struct<A:int,b:decimal(3,1)>", pa.struct([("A", pa.int32()), ("b", pa.decimal128(3, 1))])),
    ],
)
def test_types_of_arrow(text: str, wanted: pa.DataType) -> None:
    assert arrow_type(text) == wanted


def test_answers_differ_by_one_bit_or_one_letter() -> None:
    def answer(column: str, values: list[object], kind: pa.DataType) -> Answer:
        return Answer(((column, str(kind)),), bag(pa.table({column: pa.array(values, kind)})))

    nan = answer("x", [NAN, 0.0, None], pa.float64())
    assert not nan.difference(answer("x", [None, 0.0, math.nan], pa.float64()))
    assert nan.difference(answer("x", [NAN, -0.0, None], pa.float64()))
    assert nan.difference(answer("X", [NAN, 0.0, None], pa.float64()))
    assert nan.difference(answer("x", [NAN, NAN, 0.0, None], pa.float64()))
    maps = pa.map_(pa.string(), pa.int32())
    assert not answer("m", [[("a", 1), ("b", 2)]], maps).difference(answer("m", [[("b", 2), ("a", 1)]], maps))
    sliced = pa.table({"l": pa.array([[1], [2, 3], None, []], pa.list_(pa.int32()))}).slice(1)
    assert bag(sliced) == Counter({((2, 3),): 1, (None,): 1, ((),): 1})


def test_values_are_printed_as_python() -> None:
    value = (1, [{"A": Decimal("1.50"), "b": None}], NAN, float("inf"), b"\x00", [("k", -0.0)])
    assert repr(eval(value_text(value), {"Decimal": Decimal, "NAN": NAN})) == repr(value)


def test_a_failure_is_printed_as_a_test() -> None:
    """What it prints makes the same batch again."""
    batch = replace(every_type.batch("1", 4), settings={"spark.sql.ansi.enabled": "false"})
    failure = Failure(replace(batch, definitions=batch.definitions[:1]), "round 1", "rows: missing []")
    seen: list[Batch] = []

    def judged(_: object, given: Batch) -> Tally:
        seen.append(given)
        return Tally()

    known: dict[str, Any] = {}
    exec("\n".join(("from __future__ import annotations", *IMPORTS, as_test(failure))), known)
    known["run_batch"] = judged
    next(f for name, f in known.items() if name.startswith("test_hunt_"))(None)
    assert repr(seen[0].start) == repr(dict(failure.batch.start))
    assert repr(seen[0].rounds) == repr(failure.batch.rounds)
    assert seen[0].definitions[0].text == failure.definition.text
    assert [t.ddl for t in seen[0].tables] == [t.ddl for t in batch.tables]


def test_arguments_are_split_outside_brackets_and_strings() -> None:
    assert split_arguments("array(1, 2), 'a, b', x -> f(x, 1)") == ["array(1, 2)", "'a, b'", "x -> f(x, 1)"]


def test_shorter_texts_are_shorter() -> None:
    text = "SELECT k, max(V) AS m FROM t JOIN u USING (k) WHERE k > 1 AND V < 3 GROUP BY k HAVING count(*) > 1"
    found = shorter_texts(text)
    assert found
    assert all(len(t) < len(text) for t in found)
    assert any("HAVING" not in t for t in found)


def test_functions_are_taken_in_turn() -> None:
    """A hunt of so many batches meets all of them; the seed alone determines which are next."""
    names = [f"f{i}" for i in range(100)]
    met = [n for batch in range(25) for n in islice(_in_turn(names, f"s/{batch}", 4), 4)]
    assert sorted(met) == sorted(names)
    assert list(islice(_in_turn(names, "s/3", 4), 4)) == met[12:16]
    assert len(set(islice(_in_turn(names, "slice", 4), 100))) == 100


@pytest.mark.parametrize(
    ("reading", "counted"),
    [
        ("proven by plan", "proven by plan"),
        ("tested on 31 rows in 1 round, 1 row of answers", "tested on n rows in n rounds, n rows of answers"),
        ("tested on 1 row in 3 rounds, NO ROW of answers", "tested on n rows in n rounds, NO ROW of answers"),
        (
            "tested on 9 rows in 3 rounds, 8 rows of answers, only NULL in c1, c2",
            "tested on n rows in n rounds, n rows of answers, only NULL in a column",
        ),
        ("recomputed: 7 of them (x)", "recomputed"),
    ],
)
def test_readings_are_counted_by_kind(reading: str, counted: str) -> None:
    """Tests without answers are a kind of their own: a hunt must not take them for proofs."""
    assert _verdict(SimpleNamespace(reading=reading)) == counted


def test_tallies_of_batches_are_added() -> None:
    total = Tally(definitions=1, functions=frozenset("a"), registry=frozenset("abc"))
    total.add(Tally(definitions=2, functions=frozenset("b"), registry=frozenset("abc")))
    assert (total.definitions, total.functions, total.registry) == (3, frozenset("ab"), frozenset("abc"))
    assert "Of 3 functions that Spark registers and that are determined, 2 were met (67%)." in summary({"x": total}, 1)
