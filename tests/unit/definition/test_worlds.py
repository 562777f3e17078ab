"""Tables made for a definition: rows of every type, values around its literals, states that follow from a seed."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any

import pytest

from freshview.definition.hints import _document, hints_of
from freshview.definition.worlds import ALIKE, EXTREME, PROFILES, changed, empty, world
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

PLAIN = PROFILES[0]
# fmt: off
TYPES = [
    "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,0)", "string", "char(3)",
    "varchar(2)", "binary", "date", "timestamp", "timestamp_ntz", "boolean", "array<int>", "map<string,int>",
    "struct<A: int, b: array<string>>", "map<int,struct<x: int>>",
]
# fmt: on


def schema(*types: str, key: tuple[str, ...] = ()) -> Schema:
    return Schema(tuple(Column(f"c{i}", parse_type(t)) for i, t in enumerate(types)), key)


@pytest.mark.parametrize("profile", [*PROFILES, EXTREME], ids=lambda p: p.name)
def test_every_type_has_rows_in_every_profile(profile: Any) -> None:
    schemas = {"t": schema(*TYPES)}
    state = world(schemas, hints_of("SELECT 1"), profile)
    assert state["t"].num_rows >= profile.rows
    after = changed(state, schemas, hints_of("SELECT 1"), profile, 1)
    assert after["t"].schema == state["t"].schema


@pytest.mark.parametrize("relations", [1, 4, 5, 8, 12])
def test_a_join_of_many_tables_of_a_world_stays_small(relations: int) -> None:
    schemas = {f"t{i:02}": schema("int", "string") for i in range(relations)}
    profile = ALIKE.for_join(relations)
    assert (profile == ALIKE) is (relations <= 4)  # few tables keep all their rows
    state = world(schemas, hints_of("SELECT 1"), profile)
    met = [t.column(0).to_pylist().count(1) for t in state.values()]
    assert all(met), "a row of each meets one of every other"
    assert math.prod(met) > 1
    for number in range(1, 4):
        alike = [t.column(0).to_pylist().count(1) for t in state.values()]
        assert math.prod(alike) < 500_000, alike
        state = changed(state, schemas, hints_of("SELECT 1"), profile, number)


def test_a_world_follows_from_its_seed() -> None:
    schemas = {"t": schema(*TYPES), "u": schema("int", "string")}
    hints = hints_of("SELECT * FROM t WHERE c0 = 7")
    assert repr(world(schemas, hints, PLAIN)) == repr(world(schemas, hints, PLAIN))


def test_a_column_takes_the_literals_it_is_compared_with_and_their_neighbours() -> None:
    schemas = {"t": schema("int", "date", "string", "decimal(6,2)")}
    hints = hints_of(
        "SELECT * FROM t WHERE c0 > 41 AND c1 <= DATE '1998-12-01' AND c2 LIKE 'PROMO%' AND c3 BETWEEN 0.05 AND 0.07"
    )
    seen: list[set[Any]] = [set() for _ in range(4)]
    for seed in range(30):
        rows = world(schemas, hints, type(PLAIN)("x", seed))["t"]
        for place in range(4):
            seen[place] |= set(rows.column(place).to_pylist())
    assert {40, 41, 42} <= seen[0]
    assert {datetime.date(1998, 12, 1), datetime.date(1998, 12, 2), datetime.date(1998, 11, 30)} <= seen[1]
    assert {"PROMOx", "PROMOx ", "promoX"} <= seen[2]
    assert {Decimal("0.05"), Decimal("0.06"), Decimal("0.07")} <= seen[3]


def test_the_values_that_find_mistakes_are_met() -> None:
    schemas = {"t": schema("double", "string", "array<int>", "int", "map<string,int>")}
    values: list[list[Any]] = [[] for _ in range(5)]
    for seed in range(30):
        rows = world(schemas, hints_of("SELECT 1"), type(EXTREME)("x", seed, extremes=True))["t"]
        for place, found in enumerate(values):
            found += rows.column(place).to_pylist()
    doubles, texts, arrays, numbers, maps = values
    assert any(v is not None and math.copysign(1, v) < 0 and v == 0 for v in doubles)
    assert any(v is not None and math.isnan(v) for v in doubles)
    assert {None, "", "a", "A", "a "} <= set(texts)
    assert {0, 1, 2, 3} <= {len(v) for v in arrays if v is not None}
    assert {0, 1} < {len(v) for v in maps if v is not None}
    assert {None, 2**31 - 1, -(2**31)} <= set(numbers)
    assert len(numbers) > len(set(numbers))


@pytest.mark.parametrize("nullable", [False, True])
def test_keys_stay_unique_through_changes_and_hold_null_only_in_views(nullable: bool) -> None:
    schemas = {"t": Schema((Column("c0", parse_type("int"), nullable), Column("c1", parse_type("string"))), ("c0",))}
    nulls = 0
    for seed in range(5):
        profile = type(PLAIN)("x", seed)
        state = world(schemas, hints_of("SELECT 1"), profile)
        for number in range(1, 6):
            keys = state["t"].column(0).to_pylist()
            assert len(keys) == len(set(keys))
            nulls += None in keys
            state = changed(state, schemas, hints_of("SELECT 1"), profile, number)
    assert bool(nulls) == nullable


def test_changes_leave_a_table_alone_empty_one_and_bring_rows() -> None:
    schemas = {"t": schema("int"), "u": schema("int")}
    hints = hints_of("SELECT 1")
    start = world(schemas, hints, PLAIN)
    odd, even = (changed(start, schemas, hints, PLAIN, n) for n in (1, 2))
    assert sum(odd[n] is start[n] for n in start) == 1
    assert sorted(even[n].num_rows == 0 for n in start) == [False, True]
    assert all(t.num_rows == 0 for t in empty(schemas).values())


def test_where_ties_are_open_ordered_columns_have_no_value_twice() -> None:
    schemas = {"t": schema("int", "string")}
    hints = hints_of("SELECT row_number() OVER (PARTITION BY c1 ORDER BY c0) FROM t")
    state = world(schemas, hints, PLAIN, untied=True)
    after = changed(state, schemas, hints, PLAIN, 1, untied=True)
    for rows in (state["t"], after["t"]):
        ordered = rows.column(0).to_pylist()
        assert None not in ordered
        assert len(ordered) == len(set(ordered))


def test_a_text_that_cannot_be_parsed_has_no_words() -> None:
    assert hints_of("FROM t |> SELECT ((").by_column == {}
    assert hints_of("FROM t |> SELECT lpad((").sized


@pytest.mark.parametrize(
    "call", ["try_element_at(c2, c0)", "LPAD (c1, c0)", "`space`(c0)", "repeat(c1, c3)", "sequence(c5, c5, c6)"]
)
def test_where_a_number_is_a_size_or_a_place_all_numbers_are_small(call: str) -> None:
    """Spark would end with its process: out of memory in a task, or by reading beyond an array."""
    schemas = {"t": schema("int", "string", "array<int>", "double", "decimal(38,0)", "timestamp", "bigint")}
    hints = hints_of(f"SELECT max({call}) FROM t WHERE c0 < 2147483647")
    for seed in range(30):
        rows = world(schemas, hints, type(EXTREME)("x", seed, extremes=True))["t"]
        arrays = [v for array in rows.column(2).to_pylist() for v in array or ()]
        for numbers in (*(rows.column(i).to_pylist() for i in (0, 3, 4, 6)), arrays):
            assert all(v is None or abs(v) <= 1000 for v in numbers)
        assert all(v is None or v.year in (2023, 2024) for v in rows.column(5).to_pylist())


def test_in_the_last_profile_a_literal_is_found_once() -> None:
    """A scalar subquery that looks a row up by a literal fails on every other profile: it finds several."""
    schemas = {"t": schema("date", "int"), "u": schema("int", key=("c0",))}
    hints = hints_of("SELECT * FROM u WHERE c0 = (SELECT c1 FROM t WHERE c0 = DATE '2000-01-03')")
    (profile,) = [p for p in PROFILES if p.once]
    state, met = world(schemas, hints, profile), 0
    for number in range(1, 9):
        days = state["t"].column("c0").to_pylist()
        assert len(set(days)) == len(days)
        met += datetime.date(2000, 1, 3) in days
        state = changed(state, schemas, hints, profile, number)
    assert met > 2


def test_calls_are_looked_into() -> None:
    """Law: a column that a call reads gets values on which the call gives what it is compared with."""
    schemas = {"t": schema("timestamp", "date", "string", "string", "string")}
    hints = hints_of(
        "SELECT get_json_object(c2, '$.A[1].b'), try_to_date(c3, 'dd.MM.yyyy') FROM t"
        " WHERE date_format(c0, 'yyyy') = '1995' AND month(c1) = 11"
        " AND get_json_object(c2, '$.kind') = 'order' AND length(c4) > 16"
    )
    profile = next(p for p in PROFILES if p.named)
    columns = world(schemas, hints, profile)["t"].to_pydict()
    assert 1995 in {v.year for v in columns["c0"]}
    assert 11 in {v.month for v in columns["c1"]}
    documents = [json.loads(v) for v in columns["c2"] if v.startswith("{")]
    assert any(d.get("kind") == "order" and d["A"][1]["b"] == "order" for d in documents)
    assert "01.03.2024" in columns["c3"]
    assert 17 in map(len, columns["c4"])


@pytest.mark.parametrize(
    ("path", "made"),
    [
        ("$.a.b", {"a": {"b": 1}}),
        ("$.a[2]", {"a": [None, None, 1]}),
        ("$['x y'][*].z", {"x y": [{"z": 1}]}),
        ("$[0]", [1]),
        ("$", 1),
        ("$.a[999999999]", {"a": None}),
    ],
)
def test_a_document_has_the_path_that_is_looked_for(path: str, made: Any) -> None:
    assert _document([path], 1) == made


def test_paths_that_contradict_each_other_share_a_document_as_far_as_they_can() -> None:
    assert _document(["$.a.b", "$.a.c", "$.a[0]", "$[1]"], 1) == {"a": {"b": 1, "c": 1}}
