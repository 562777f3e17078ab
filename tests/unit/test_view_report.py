"""The maintainability report names every operator with its way and reason; check() compares within a tolerance."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.unit.test_view_laws import all_of
from tests.unit.view_grammar import SCHEMAS, views

from freshview.algebra.nodes import WEIGHT, Node
from freshview.algebra.traversal import bottom_up
from freshview.catalog.records import Relation
from freshview.definition.analysis import Definition, analyse
from freshview.delta.forms import choose_form
from freshview.delta.report import WAYS, Step, lines, report
from freshview.delta.tolerance import SHOWN, beyond_tolerance
from freshview.errors import NotMaintainable
from freshview.refresh.explain import explained, maintainability
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.sql.lowering import lower


def _report(text: str) -> Step:
    lowered = lower(text, SCHEMAS)
    return report(lowered, choose_form(lowered, tuple(n for _, n in lowered.outputs), all_of("int")))


def _definition(text: str, refresh: str = "auto", types: str = "bigint") -> Definition:
    def types_of(node: Node) -> dict[str, str]:
        return dict.fromkeys(node.columns, types)

    names = tuple(n for _, n in lower(text, SCHEMAS).outputs)
    return analyse(text, {}, SCHEMAS, names, refresh, types_of)


@pytest.mark.parametrize(
    ("text", "operator", "way", "keys"),
    [
        ("SELECT a + 1 AS x FROM t WHERE b > 0", "filter t.b > 0", "linear", ()),
        ("SELECT a + 1 AS x FROM t WHERE b > 0", "project t.a + 1", "linear", ()),
        ("SELECT a FROM t UNION ALL SELECT d FROM u", "union all", "linear", ()),
        ("SELECT e.x FROM t LATERAL VIEW explode(array(a, b)) e AS x", "generate", "linear", ()),
        ("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a", "inner join on t.a = u.a", "multilinear", ()),
        ("SELECT t.b, u.d FROM t CROSS JOIN u", "cross join", "multilinear", ()),
        ("SELECT t.b, u.d FROM t LEFT JOIN u ON t.a = u.a", "left join", "affected keys", ("t.a",)),
        ("SELECT t.b, u.d FROM t LEFT JOIN u ON t.a < u.a", "left join", "affected keys", ()),
        ("SELECT b FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)", "anti join", "affected keys", ("t.a",)),
        ("SELECT DISTINCT a, c FROM t", "distinct by a, c", "state", ("a", "c")),
        ("SELECT a, MAX(b) AS m FROM t GROUP BY a", "aggregate MAX(t.b) by t.a", "state", ("t.a",)),
        ("SELECT a, MEDIAN(b) AS m FROM t GROUP BY a", "aggregate MEDIAN(t.b) by t.a", "affected keys", ("t.a",)),
        ("SELECT a, SUM(b) AS s FROM t GROUP BY a", "aggregate SUM(t.b) by t.a", "state", ("t.a",)),
        ("SELECT SUM(b) AS s FROM t", "aggregate SUM(t.b)", "state", ()),
        ("SELECT a FROM t EXCEPT ALL SELECT d FROM u", "except all", "affected keys", ("a",)),
        ("SELECT SUM(b) OVER (PARTITION BY a) AS s FROM t", "window", "affected keys", ("t.a",)),
        ("SELECT SUM(b) OVER (ORDER BY a) AS s FROM t", "window", "recompute", ()),
        ("SELECT a FROM t ORDER BY b LIMIT 3", "top 3 by", "recompute", ()),
        ("SELECT a, (SELECT MAX(d) FROM u) AS m FROM t", "aggregate MAX(u.d)", "recompute", ()),
        ("SELECT t.a FROM t JOIN (VALUES (1)) AS k(i) ON t.a = k.i", "values, 1 rows", "constant", ()),
        ("SELECT a FROM t", "scan t", "source", ()),
    ],
)
def test_each_operator_is_named_with_its_way_and_keys(
    text: str, operator: str, way: str, keys: tuple[str, ...]
) -> None:
    found = [s for s in _report(text).walk() if s.operator.startswith(operator)]
    assert [(s.way, s.keys) for s in found] == [(way, keys)]


@settings(deadline=None, max_examples=150)
@given(text=views())
def test_every_operator_of_every_view_is_told_of(text: str) -> None:
    """As many steps as operators (a shared one is told of wherever it stands), each with a known way and a reason."""
    steps = list(_report(text).walk())
    assert len(steps) >= len(list(bottom_up(lower(text, SCHEMAS).node)))
    assert all(s.way in WAYS and s.reason and s.operator for s in steps)
    assert all(s.keys == () for s in steps if s.way in ("linear", "multilinear", "recompute", "source", "constant"))


def test_a_report_is_an_indented_tree() -> None:
    text = "SELECT t.c, SUM(u.d) AS s FROM t JOIN u ON t.a = u.a WHERE t.b > 0 GROUP BY t.c"
    assert [line.split("  <- ")[0] for line in lines(_report(text))] == [
        "project t.c, sum",
        "  aggregate SUM(u.d) by t.c",
        "    filter t.b > 0",
        "      inner join on t.a = u.a",
        "        scan t",
        "        scan u",
    ]


def test_the_report_marks_what_makes_a_view_recompute() -> None:
    """A sum of doubles below another operator has a rule, which would not be exact; the report says so."""
    text = "SELECT n, COUNT(*) AS k FROM (SELECT a, SUM(b) AS n FROM t GROUP BY a) GROUP BY n"
    definition = _definition(text, types="double")
    marked = [s for s in maintainability(definition).walk() if s.way == "recompute"]
    assert [s.operator for s in marked] == ["aggregate SUM(t.b) by t.a"]
    assert "inexact" in marked[0].reason
    assert "by recomputation" in explained("v", definition, 7)
    assert not [s for s in maintainability(_definition(text)).walk() if s.way == "recompute"]


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("SELECT a FROM t ORDER BY b DESC LIMIT 3", r"top 3 by .*: ORDER BY … LIMIT"),
        ("SELECT a, RANK() OVER (ORDER BY b) AS r FROM t", r"window RANK\(\) OVER .*: a window without PARTITION BY"),
    ],
)
def test_strict_mode_names_the_operator(text: str, operator: str) -> None:
    with pytest.raises(NotMaintainable, match=operator):
        _definition(text, "incremental")
    assert _definition(text).reason


def test_a_definition_without_algebra_has_a_report_too() -> None:
    text = "SELECT a FROM t SORT BY a"
    definition = analyse(text, {}, SCHEMAS, ("a",), "auto", lambda n: dict.fromkeys(n.columns, "bigint"))
    (step,) = maintainability(definition).walk()
    assert (step.operator, step.way) == ("query", "recompute")
    assert "SORT" in step.reason


def test_explain_tells_where_deltas_are_condensed_and_what_that_took_away() -> None:
    definition = _with_sources("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a")
    text = explained("v", definition, 1, last={"t": (20, 4), "v": (9, 9)})
    assert "partial, Δt by whole rows, below all joins; last job: 16 of 20 rows removed" in text
    assert "partial, Δu by whole rows, below all joins\n" in text
    assert "full, Δv by whole rows, before it is applied; last job: 0 of 9 rows removed" in text


def test_explain_shows_the_one_text_of_the_delta() -> None:
    text = explained("v", _with_sources("SELECT a, SUM(b) AS s FROM t GROUP BY a"), 3)
    assert "maintained: incrementally" in text
    assert "frontier: CSN 3" in text
    assert text.count("WITH ") == 1
    assert "t@delta" in text
    assert "v@old" in text


def _with_sources(text: str) -> Definition:
    tables = {
        name: Relation(i, name, "table", 1, 1, Schema(tuple(Column(c, DataType("bigint")) for c in columns)), 0)
        for i, (name, columns) in enumerate(SCHEMAS.items())
    }
    return replace(_definition(text), sources=tables)


# -- check() ---------------------------------------------------------------------------------------


def _compared(missing: list[Any], extra: list[Any], type_: pa.DataType) -> tuple[int, int]:
    values = pa.array(missing + extra, type_)
    weights = pa.array([1] * len(missing) + [-1] * len(extra), pa.int32())
    found = beyond_tolerance(pa.table({"k": pa.array([1] * len(values)), "x": values, WEIGHT: weights}))
    return found.missing_rows, found.extra_rows


_POINT = pa.struct([("x", pa.float64()), ("y", pa.float64())])


@pytest.mark.parametrize(
    ("missing", "extra", "type_", "left"),
    [
        ([1.0], [1.0 + 1e-12], pa.float64(), (0, 0)),
        ([1.0], [1.0 + 1e-8], pa.float64(), (1, 1)),
        ([1e20], [1e20 + 65536], pa.float64(), (0, 0)),
        ([0.0], [5e-17], pa.float64(), (0, 0)),
        ([1e-8], [2e-8], pa.float64(), (1, 1)),
        ([0.0], [-0.0], pa.float64(), (0, 0)),
        ([math.nan], [math.nan], pa.float64(), (0, 0)),
        ([math.nan], [1.0], pa.float64(), (1, 1)),
        ([math.nan], [None], pa.float64(), (1, 1)),
        ([math.inf], [math.inf], pa.float64(), (0, 0)),
        ([math.inf], [-math.inf], pa.float64(), (1, 1)),
        ([math.inf], [1.7e308], pa.float64(), (1, 1)),
        ([None], [0.0], pa.float64(), (1, 1)),
        ([0.1], [0.1 + 1e-8], pa.float32(), (0, 0)),
        ([0.1], [0.1 + 1e-5], pa.float32(), (1, 1)),
        ([1], [2], pa.int64(), (1, 1)),
        ([[1.0, 2.0]], [[1.0 + 1e-12, 2.0]], pa.list_(pa.float64()), (0, 0)),
        ([[1.0, 2.0]], [[2.0, 1.0]], pa.list_(pa.float64()), (1, 1)),
        ([[1.0]], [[1.0, 1.0]], pa.list_(pa.float64()), (1, 1)),
        ([[]], [None], pa.list_(pa.float64()), (1, 1)),
        ([{"x": 1.0, "y": math.nan}], [{"x": 1 + 1e-13, "y": math.nan}], _POINT, (0, 0)),
        ([{"x": 1.0, "y": 2.0}], [{"x": 1.0, "y": 3.0}], _POINT, (1, 1)),
        ([[("a", 1.0), ("b", 2.0)]], [[("b", 2.0 + 1e-13), ("a", 1.0)]], pa.map_(pa.string(), pa.float64()), (0, 0)),
        ([[("a", 1.0)]], [[("b", 1.0)]], pa.map_(pa.string(), pa.float64()), (1, 1)),
        ([[{"x": 1.0, "y": 0.5}]], [[{"x": 1.0, "y": 0.5 + 1e-14}]], pa.list_(_POINT), (0, 0)),
        ([1.0, 1.0, 1.0], [1.0 + 1e-13], pa.float64(), (2, 0)),
        ([1.0, 5.0], [5.0 + 1e-12, 1.0 - 1e-12, 7.0], pa.float64(), (0, 1)),
    ],
)
def test_floating_point_numbers_are_compared_within_a_tolerance(
    missing: list[Any], extra: list[Any], type_: pa.DataType, left: tuple[int, int]
) -> None:
    """Wherever they stand; everything else is equal or not, and rows are counted, not only told apart."""
    assert _compared(missing, extra, type_) == left


def test_rows_that_differ_in_several_numbers_find_their_partners() -> None:
    """The order by one number is not the order by the next: partners are searched among those in reach."""
    missing = [{"x": 1.0, "y": 1.0}, {"x": 1.0 + 1e-12, "y": 2.0}]
    extra = [{"x": 1.0, "y": 2.0}, {"x": 1.0 + 1e-12, "y": 1.0}]
    assert _compared(missing, extra, _POINT) == (0, 0)


def test_a_row_counts_as_often_as_its_weight_and_few_are_shown() -> None:
    table = pa.table({"x": pa.array([1, 2]), WEIGHT: pa.array([3 * SHOWN, -2], pa.int32())})
    found = beyond_tolerance(table)
    assert (found.missing_rows, found.extra_rows) == (3 * SHOWN, 2)
    assert found.missing == ({"x": 1},) * SHOWN
    assert found.extra == ({"x": 2},) * 2


def test_many_rows_are_compared_in_better_than_quadratic_time() -> None:
    """Twice 40,000 rows that differ in the last place: each with each would be 1.6 billion pairs."""
    rows = [{"x": float(i), "y": float(i % 7)} for i in range(40_000)]
    near = [{"x": r["x"] * (1 + 1e-14), "y": r["y"]} for r in reversed(rows)]
    begun = time.perf_counter()
    assert _compared(rows, near, _POINT) == (0, 0)
    assert time.perf_counter() - begun < 20


def test_explain_tells_which_rows_of_a_table_matter() -> None:
    """A scan that is joined to a delta is read only where it meets it."""
    text = explained("v", _with_sources("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a"), 1)
    assert "u@old /* rows with a in t@delta.a */" in text
